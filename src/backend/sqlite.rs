//! SQLite databases, each used by a dedicated thread.
//!
//! Several processes of one machine may have the file of a [`Database`] open at the same time.
//! Within one process all handles of a file share one thread and one connection. When a write has
//! returned, it is on disk (`synchronous = FULL`). Callers send closures through a bounded channel
//! and wait for the result; if the channel is full, they wait for room. After an I/O error the file
//! is opened again, because the cache is not reliable after a failed fsync. The tables are defined
//! by a [`Schema`] of the caller.

mod check;
mod error;
mod open;
mod registry;
mod thread;

#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{Connection, Transaction};
use tokio::sync::oneshot;

use self::thread::{Job, Jobs, Write};
pub(crate) use self::{check::check_file, error::refuse, open::open_to_write};
use crate::error::{Error, Result};

/// An open database file; clones, and other handles of the file, share its thread.
///
/// The last handle closes the file when it is dropped, and waits for that: the log is written back
/// then, so that the file alone is complete, unless another process has it open.
///
/// If the file is moved, deleted or replaced while it is open, each call fails with
/// [`ErrorKind::Closed`](crate::ErrorKind::Closed) from then on.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    path: Arc<Path>,
    jobs: Arc<Jobs>,
}

/// What to do about a file that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Fail.
    Refuse,
    /// Create it, but not beside a damaged file that was set aside: an operator decides then.
    Create,
    /// Create it.
    CreateAnyway,
}

/// A kind of database, and its tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schema {
    /// Identifies the kind of database file (`PRAGMA application_id`).
    pub(crate) application_id: i32,
    /// The version of the tables (`PRAGMA user_version`).
    pub(crate) version: i32,
    /// The SQL that creates the tables.
    pub(crate) tables: &'static str,
}

/// The mark in the name of a damaged file that was set aside.
pub(crate) const DAMAGED: &str = ".damaged-";

impl Database {
    /// Opens the file. If this process has it open already, the handles share one thread.
    ///
    /// # Errors
    /// A message with the file's path and the reason: missing, no directory, no permission, not a
    /// database, of another program or version, locked, corrupt, several hard links, mounted alone.
    pub(crate) async fn open(
        path: impl Into<PathBuf>,
        schema: Schema,
        missing: Missing,
    ) -> Result<Self> {
        let path: PathBuf = path.into();
        let mut registry = registry::REGISTRY.lock().await;
        if let Some(jobs) = registry.find(&path, schema) {
            let path = path.into();
            return Ok(Self { path, jobs });
        }
        let opened = Self::open_alone(path, schema, missing).await?;
        registry.add(&opened.path, schema, &opened.jobs);
        Ok(opened)
    }

    /// Opens the file with a separate thread and connection, like another process.
    pub(crate) async fn open_alone(
        path: impl Into<PathBuf>,
        schema: Schema,
        missing: Missing,
    ) -> Result<Self> {
        let path: Arc<Path> = path.into().into();
        let (opened, outcome) = oneshot::channel();
        let jobs = thread::start(Arc::clone(&path), schema, missing, opened)?;
        match outcome.await {
            Ok(Ok(())) => Ok(Self {
                path,
                jobs: Arc::new(jobs),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(error::panicked(&path)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on the database's thread and returns its result.
    ///
    /// # Errors
    /// The error of SQLite, with the file's path.
    ///
    /// # Cancel safety
    /// Once queued, the work is done even if the caller no longer waits.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (answer, outcome) = oneshot::channel();
        let job = Job::Any(Box::new(move |worker| {
            // The caller may no longer wait.
            let _ = answer.send(worker.with_connection(work));
        }));
        self.hand_over(job, outcome).await
    }

    /// Runs `work` in a transaction that takes the write lock at once, and commits it. An error
    /// rolls it back. When this returns, the write is on disk. Writes that wait at the same time
    /// share a transaction; a failed write does not affect the others.
    ///
    /// # Errors
    /// As [`Database::run`].
    ///
    /// # Cancel safety
    /// As [`Database::run`].
    pub(crate) async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let (job, outcome, value) = queued_write(work, true);
        self.hand_over(job, outcome).await?;
        value.await.map_err(|_| error::panicked(&self.path))
    }

    /// As [`Database::write`], but does not wait for the disk: a power loss may undo the write, a
    /// crash of the process may not. The next synced write makes it durable too.
    ///
    /// # Errors
    /// As [`Database::run`].
    ///
    /// # Cancel safety
    /// As [`Database::run`].
    pub(crate) async fn write_unsynced<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let (job, outcome, value) = queued_write(work, false);
        self.hand_over(job, outcome).await?;
        value.await.map_err(|_| error::panicked(&self.path))
    }

    /// Queues an unsynced write without waiting for it. Returns whether there was room for it. Needs
    /// no runtime.
    pub(crate) fn queue_unsynced<F>(&self, work: F) -> bool
    where
        F: FnOnce(&Transaction<'_>) -> rusqlite::Result<()> + Send + 'static,
    {
        let (job, ..) = queued_write(work, false);
        self.jobs.sender.try_send(job).is_ok()
    }

    /// Runs a long read on a thread and a connection for this call only, so that no other job
    /// waits for it.
    ///
    /// # Errors
    /// As [`Database::run`].
    pub(crate) async fn run_apart<T, F>(&self, schema: Schema, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let apart = Self::open_alone(&*self.path, schema, Missing::Refuse).await?;
        apart.run(work).await
    }

    /// Converts an error of SQLite.
    pub(crate) fn error(&self, error: rusqlite::Error) -> Error {
        error::sql(&self.path, error)
    }

    async fn hand_over<T>(&self, job: Job, outcome: oneshot::Receiver<Result<T>>) -> Result<T> {
        let gone = || error::panicked(&self.path);
        self.jobs.sender.send(job).await.map_err(|_| gone())?;
        outcome.await.map_err(|_| gone())?
    }
}

/// Returns the directory of a file.
pub(crate) fn directory_of(path: &Path) -> &Path {
    let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
    directory.unwrap_or_else(|| Path::new("."))
}

/// Appends to the file's name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the job of a write, and the receivers of the commit's outcome and of the work's value.
fn queued_write<T, F>(
    work: F,
    is_synced: bool,
) -> (Job, oneshot::Receiver<Result<()>>, oneshot::Receiver<T>)
where
    T: Send + 'static,
    F: FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
{
    let (answer, outcome) = oneshot::channel();
    let (result, value) = oneshot::channel();
    let job = Job::Write(Write {
        is_synced,
        work: Box::new(move |transaction| {
            // The caller may no longer wait.
            let _ = result.send(work(transaction)?);
            Ok(())
        }),
        answer,
    });
    (job, outcome, value)
}
