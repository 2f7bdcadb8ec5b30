//! The databases that this process has open: one connection and one thread for each file.
//!
//! Two connections of one process would compete for the file's write lock by asking again and
//! again; writers of one thread share a commit. The list holds no database open: it knows of those
//! that others hold.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc;

use super::{Schema, thread::Job};

/// A database that was opened.
#[derive(Debug)]
struct Open {
    file: FileId,
    /// Of the schema: which kind of database, and how many migrations it knows.
    kind: (i32, usize),
    jobs: mpsc::WeakSender<Job>,
}

/// Which file is meant, whatever the path looks like. Another file at the same path is another one.
#[derive(Debug, PartialEq, Eq)]
struct FileId {
    path: PathBuf,
    #[cfg(unix)]
    inode: (u64, u64),
}

static ALL: Mutex<Vec<Open>> = Mutex::new(Vec::new());

/// Returns the thread that has the file open already.
pub(super) fn find(path: &Path, schema: Schema) -> Option<mpsc::Sender<Job>> {
    // A file that cannot be looked at is not open, or has to be opened to say what is wrong.
    let file = FileId::of(path).ok()?;
    search(&all(), &file, schema)
}

/// Notes a database that was just opened; returns the thread to use, which is another one where the
/// file was opened twice at the same time.
pub(super) fn add(path: &Path, schema: Schema, jobs: mpsc::Sender<Job>) -> mpsc::Sender<Job> {
    let Ok(file) = FileId::of(path) else {
        return jobs;
    };
    let mut all = all();
    all.retain(|open| open.jobs.strong_count() > 0);
    if let Some(first) = search(&all, &file, schema) {
        return first;
    }
    all.push(Open {
        file,
        kind: kind(schema),
        jobs: jobs.downgrade(),
    });
    jobs
}

fn all() -> MutexGuard<'static, Vec<Open>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn search(all: &[Open], file: &FileId, schema: Schema) -> Option<mpsc::Sender<Job>> {
    let same = |open: &&Open| open.file == *file && open.kind == kind(schema);
    let jobs = all.iter().filter(same).find_map(|open| open.jobs.upgrade());
    jobs.filter(|jobs| !jobs.is_closed())
}

fn kind(schema: Schema) -> (i32, usize) {
    (schema.application_id, schema.migrations.len())
}

impl FileId {
    /// Looks at the file without opening it: closing any descriptor of it would drop all locks that
    /// this process has on it.
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
