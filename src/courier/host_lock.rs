//! The lock of the process that hosts a queue file, and the mark of a clean end.
//!
//! The lock file `NAME.host` is locked by the operating system, which releases it when the process
//! dies. Its content says whether the last host ended cleanly.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use crate::{
    backend::sqlite::damaged::with_suffix,
    error::{Error, ErrorKind, Result},
};

/// Held while the process hosts the file.
#[derive(Debug)]
pub(super) struct HostLock {
    file: File,
    /// Whether the last host ended cleanly.
    pub(super) was_clean: bool,
    /// Whether the file had a host before.
    pub(super) was_hosted: bool,
    /// Set when the file was opened without a fault: only then is the end a clean one.
    is_sound: bool,
}

const CLEAN: &str = "clean\n";
const IN_USE: &str = "in use\n";

impl HostLock {
    /// Locks the file for this process.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another process hosts the file.
    pub(super) fn acquire(path: &Path) -> Result<Self> {
        let lock_path = with_suffix(path, ".host");
        let fail = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    ErrorKind::Denied
                }
                _ => ErrorKind::Unavailable,
            };
            let shown = lock_path.display();
            let message = format!("lock file `{shown}` cannot be made or written: {error}");
            Error::new(kind, message).with_source(error)
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // Else any user of the machine could lock it, and no host would start.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&lock_path).map_err(fail)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let shown = path.display();
                let message = format!("queue file `{shown}` is hosted by another process");
                return Err(Error::new(ErrorKind::Busy, message));
            }
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        let mut mark = String::new();
        file.read_to_string(&mut mark).map_err(fail)?;
        let lock = Self {
            was_clean: mark == CLEAN,
            was_hosted: !mark.is_empty(),
            is_sound: false,
            file,
        };
        lock.write(IN_USE).map_err(fail)?;
        Ok(lock)
    }

    /// Marks the file as opened without a fault.
    pub(super) fn sound(mut self) -> Self {
        self.is_sound = true;
        self
    }

    fn write(&self, mark: &str) -> io::Result<()> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(mark.as_bytes())?;
        file.set_len(mark.len() as u64)?;
        file.sync_all()
    }
}

impl Drop for HostLock {
    fn drop(&mut self) {
        if self.is_sound {
            // Without the mark, the next start checks more than it must.
            let _ = self.write(CLEAN);
        }
    }
}
