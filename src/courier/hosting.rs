//! Opening a file as its host: the lock, the check for damage, and the compaction of old files.
//!
//! One process hosts a file: it notifies after crashes, maintains the file and hands messages over.
//! Other processes open the same file with [`QueueManager::open`]. The lock file `NAME.host` is locked by
//! the operating system, which releases it when the process dies. Its content says whether the last host
//! ended cleanly.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use rusqlite::Connection;

use super::{
    config::QueueManagerConfig,
    manager::{QueueManager, target_of},
};
use crate::{
    backend::sqlite::{check_file, with_suffix},
    error::{Error, ErrorKind, Result},
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

impl QueueManager {
    /// Opens the file as its host, and creates it if it is missing. After a crash the whole file is
    /// checked for damage, which takes about a second per GiB; after a clean end, a quick check runs.
    ///
    /// # Errors
    /// As [`QueueManager::open`]; [`ErrorKind::Busy`](crate::ErrorKind::Busy) if another process
    /// hosts the file; [`ErrorKind::Internal`](crate::ErrorKind::Internal) if it is damaged:
    /// nothing is changed, and the message says what to do.
    pub async fn host(path: impl Into<PathBuf>, config: QueueManagerConfig) -> Result<Self> {
        let path = target_of(path.into());
        let lock = HostLock::acquire(&path)?;
        if path.is_file()
            && let Some(problem) = check_file(&path, !lock.was_clean).await?
        {
            let message = format!(
                "queue file `{}` is damaged ({problem}): stop all programs that use it, then restore \
                 a copy, or save its content with `sqlite3 FILE .recover`",
                path.display()
            );
            return Err(Error::new(ErrorKind::Internal, message));
        }
        let manager = Self::open(path, config).await?;
        // A write first, so that the log of an earlier process is written back.
        manager.database().write(|_| Ok(())).await?;
        if let Err(error) = manager.database().run(compact_old_file).await {
            // The file is complete; it only keeps its size.
            let path = manager.path().display();
            tracing::warn!(%path, %error, "the queue file could not be made smaller");
        }
        manager.shared.hosted_with(lock);
        Ok(manager)
    }
}

/// Rewrites a file of an older version that is more than half free, so that it can be made smaller
/// in small steps from then on.
fn compact_old_file(connection: &mut Connection) -> rusqlite::Result<()> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let is_old = number("auto_vacuum")? == 0;
    if is_old && number("freelist_count")? * 2 > number("page_count")? {
        // The copy that VACUUM makes may be larger than the memory.
        connection.execute_batch(
            "PRAGMA temp_store = FILE; PRAGMA auto_vacuum = INCREMENTAL; VACUUM;
             PRAGMA temp_store = MEMORY",
        )?;
    }
    Ok(())
}
