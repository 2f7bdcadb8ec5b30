//! The registry of this process's open databases: one connection and one thread per file.
//!
//! Two connections of one process would compete for the file's write lock by polling; writers of
//! one thread share a commit. The registry holds weak references, so it keeps no database open.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use tokio::sync::Mutex;

use super::{
    Schema,
    error::{self, failed},
    thread::Jobs,
};
use crate::error::{ErrorKind, Result};

/// Distinguishes a file from another one that takes its path later.
///
/// SQLite finds the log by the file's path, and the file by its descriptor. A file that was moved,
/// deleted or replaced while it is open is written on where nobody finds it. See
/// <https://www.sqlite.org/howtocorrupt.html>, section 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    #[cfg(unix)]
    inode: (u64, u64),
}

/// The databases that this process has open. Locked while one is opened, so that no file is opened
/// twice.
pub(super) static REGISTRY: Mutex<Registry> = Mutex::const_new(Registry(Vec::new()));

#[derive(Debug)]
pub(super) struct Registry(Vec<(Place, Weak<Jobs>)>);

/// The path, independent of its spelling, because SQLite's log is named after it; the file; and the
/// application's id.
type Place = (PathBuf, FileId, i32);

impl FileId {
    /// Reads the metadata without opening the file: closing any descriptor of the file would drop
    /// all locks that this process has on it.
    #[cfg(unix)]
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = fs::metadata(path)?;
        let inode = (metadata.dev(), metadata.ino());
        Ok(Self { inode })
    }

    #[cfg(not(unix))]
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|_| Self {})
    }

    /// Fails if the path does not lead to this file any more.
    pub(super) fn check(self, path: &Path) -> Result<()> {
        match Self::of(path) {
            Ok(found) if found == self => Ok(()),
            Ok(_) => Err(error::replaced(path)),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                let what = "was moved or deleted while it is open: nothing is written any more: put \
                            it back, or restart this program";
                Err(failed(ErrorKind::Closed, path, what))
            }
            Err(source) => Err(error::not_found_out(path, source)),
        }
    }

    /// Returns whether another process has the file open: each one has a lock on it. Known on Linux
    /// only.
    #[cfg(unix)]
    pub(super) fn is_used_by_others(self) -> bool {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let (inode, own) = (self.inode.1.to_string(), std::process::id().to_string());
        // `1: POSIX ADVISORY READ PROCESS MAJOR:MINOR:INODE START END` (proc_locks(5)).
        locks.lines().any(|line| {
            let mut fields = line.split_whitespace();
            let (process, file) = (fields.nth(4), fields.next());
            let number = file.and_then(|file| file.rsplit(':').next());
            process.is_some_and(|process| process != own) && number == Some(&inode)
        })
    }

    #[cfg(not(unix))]
    pub(super) fn is_used_by_others(self) -> bool {
        true
    }
}

/// Returns whether this process has the file open otherwise, or opens one just now.
pub(super) fn has_open(path: &Path, schema: Schema) -> bool {
    let registry = REGISTRY.try_lock();
    registry.map_or(true, |mut registry| registry.find(path, schema).is_some())
}

impl Registry {
    /// Returns the job channel of the thread that has the file open already.
    pub(super) fn find(&mut self, path: &Path, schema: Schema) -> Option<Arc<Jobs>> {
        self.0.retain(|(_, jobs)| jobs.strong_count() > 0);
        // If the metadata cannot be read, the file is not open, or opening it gives a better error.
        let place = place(path, schema).ok()?;
        let mut matching = self.0.iter().filter(|(open, _)| *open == place);
        let jobs = matching.find_map(|(_, jobs)| jobs.upgrade());
        jobs.filter(|jobs| !jobs.sender.is_closed())
    }

    pub(super) fn add(&mut self, path: &Path, schema: Schema, jobs: &Arc<Jobs>) {
        if let Ok(place) = place(path, schema) {
            self.0.push((place, Arc::downgrade(jobs)));
        }
    }
}

fn place(path: &Path, schema: Schema) -> io::Result<Place> {
    Ok((
        path.canonicalize()?,
        FileId::of(path)?,
        schema.application_id,
    ))
}
