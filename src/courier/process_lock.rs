//! The lock by which the host knows that a process lives.
//!
//! A process that receives holds a lock on a file beside the queue file. The system ends the lock
//! with the process, however that ends.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use super::message::{MessageId, new_id};
use crate::{
    backend::sqlite::damaged::with_suffix,
    error::{Error, ErrorKind, Result},
};

/// The lock of this process on its file, which is removed on drop.
#[derive(Debug)]
pub(super) struct ProcessLock {
    pub(super) id: [u8; 16],
    path: PathBuf,
    _file: File,
}

pub(super) const SUFFIX: &str = ".process-";
/// The end of the name of a file that is not locked yet.
pub(super) const NEW: &str = ".new";

impl ProcessLock {
    /// Creates and locks the file of this process for the queue file `path`.
    pub(super) fn acquire(path: &Path) -> Result<Self> {
        let id = new_id()?;
        let name = MessageId::from_bytes(id).to_string();
        let path = with_suffix(path, &format!("{SUFFIX}{name}"));
        // Under its name the file is locked from the start.
        let new = with_suffix(&path, NEW);
        let fail = |error: io::Error| {
            let message = format!("lock file `{}` cannot be made: {error}", path.display());
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
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

/// Returns whether a process has ended.
pub(super) fn is_dead(path: &Path, process: [u8; 16]) -> io::Result<bool> {
    let name = MessageId::from_bytes(process).to_string();
    is_unlocked(&with_suffix(path, &format!("{SUFFIX}{name}")))
}

/// Returns whether a file is missing or no process locks it.
pub(super) fn is_unlocked(path: &Path) -> io::Result<bool> {
    match File::open(path) {
        Ok(file) => match file.try_lock() {
            Ok(()) => Ok(true),
            Err(fs::TryLockError::WouldBlock) => Ok(false),
            Err(fs::TryLockError::Error(error)) => Err(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        // Another user's: its process counts as alive, and its messages return by their time-outs.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error),
    }
}
