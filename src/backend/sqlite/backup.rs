//! A copy of a database file that programs use.

use std::{fs, path::Path};

use rusqlite::{
    Connection,
    backup::{Backup, StepResult},
    ffi,
};
use tokio::sync::oneshot;

use super::{
    damaged::with_suffix,
    error,
    open::{checkpoint, connect, create_file, number, write_back_on_close},
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
    let (source, to) = (from.to_owned(), to.to_owned());
    std::thread::Builder::new()
        .name("reveille-backup".into())
        .spawn(move || {
            let copied = copy_and_rename(&source, &to);
            // The caller may no longer wait.
            let _ = answer.send(copied);
        })
        .map_err(|source| error::no_thread(from, source))?;
    outcome.await.map_err(|_| error::panicked(from))?
}

fn copy_and_rename(from: &Path, to: &Path) -> Result<()> {
    let part = with_suffix(to, &format!(".part-{}", std::process::id()));
    let source = open_source(from)?;
    create_file(&part)?;
    let copied = copy(&source, &part).and_then(|()| rename(&part, to));
    leave_no_empty_log(&source);
    if copied.is_err() {
        // The error that is reported came first.
        let _ = fs::remove_file(&part);
    }
    copied
}

/// A file that no program uses has no log, before and after.
fn leave_no_empty_log(source: &Connection) {
    if matches!(checkpoint(source, "NOOP"), Ok((_, frames)) if frames <= 0) {
        // Else an empty log stays, as after a crash.
        let _ = write_back_on_close(source, true);
    }
}

fn open_source(from: &Path) -> Result<Connection> {
    let sql = |source| error::sql(from, source);
    if from.is_dir() {
        return Err(error::is_directory(from));
    }
    check_place(from)?;
    let source = connect(from).map_err(sql)?;
    let kind: i32 = number(&source, "application_id").map_err(sql)?;
    match kind >> 8 == KINDS {
        true => Ok(source),
        false => Err(error::foreign(from)),
    }
}

fn copy(source: &Connection, to: &Path) -> Result<()> {
    let copy = || {
        let mut copy = connect(to)?;
        write_back_on_close(&copy, true)?;
        match Backup::new(source, &mut copy)?.step(-1)? {
            StepResult::Done => Ok(()),
            _ => Err(rusqlite::Error::SqliteFailure(
                ffi::Error::new(ffi::SQLITE_BUSY),
                None,
            )),
        }
    };
    copy().map_err(|source| error::sql(to, source))
}

/// Gives the copy its name, and returns when that is on the disk.
fn rename(part: &Path, to: &Path) -> Result<()> {
    let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    let renamed = fs::rename(part, to).and_then(|()| fs::File::open(directory)?.sync_all());
    renamed.map_err(|source| error::not_made(to, source))
}
