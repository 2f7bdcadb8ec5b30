//! The registry of this process's open databases: one connection and one thread per file.
//!
//! Two connections of one process would compete for the file's write lock by polling; writers of
//! one thread share a commit. The registry holds weak references, so it keeps no database open.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use super::{Schema, place::FileId, thread::Jobs};
use crate::base::sync::lock;

/// A registered database.
#[derive(Debug)]
struct OpenDatabase {
    /// Independent of the spelling of the path. SQLite's log is named after the path.
    path: PathBuf,
    file: FileId,
    /// The schema's application id and number of migrations.
    kind: (i32, usize),
    jobs: Weak<Jobs>,
}

static REGISTRY: Mutex<Vec<OpenDatabase>> = Mutex::new(Vec::new());

/// Returns the job channel of the thread that has the file open already.
pub(super) fn find(path: &Path, schema: Schema) -> Option<Arc<Jobs>> {
    // If the metadata cannot be read, the file is not open, or opening it gives a better error.
    let (path, file) = identify(path)?;
    search(&registry(), &path, file, schema)
}

/// Registers a newly opened database; returns the job channel to use. If the file was opened twice
/// at the same time, that is the channel of the first thread.
pub(super) fn register(path: &Path, schema: Schema, jobs: Arc<Jobs>) -> Arc<Jobs> {
    let Some((path, file)) = identify(path) else {
        return jobs;
    };
    let mut registry = registry();
    registry.retain(|open| open.jobs.strong_count() > 0);
    let first = search(&registry, &path, file, schema);
    if first.is_none() {
        registry.push(OpenDatabase {
            path,
            file,
            kind: kind(schema),
            jobs: Arc::downgrade(&jobs),
        });
    }
    // The second thread's end is awaited without the lock.
    drop(registry);
    first.unwrap_or(jobs)
}

fn registry() -> MutexGuard<'static, Vec<OpenDatabase>> {
    lock(&REGISTRY)
}

fn search(
    registry: &[OpenDatabase],
    path: &Path,
    file: FileId,
    schema: Schema,
) -> Option<Arc<Jobs>> {
    let same =
        |open: &&OpenDatabase| open.path == path && open.file == file && open.kind == kind(schema);
    let mut matching = registry.iter().filter(same);
    let jobs = matching.find_map(|open| open.jobs.upgrade());
    jobs.filter(|jobs| !jobs.is_closed())
}

fn kind(schema: Schema) -> (i32, usize) {
    (schema.application_id, schema.migrations.len())
}

fn identify(path: &Path) -> Option<(PathBuf, FileId)> {
    Some((path.canonicalize().ok()?, FileId::of(path)?))
}
