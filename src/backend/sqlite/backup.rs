//! Work on a whole file: its backup, and its check for damage.

use std::{
    fs::{self, File},
    path::Path,
};

use rusqlite::ErrorCode;

use super::{
    directory_of, error,
    open::{connect, create_file, number},
    with_suffix,
};
use crate::{
    base::task::blocking,
    error::{Error, ErrorKind, Result},
};

/// The first three bytes of each [`Schema`](super::Schema)'s `application_id`: "rev".
const KINDS: i32 = 0x72_6576;

/// Copies a file of this crate with `VACUUM INTO`: the copy is one moment of the file, its log
/// included, and no program waits for it. It is made under another name, and renamed when it is on
/// the disk.
///
/// # Errors
/// [`ErrorKind::Conflict`] if `to` exists; else the file, and why it cannot be read or written.
pub(crate) async fn backup(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        let message = format!("`{}` exists: name a new file", to.display());
        return Err(Error::new(ErrorKind::Conflict, message));
    }
    let (source, target) = (from.to_owned(), to.to_owned());
    let copied = blocking(move || {
        let part = with_suffix(&target, &format!(".part-{}", std::process::id()));
        let copied = copy(&source, &part).and_then(|()| {
            let renamed = rename(&part, &target);
            renamed.map_err(|source| error::not_made(&target, source))
        });
        if copied.is_err() {
            // The error that is reported came first.
            let _ = fs::remove_file(&part);
        }
        copied
    });
    copied.await.ok_or_else(|| error::panicked(from))?
}

fn copy(from: &Path, part: &Path) -> Result<()> {
    let sql = |source| error::sql(from, source);
    if !from.exists() {
        return Err(error::failed(ErrorKind::NotFound, from, "does not exist"));
    }
    let source = connect(from).map_err(sql)?;
    let kind: i32 = number(&source, "application_id").map_err(sql)?;
    if kind >> 8 != KINDS {
        return Err(error::foreign(from));
    }
    // Of a mode that only its owner can read; SQLite takes an empty file for a new one.
    create_file(part)?;
    let copied = source.execute("VACUUM INTO ?1", [part.to_string_lossy()]);
    copied.map(drop).map_err(|source| error::sql(part, source))
}

/// Gives the copy its name, and returns when that is on the disk.
fn rename(part: &Path, to: &Path) -> std::io::Result<()> {
    File::open(part)?.sync_all()?;
    fs::rename(part, to)?;
    File::open(directory_of(to))?.sync_all()
}

/// Checks the file and returns the first problem, or `None` if it is sound. A `thorough` check also
/// compares each index with its table. Changes nothing.
///
/// # Errors
/// If the file could not be read, which says nothing about its content.
pub(crate) async fn check_file(path: &Path, thorough: bool) -> Result<Option<String>> {
    let owned = path.to_owned();
    let checked = blocking(move || first_problem(&owned, thorough));
    let checked = checked.await.ok_or_else(|| error::panicked(path))?;
    checked.map_err(|source| error::sql(path, source))
}

fn first_problem(path: &Path, thorough: bool) -> rusqlite::Result<Option<String>> {
    let pragma = match thorough {
        true => "PRAGMA integrity_check(1)",
        false => "PRAGMA quick_check(1)",
    };
    let check = || -> rusqlite::Result<String> {
        let connection = connect(path)?;
        connection.query_row(pragma, (), |row| row.get(0))
    };
    match check() {
        Ok(answer) if answer == "ok" => Ok(None),
        Ok(problem) => Ok(Some(problem)),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt) => Ok(Some(error.to_string())),
            _ => Err(error),
        },
    }
}
