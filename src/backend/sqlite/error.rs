//! Errors of database files with exact messages; callers of this crate see the public error.

use std::{io, path::Path};

use rusqlite::{ErrorCode, ffi};

use crate::error::{Error, ErrorKind};

#[derive(Debug, thiserror::Error)]
pub(crate) enum SqliteError {
    #[error("database `{path}` cannot be made: its directory does not exist")]
    NoDirectory { path: String },
    #[error("database `{path}` cannot be opened: it is a directory")]
    IsDirectory { path: String },
    #[error("database `{path}` cannot be made: its directory is not writable")]
    DirectoryDenied { path: String, source: io::Error },
    #[error("database `{path}` cannot be made")]
    Create { path: String, source: io::Error },
    #[error("database `{path}` does not exist")]
    Missing { path: String },
    #[error(
        "database `{path}` is missing, and `{damaged}` was set aside because it is damaged: restore \
         a copy, or allow a new file to begin empty"
    )]
    SetAside { path: String, damaged: String },
    #[error("database `{path}` cannot be looked up")]
    Metadata { path: String, source: io::Error },
    #[error(
        "database `{path}` has several hard links: each name would have a log of its own, and one \
         would lack the other's commits: keep one name"
    )]
    Linked { path: String },
    #[error(
        "database `{path}` is mounted alone: its log would stay behind in the container: mount its \
         directory"
    )]
    MountedAlone { path: String },
    #[error(
        "database `{path}` was moved or deleted while it is open: nothing is written any more: put \
         it back, or restart this program"
    )]
    Gone { path: String },
    #[error(
        "database `{path}` was replaced by another file while it is open: nothing is written any \
         more: restart all programs that use it"
    )]
    Replaced { path: String },
    #[error(
        "database `{path}` has version {found}, but this program knows versions up to {known} \
         only: use a newer program"
    )]
    Newer {
        path: String,
        found: i64,
        known: usize,
    },
    #[error("`{path}` is a database of another kind or program: name another file")]
    Foreign { path: String },
    #[error(
        "database `{path}` cannot keep a write-ahead log (journal mode `{mode}`): it must lie on a \
         local disk, in a writable directory"
    )]
    NoWriteAheadLog { path: String, mode: String },
    #[error("{}", describe(path, source))]
    Sql {
        path: String,
        source: rusqlite::Error,
    },
    #[error("the thread of database `{path}` could not be started")]
    Thread { path: String, source: io::Error },
    #[error("an operation on database `{path}` panicked")]
    Panicked { path: String },
    #[error("{what}")]
    Reopen { what: String, kind: ErrorKind },
}

impl SqliteError {
    pub(super) fn sql(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.display().to_string();
        Self::Sql { path, source }
    }

    pub(super) fn replaced(path: &Path) -> Self {
        let path = path.display().to_string();
        Self::Replaced { path }
    }

    pub(super) fn panicked(path: &Path) -> Self {
        let path = path.display().to_string();
        Self::Panicked { path }
    }

    /// Copies the error, for another write of the same transaction.
    pub(super) fn duplicate(&self) -> Self {
        match self {
            Self::Sql { path, source } => Self::Sql {
                path: path.clone(),
                source: duplicate(source),
            },
            // All other errors come from opening the file again, or from its place.
            other => Self::Reopen {
                what: other.to_string(),
                kind: other.kind(),
            },
        }
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoDirectory { .. } | Self::Missing { .. } => ErrorKind::NotFound,
            Self::SetAside { .. } => ErrorKind::Conflict,
            Self::Gone { .. } | Self::Replaced { .. } => ErrorKind::Closed,
            Self::DirectoryDenied { .. } => ErrorKind::Denied,
            Self::IsDirectory { .. }
            | Self::Linked { .. }
            | Self::MountedAlone { .. }
            | Self::Newer { .. }
            | Self::Foreign { .. }
            | Self::NoWriteAheadLog { .. } => ErrorKind::Invalid,
            Self::Create { .. } | Self::Metadata { .. } => ErrorKind::Unavailable,
            Self::Sql { source, .. } => sql_kind(source),
            Self::Thread { .. } => ErrorKind::Exhausted,
            Self::Panicked { .. } => ErrorKind::Internal,
            Self::Reopen { kind, .. } => *kind,
        }
    }
}

impl From<SqliteError> for Error {
    fn from(error: SqliteError) -> Self {
        let error = match error {
            SqliteError::Sql {
                source: rusqlite::Error::ToSqlConversionFailure(source),
                path,
            } => match source.downcast::<Self>() {
                Ok(refusal) => return *refusal,
                Err(source) => SqliteError::Sql {
                    source: rusqlite::Error::ToSqlConversionFailure(source),
                    path,
                },
            },
            other => other,
        };
        let (kind, message) = (error.kind(), error.to_string());
        let new = Self::new(kind, message);
        match error {
            SqliteError::DirectoryDenied { source, .. }
            | SqliteError::Create { source, .. }
            | SqliteError::Metadata { source, .. }
            | SqliteError::Thread { source, .. } => new.with_source(source),
            SqliteError::Sql { source, .. } => new.with_source(source),
            _ => new,
        }
    }
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

/// Returns an error with the same code and text.
fn duplicate(error: &rusqlite::Error) -> rusqlite::Error {
    match error {
        rusqlite::Error::SqliteFailure(code, words) => {
            rusqlite::Error::SqliteFailure(*code, words.clone())
        }
        rusqlite::Error::ToSqlConversionFailure(source) if source.is::<Error>() => {
            let refusal = source.downcast_ref::<Error>();
            refuse(refusal.expect("its type was compared").clone())
        }
        other => {
            let code = ffi::Error::new(ffi::SQLITE_ERROR);
            rusqlite::Error::SqliteFailure(code, Some(other.to_string()))
        }
    }
}

/// Returns whether another connection holds the file's lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

fn describe(path: &str, error: &rusqlite::Error) -> String {
    let what = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "is locked by another process for too long"
        }
        Some(ErrorCode::DiskFull) => "cannot be written: the disk is full",
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            "cannot be written: the file or its directory is read-only"
        }
        Some(ErrorCode::CannotOpen) => "cannot be opened: is it allowed to read and write it?",
        Some(ErrorCode::DatabaseCorrupt) => "is corrupt: put a good copy in its place",
        Some(ErrorCode::NotADatabase) => return format!("`{path}` is not a SQLite database"),
        Some(ErrorCode::SystemIoFailure) => {
            let code = error.sqlite_error().map(|error| error.extended_code);
            if matches!(
                code,
                Some(ffi::SQLITE_IOERR_WRITE | ffi::SQLITE_IOERR_SHMSIZE)
            ) {
                return format!(
                    "database `{path}` cannot be written: the disk reported an error, or the limit \
                     on the size of files is reached (`ulimit -f`)"
                );
            }
            "failed to be read or written: the disk reported an error"
        }
        Some(ErrorCode::TooBig) => "cannot hold a value that large",
        _ => "refused an operation",
    };
    format!("database `{path}` {what}")
}

fn sql_kind(error: &rusqlite::Error) -> ErrorKind {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::SystemIoFailure) => {
            ErrorKind::Unavailable
        }
        Some(ErrorCode::DiskFull) => ErrorKind::Exhausted,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            ErrorKind::Denied
        }
        Some(ErrorCode::NotADatabase | ErrorCode::TooBig) => ErrorKind::Invalid,
        _ => ErrorKind::Internal,
    }
}
