//! Messages that a process received before it died return to their places.
//!
//! A process that receives holds a lock on a file beside the queue file. The system ends the lock
//! with the process, however that ends. The host looks for unlocked files, and gives back what their
//! processes had received. Messages of live processes return by their transactions' time-outs only.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use rusqlite::{Transaction, params};

use super::{
    manager::{QueueManager, random_id},
    message::MessageId,
    set_aside::with_suffix,
};
use crate::{
    backend::sqlite::refuse,
    error::{Error, ErrorKind, Result},
    queue::sqlite::put::note_unnotified,
};

/// The lock of this process on its file, which is removed on drop.
#[derive(Debug)]
pub(super) struct ProcessLock {
    pub(super) id: [u8; 16],
    path: PathBuf,
    _file: File,
}

const SUFFIX: &str = ".process-";

impl ProcessLock {
    /// Creates and locks the file of this process for the queue file `path`.
    pub(super) fn acquire(path: &Path) -> Result<Self> {
        let id = random_id()?;
        let name = MessageId::from_bytes(id).to_string();
        let path = with_suffix(path, &format!("{SUFFIX}{name}"));
        // Under its name the file is locked from the start.
        let new = with_suffix(&path, ".new");
        let fail = |error: io::Error| {
            let message = format!("lock file `{}` cannot be made: {error}", path.display());
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).open(&new);
        let file = file.map_err(fail)?;
        file.lock().map_err(fail)?;
        fs::rename(&new, &path).map_err(fail)?;
        Ok(Self {
            id,
            path,
            _file: file,
        })
    }
}

impl Drop for ProcessLock {
    fn drop(&mut self) {
        // If it stays, the host removes it.
        let _ = fs::remove_file(&self.path);
    }
}

impl QueueManager {
    /// Gives back what dead processes had received; returns the number of messages. The host calls
    /// it when it starts, and once a second.
    ///
    /// # Errors
    /// Of the file.
    pub(crate) async fn recover(&self) -> Result<usize> {
        let path = self.path().to_owned();
        let recovered = self.database().write(move |transaction| {
            let mut select = transaction.prepare_cached("SELECT DISTINCT process FROM taken")?;
            let processes = select.query_map([], |row| row.get(0))?;
            let processes: Vec<[u8; 16]> = processes.collect::<rusqlite::Result<_>>()?;
            let mut given_back = 0;
            for process in processes {
                if is_dead(&path, process).map_err(|error| refuse(unreadable(&path, &error)))? {
                    given_back += give_back(transaction, process)?;
                }
            }
            Ok(given_back)
        });
        let given_back = recovered.await?;
        self.remove_dead_files();
        Ok(given_back)
    }

    /// Returns whether a process has messages that it received, without a write.
    pub(crate) async fn has_taken(&self) -> Result<bool> {
        let taken = "SELECT EXISTS (SELECT 1 FROM taken)";
        self.database()
            .run(move |connection| connection.query_row(taken, [], |row| row.get(0)))
            .await
    }

    /// Removes the files of dead processes.
    fn remove_dead_files(&self) {
        let path = self.path();
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return;
        };
        let directory = if directory.as_os_str().is_empty() {
            Path::new(".")
        } else {
            directory
        };
        let prefix = format!("{}{SUFFIX}", name.to_string_lossy());
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let is_lock = entry.file_name().to_string_lossy().starts_with(&prefix);
            if is_lock && is_unlocked(&entry.path()).unwrap_or(false) {
                // If it stays, the next pass removes it.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    let text = format!(
        "the lock files of `{}` cannot be read: {error}",
        path.display()
    );
    Error::new(ErrorKind::Unavailable, text)
}

fn is_dead(path: &Path, process: [u8; 16]) -> io::Result<bool> {
    let name = MessageId::from_bytes(process).to_string();
    is_unlocked(&with_suffix(path, &format!("{SUFFIX}{name}")))
}

/// Returns whether a file is missing or no process locks it.
fn is_unlocked(path: &Path) -> io::Result<bool> {
    match OpenOptions::new().write(true).open(path) {
        Ok(file) => match file.try_lock() {
            Ok(()) => Ok(true),
            Err(fs::TryLockError::WouldBlock) => Ok(false),
            Err(fs::TryLockError::Error(error)) => Err(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Notes that a process has received a message that was visible from `visible_at` on.
pub(super) fn take(
    transaction: &Transaction<'_>,
    process: [u8; 16],
    row: i64,
    receipt: i64,
    visible_at: i64,
) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO taken (message, process, receipt, visible_at)
               VALUES (?1, ?2, ?3, ?4)";
    let values = params![row, process, receipt, visible_at];
    transaction.prepare_cached(sql)?.execute(values).map(drop)
}

/// The message was committed, or was given back.
pub(super) fn forget(
    transaction: &Transaction<'_>,
    row: i64,
    receipt: i64,
) -> rusqlite::Result<()> {
    let sql = "DELETE FROM taken WHERE message = ?1 AND receipt = ?2";
    transaction
        .prepare_cached(sql)?
        .execute([row, receipt])
        .map(drop)
}

/// Makes the messages of a dead process visible at their former places.
fn give_back(transaction: &Transaction<'_>, process: [u8; 16]) -> rusqlite::Result<usize> {
    // A message that was received again since has another receipt.
    let restore = "UPDATE messages SET visible_at = t.visible_at, receipt = messages.receipt + 1
                   FROM taken t WHERE t.process = ?1 AND t.message = messages.id
                     AND t.receipt = messages.receipt
                   RETURNING messages.queue, length(messages.body)";
    let mut restore = transaction.prepare_cached(restore)?;
    let rows = restore.query_map([process], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let restored: Vec<(i64, usize)> = rows
        .map(|row| row.map(|(queue, size): (i64, i64)| (queue, usize::try_from(size).unwrap_or(0))))
        .collect::<rusqlite::Result<_>>()?;
    for (queue, size) in &restored {
        note_unnotified(transaction, *queue, 1, *size, fastrand::i64(..))?;
    }
    let delete = "DELETE FROM taken WHERE process = ?1";
    transaction.prepare_cached(delete)?.execute([process])?;
    Ok(restored.len())
}
