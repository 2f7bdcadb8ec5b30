//! A copy of a database file that programs use.

use std::{fs, path::Path};

use rusqlite::{Connection, OpenFlags, backup::Backup};
use tokio::sync::oneshot;

use super::{
    damaged::with_suffix,
    error::SqliteError,
    lock_wait::wait_for_locks,
    open::{create_file, number},
    place::check_place,
};
use crate::error::{Error, ErrorKind, Result};

/// The first three bytes of each [`Schema`](super::Schema)'s `application_id`: "rev".
const KINDS: i32 = 0x72_6576;

/// Copies a file of this crate by SQLite's online backup: the copy is one moment of the
/// file, its log included, and no program waits for it.
///
/// The copy is made under another name and renamed when it is on the disk.
///
/// # Errors
/// [`ErrorKind::Conflict`] if `to` exists; else the file, and why it cannot be read or written.
#[expect(clippy::disallowed_methods, reason = "SQLite blocks, for seconds")]
pub(crate) async fn backup(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        let message = format!("`{}` exists: name a new file", to.display());
        return Err(Error::new(ErrorKind::Conflict, message));
    }
    let (answer, outcome) = oneshot::channel();
    let (from, to) = (from.to_owned(), to.to_owned());
    let shown = from.display().to_string();
    std::thread::Builder::new()
        .name("reveille-backup".into())
        .spawn(move || {
            let part = with_suffix(&to, ".part");
            let copied = copy(&from, &part).and_then(|()| rename(&part, &to));
            if copied.is_err() {
                // The error that is reported came first.
                let _ = fs::remove_file(&part);
            }
            // The caller may no longer wait.
            let _ = answer.send(copied);
        })
        .map_err(|source| SqliteError::Thread {
            path: shown.clone(),
            source,
        })?;
    let copied = outcome.await;
    Ok(copied.map_err(|_| SqliteError::panicked(Path::new(&shown)))??)
}

fn copy(from: &Path, to: &Path) -> Result<(), SqliteError> {
    let in_source = |error| SqliteError::sql(from, error);
    let in_copy = |error| SqliteError::sql(to, error);
    if from.is_dir() {
        let path = from.display().to_string();
        return Err(SqliteError::IsDirectory { path });
    }
    check_place(from)?;
    // Without SQLITE_OPEN_CREATE. The log's index needs write access.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut source = Connection::open_with_flags(from, flags).map_err(in_source)?;
    wait_for_locks(&mut source).map_err(in_source)?;
    let kind: i32 = number(&source, "application_id").map_err(in_source)?;
    if kind >> 8 != KINDS {
        let path = from.display().to_string();
        return Err(SqliteError::Foreign { path });
    }
    // What an earlier backup that was ended left.
    if let Err(source) = fs::remove_file(to)
        && source.kind() != std::io::ErrorKind::NotFound
    {
        let path = to.display().to_string();
        return Err(SqliteError::Create { path, source });
    }
    create_file(to)?;
    let mut copy = Connection::open_with_flags(to, flags).map_err(in_copy)?;
    let all = Backup::new(&source, &mut copy).and_then(|backup| backup.step(-1));
    all.map_err(in_copy).map(|_| ())
}

/// Gives the copy its name, and returns when that is on the disk.
fn rename(part: &Path, to: &Path) -> Result<(), SqliteError> {
    let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    let renamed = fs::rename(part, to).and_then(|()| fs::File::open(directory)?.sync_all());
    renamed.map_err(|source| SqliteError::Create {
        path: to.display().to_string(),
        source,
    })
}
