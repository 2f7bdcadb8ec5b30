//! The registry of this process's open databases: one connection and one thread per file.
//!
//! Two connections of one process would compete for the file's write lock by polling; writers of
//! one thread share a commit. The registry holds weak references, so it keeps no database open.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
};

use tokio::sync::mpsc;

use super::{Schema, thread::Job};
use crate::base::sync::lock;

/// A registered database.
#[derive(Debug)]
struct OpenDatabase {
    file: FileId,
    /// The schema's application id and number of migrations.
    kind: (i32, usize),
    jobs: mpsc::WeakSender<Job>,
}

/// Identifies a file independent of the spelling of its path. A replaced file at the same path has
/// another id.
#[derive(Debug, PartialEq, Eq)]
struct FileId {
    path: PathBuf,
    #[cfg(unix)]
    inode: (u64, u64),
}

static REGISTRY: Mutex<Vec<OpenDatabase>> = Mutex::new(Vec::new());

/// Returns the job channel of the thread that has the file open already.
pub(super) fn find(path: &Path, schema: Schema) -> Option<mpsc::Sender<Job>> {
    // If the metadata cannot be read, the file is not open, or opening it gives a better error.
    let file = FileId::of(path).ok()?;
    search(&registry(), &file, schema)
}

/// Registers a newly opened database; returns the job channel to use. If the file was opened twice
/// at the same time, that is the channel of the first thread.
pub(super) fn register(path: &Path, schema: Schema, jobs: mpsc::Sender<Job>) -> mpsc::Sender<Job> {
    let Ok(file) = FileId::of(path) else {
        return jobs;
    };
    let mut registry = registry();
    registry.retain(|open| open.jobs.strong_count() > 0);
    if let Some(first) = search(&registry, &file, schema) {
        return first;
    }
    registry.push(OpenDatabase {
        file,
        kind: kind(schema),
        jobs: jobs.downgrade(),
    });
    jobs
}

fn registry() -> MutexGuard<'static, Vec<OpenDatabase>> {
    lock(&REGISTRY)
}

fn search(registry: &[OpenDatabase], file: &FileId, schema: Schema) -> Option<mpsc::Sender<Job>> {
    let same = |open: &&OpenDatabase| open.file == *file && open.kind == kind(schema);
    let mut matching = registry.iter().filter(same);
    let jobs = matching.find_map(|open| open.jobs.upgrade());
    jobs.filter(|jobs| !jobs.is_closed())
}

fn kind(schema: Schema) -> (i32, usize) {
    (schema.application_id, schema.migrations.len())
}

impl FileId {
    /// Reads the metadata without opening the file: closing any descriptor of the file would drop
    /// all locks that this process has on it.
    fn of(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        #[cfg(unix)]
        let inode = {
            use std::os::unix::fs::MetadataExt as _;
            let metadata = fs::metadata(&path)?;
            (metadata.dev(), metadata.ino())
        };
        Ok(Self {
            path,
            #[cfg(unix)]
            inode,
        })
    }
}
