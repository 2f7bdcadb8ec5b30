//! Opening a file as its host: the lock, and the check for damage.
//!
//! One process hosts a file: it notifies after crashes, maintains the file and hands messages over.
//! Other processes open the same file with [`QueueManager::open`]. The lock file `NAME.host` is locked by
//! the operating system, which releases it when the process dies. Its content says whether the last host
//! ended cleanly.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use super::{
    config::QueueManagerConfig,
    manager::{QueueManager, target_of},
};
use crate::{
    backend::sqlite::{DAMAGED, check_file, with_suffix},
    base::clock::{micros, wall},
    error::{Error, ErrorKind, Result},
    queue::sqlite::schema::SCHEMA,
};

/// Held while the process hosts the file.
#[derive(Debug)]
pub(super) struct HostLock {
    file: File,
    /// Whether the last host ended cleanly.
    pub(super) was_clean: bool,
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
            is_sound: false,
            file,
        };
        lock.write(IN_USE).map_err(fail)?;
        Ok(lock)
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

impl QueueManager {
    /// Opens the file as its host, and creates it if it is missing. After a crash the whole file is
    /// checked for damage, which takes about a second per GiB; after a clean end, a quick check runs.
    ///
    /// # Errors
    /// As [`QueueManager::open`]; [`ErrorKind::Busy`](crate::ErrorKind::Busy) if another process
    /// hosts the file; [`ErrorKind::Internal`](crate::ErrorKind::Internal) if it is damaged: then
    /// it was renamed to `NAME.damaged-TIME` with its log, and the message says what to do.
    pub async fn host(path: impl Into<PathBuf>, config: QueueManagerConfig) -> Result<Self> {
        let path = target_of(path.into());
        let mut lock = HostLock::acquire(&path)?;
        if path.is_file()
            && let Some(problem) = check_file(&path, !lock.was_clean).await?
            && has_our_header(&path)
        {
            return Err(set_aside(&path, &problem));
        }
        let manager = Self::open(path, config).await?;
        // A write first, so that the log of an earlier process is written back.
        manager.database().write(|_| Ok(())).await?;
        lock.is_sound = true;
        // Held until the last clone is dropped. Not set before: this call has opened the file.
        let _ = manager.shared.host.set(lock);
        Ok(manager)
    }
}

/// Returns whether a damaged file was a queue file: a wrong path must not rename another program's
/// file.
fn has_our_header(path: &Path) -> bool {
    let mut header = [0; 72];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    let id = SCHEMA.application_id.to_be_bytes();
    read.is_ok() && header.starts_with(b"SQLite format 3\0") && header[68..] == id
}

/// Renames a damaged file with its log; returns the error that says so.
fn set_aside(path: &Path, problem: &str) -> Error {
    let aside = with_suffix(path, &format!("{DAMAGED}{}", micros(wall()) / 1_000_000));
    // The file first: without its log it would look complete and lack the newest commits.
    let renamed = ["", "-wal", "-shm"].into_iter().try_for_each(|suffix| {
        match fs::rename(with_suffix(path, suffix), with_suffix(&aside, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    });
    let done = match renamed {
        Ok(()) => format!("was set aside as `{}`", aside.display()),
        Err(error) => format!("could not be renamed: {error}"),
    };
    let message = format!(
        "queue file `{}` is damaged ({problem}) and {done}: stop all programs that use it, then \
         restore a copy, or save its content with `sqlite3 FILE .recover`",
        path.display()
    );
    Error::new(ErrorKind::Internal, message)
}
