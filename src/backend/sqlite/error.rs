//! Errors of database files: each names the file and the reason.

use std::{io, path::Path};

use rusqlite::{ErrorCode, ffi};

use crate::error::{Error, ErrorKind};

/// The error of a file, which `what` describes.
pub(super) fn failed(kind: ErrorKind, path: &Path, what: &str) -> Error {
    Error::new(kind, format!("database `{}` {what}", path.display()))
}

pub(super) fn replaced(path: &Path) -> Error {
    let what = "was replaced by another file while it is open: nothing is written any more: restart \
                all programs that use it";
    failed(ErrorKind::Closed, path, what)
}

pub(super) fn not_made(path: &Path, source: io::Error) -> Error {
    failed(ErrorKind::Unavailable, path, "cannot be made").with_source(source)
}

pub(super) fn not_found_out(path: &Path, source: io::Error) -> Error {
    failed(ErrorKind::Unavailable, path, "cannot be looked up").with_source(source)
}

pub(super) fn no_thread(path: &Path, source: io::Error) -> Error {
    let what = "has no thread: it could not be started";
    failed(ErrorKind::Exhausted, path, what).with_source(source)
}

pub(super) fn panicked(path: &Path) -> Error {
    failed(ErrorKind::Internal, path, "had an operation that panicked")
}

/// Converts an error of SQLite. One of [`refuse`] is returned unchanged.
pub(super) fn sql(path: &Path, source: rusqlite::Error) -> Error {
    let source = match source {
        rusqlite::Error::ToSqlConversionFailure(source) => match source.downcast::<Error>() {
            Ok(refusal) => return *refusal,
            Err(source) => rusqlite::Error::ToSqlConversionFailure(source),
        },
        source => source,
    };
    let (kind, what) = meaning(&source);
    failed(kind, path, what).with_source(source)
}

/// Wraps an error of this crate as the result of a write: the write is rolled back, and its caller
/// gets the error unchanged.
pub(crate) fn refuse(error: Error) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(error))
}

/// Returns whether the error is an I/O error, after which the connection's cache is not reliable.
pub(super) fn is_io(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
}

/// Returns whether another connection holds the file's lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

fn meaning(error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    let extended = error.sqlite_error().map(|error| error.extended_code);
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unavailable,
            "is locked by another process for too long",
        ),
        Some(ErrorCode::DiskFull) => (ErrorKind::Exhausted, "cannot be written: the disk is full"),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (
            ErrorKind::Denied,
            "cannot be written: the file or its directory is read-only",
        ),
        Some(ErrorCode::CannotOpen) => (
            ErrorKind::Denied,
            "cannot be opened: is it allowed to read and write it?",
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Internal,
            "is corrupt: put a good copy in its place",
        ),
        Some(ErrorCode::NotADatabase) => (ErrorKind::Invalid, "is not a SQLite database"),
        Some(ErrorCode::SystemIoFailure)
            if matches!(
                extended,
                Some(ffi::SQLITE_IOERR_WRITE | ffi::SQLITE_IOERR_SHMSIZE)
            ) =>
        {
            let what = "cannot be written: the disk reported an error, or the limit on the size of \
                        files is reached (`ulimit -f`)";
            (ErrorKind::Unavailable, what)
        }
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Unavailable,
            "failed to be read or written: the disk reported an error",
        ),
        Some(ErrorCode::TooBig) => (ErrorKind::Invalid, "cannot hold a value that large"),
        _ => (ErrorKind::Internal, "refused an operation"),
    }
}
