//! Messages that a process received before it died return to their places.
//!
//! A process that receives holds a lock on a file beside the queue file. The system ends the lock
//! with the process, however that ends. The host looks for the locks of ended processes. Messages of live
//! processes return by their transactions' time-outs.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    manager::QueueManager,
    message::{MessageId, new_id},
    steps::{ENDED, OF_PROCESS, give_back},
};
use crate::{
    backend::sqlite::{directory_of, with_suffix},
    error::{Error, ErrorKind, Result},
    queue::sqlite::clock,
};

/// The lock of this process on its file, which is removed on drop.
#[derive(Debug)]
pub(super) struct ProcessLock {
    pub(super) id: [u8; 16],
    path: PathBuf,
    _file: File,
}

const SUFFIX: &str = ".process-";
/// The process that made a file of this age has locked it, or is dead.
const OLD: Duration = Duration::from_secs(60);

impl ProcessLock {
    /// Creates and locks the file of this process for the queue file `path`.
    pub(super) fn acquire(path: &Path) -> Result<Self> {
        let id = new_id()?;
        let path = lock_path(path, id);
        let fail = |error: io::Error| {
            let message = format!("lock file `{}` cannot be made: {error}", path.display());
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.write(true).create_new(true).open(&path);
        let file = file.map_err(fail)?;
        file.lock().map_err(fail)?;
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

/// Returns the path of a process's lock file.
fn lock_path(path: &Path, process: [u8; 16]) -> PathBuf {
    let name = MessageId::from_bytes(process);
    with_suffix(path, &format!("{SUFFIX}{name}"))
}

/// Returns whether a file is missing or no process locks it. Where that cannot be found out, such as for
/// another user's file, its process counts as alive: its messages return by their time-outs.
fn is_unlocked(path: &Path) -> bool {
    match File::open(path) {
        Ok(file) => file.try_lock().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

impl QueueManager {
    /// Gives back what dead processes, and transactions whose time-out is over, had received; returns
    /// the number of messages. The host calls it when it starts, and once a second.
    ///
    /// # Errors
    /// Of the file.
    pub(crate) async fn recover(&self) -> Result<usize> {
        let taken = "SELECT EXISTS (SELECT 1 FROM taken)";
        let any = self
            .database()
            .run(move |connection| connection.query_row(taken, [], |row| row.get(0)));
        if !any.await? {
            return Ok(0);
        }
        let path = self.path().to_owned();
        let recovered = self.database().write(move |transaction| {
            let mut select = transaction.prepare_cached("SELECT DISTINCT process FROM taken")?;
            let processes = select.query_map([], |row| row.get(0))?;
            let processes: Vec<[u8; 16]> = processes.collect::<rusqlite::Result<_>>()?;
            let mut given_back = 0;
            for process in processes {
                if is_unlocked(&lock_path(&path, process)) {
                    given_back += give_back(transaction, OF_PROCESS, &process)?;
                }
            }
            let now = clock::now(transaction)?;
            Ok(given_back + give_back(transaction, ENDED, &now)?)
        });
        let given_back = recovered.await?;
        self.remove_dead_files();
        Ok(given_back)
    }

    /// Removes the files of dead processes.
    fn remove_dead_files(&self) {
        let path = self.path();
        let name = path.file_name().unwrap_or_default();
        let prefix = format!("{}{SUFFIX}", name.to_string_lossy());
        for entry in fs::read_dir(directory_of(path))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_lock = name.starts_with(&prefix) && is_old(&entry);
            if is_lock && is_unlocked(&entry.path()) {
                // If it stays, the next pass removes it.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn is_old(entry: &fs::DirEntry) -> bool {
    let modified = entry.metadata().and_then(|metadata| metadata.modified());
    let age = modified.ok().and_then(|modified| modified.elapsed().ok());
    age.is_some_and(|age| age > OLD)
}
