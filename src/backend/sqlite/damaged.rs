//! Damaged files: they are renamed, and never replaced silently.
//!
//! A file that was set aside blocks its name: opening the missing file fails until an operator
//! restores a copy or allows a new file.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use crate::error::{Error, ErrorKind};

/// The mark in the name of a file that was set aside.
const MARK: &str = ".damaged-";

/// Returns a damaged file that was set aside from this path.
pub(super) fn find_damaged(path: &Path) -> Option<PathBuf> {
    let prefix = format!("{}{MARK}", path.file_name()?.to_string_lossy());
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty());
    let entries = fs::read_dir(directory.unwrap_or_else(|| Path::new("."))).ok()?;
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    names.find(|found| {
        let name = found.file_name().map(|name| name.to_string_lossy());
        name.is_some_and(|name| name.starts_with(&prefix))
    })
}

/// Renames a damaged file with its log; returns the error that says so.
pub(crate) fn set_aside(path: &Path, problem: &str, utc: &str) -> Error {
    let damaged = with_suffix(path, &format!("{MARK}{utc}"));
    let shown = (path.display(), damaged.display());
    let renamed = rename_all(path, &damaged);
    let message = match &renamed {
        Ok(()) => format!(
            "queue file `{}` is damaged ({problem}) and was set aside as `{}`: stop all programs \
             that use it, then restore a copy, or save its content with `sqlite3 FILE .recover`",
            shown.0, shown.1
        ),
        Err(error) => format!(
            "queue file `{}` is damaged ({problem}) and could not be renamed: {error}",
            shown.0
        ),
    };
    Error::new(ErrorKind::Internal, message)
}

/// Renames the file first: a file without its log would look complete and lack the newest commits.
fn rename_all(path: &Path, damaged: &Path) -> io::Result<()> {
    fs::rename(path, damaged)?;
    for suffix in ["-wal", "-shm"] {
        match fs::rename(with_suffix(path, suffix), with_suffix(damaged, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Appends to the file's name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}
