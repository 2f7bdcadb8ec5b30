//! SQLite databases: opened with care, and used by one thread of their own.
//!
//! A [`Database`] is a file that several processes of one machine may have open at once; within one
//! process all handles of a file share one thread and one connection. When a write has returned, it is on the disk (`synchronous = FULL`). Callers hand over closures through
//! a bounded channel and wait for the answer; a full channel makes them wait for their turn. After
//! an I/O error the file is opened anew, because what a failed fsync left behind in the cache is not
//! to be trusted. Knows nothing of what is stored: a [`Schema`] says that.

mod busy;
mod error;
mod open;
mod shared;
mod thread;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use rusqlite::{Connection, Transaction};
use tokio::sync::{mpsc, oneshot};

use self::{
    error::SqliteError,
    thread::{Job, Write},
};
use crate::error::Result;

/// An open database file; clones, and other handles of the file, share its thread, which ends with
/// the last of them.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    path: std::sync::Arc<Path>,
    jobs: mpsc::Sender<Job>,
}

/// What a database holds: its kind, and the steps that lead from an empty file to today's form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schema {
    /// Tells the database files of this program apart (`PRAGMA application_id`).
    pub(crate) application_id: i32,
    /// SQL that leads from version n to n + 1 (`PRAGMA user_version`). Only ever appended to.
    pub(crate) migrations: &'static [&'static str],
}

/// A write, and whom to answer.
struct Pending<T, F> {
    work: Option<F>,
    value: Option<T>,
    answer: oneshot::Sender<Result<T, SqliteError>>,
}

/// Jobs that wait for the thread. Writes among them share a commit; more would only hide that the
/// disk does not keep up.
const JOBS: usize = 1024;

impl Database {
    /// Opens the file, makes it where it is missing, and brings it to the schema's version. Where
    /// this process has it open already, that handle is shared.
    ///
    /// # Errors
    /// A message that names the file and says what is wrong with it: no directory, not allowed,
    /// not a database, another program's, of a newer version, locked, corrupt.
    pub(crate) async fn open(path: impl Into<PathBuf>, schema: Schema) -> Result<Self> {
        let path: PathBuf = path.into();
        if let Some(jobs) = shared::find(&path, schema) {
            let path = path.into();
            return Ok(Self { path, jobs });
        }
        let Self { path, jobs } = Self::open_alone(path, schema).await?;
        let jobs = shared::add(&path, schema, jobs);
        Ok(Self { path, jobs })
    }

    /// Opens the file with a thread and a connection of its own, as another process has them.
    pub(crate) async fn open_alone(path: impl Into<PathBuf>, schema: Schema) -> Result<Self> {
        let path: std::sync::Arc<Path> = path.into().into();
        let (jobs, receiver) = mpsc::channel(JOBS);
        let (opened, outcome) = oneshot::channel();
        thread::start(std::sync::Arc::clone(&path), schema, opened, receiver)?;
        match outcome.await {
            Ok(Ok(())) => Ok(Self { path, jobs }),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(SqliteError::panicked(&path).into()),
        }
    }

    /// Returns the file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on the database's thread and returns what it returned.
    ///
    /// # Errors
    /// What SQLite refused, in words that name the file.
    ///
    /// # Cancel safety
    /// Once its turn has come, the work is done whether or not anybody waits for the answer.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (answer, outcome) = oneshot::channel();
        let job = Job::Any(Box::new(move |worker| {
            // The caller may have gone; the work is done all the same.
            let _ = answer.send(worker.connected(work));
        }));
        self.hand_over(job, outcome).await
    }

    /// Runs `work` in a transaction that takes the write lock at once, and commits it; an error
    /// rolls it back. When this returns, what was written is on the disk. Writes that wait at the
    /// same time share a transaction; what one of them does wrong costs the others nothing.
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
        let (answer, outcome) = oneshot::channel();
        let job = Job::Write(Box::new(Pending {
            work: Some(work),
            value: None,
            answer,
        }));
        self.hand_over(job, outcome).await
    }

    async fn hand_over<T>(
        &self,
        job: Job,
        outcome: oneshot::Receiver<Result<T, SqliteError>>,
    ) -> Result<T> {
        let gone = || SqliteError::panicked(&self.path);
        self.jobs.send(job).await.map_err(|_| gone())?;
        Ok(outcome.await.map_err(|_| gone())??)
    }
}

impl<T, F> Write for Pending<T, F>
where
    T: Send,
    F: FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send,
{
    fn work(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let work = self.work.take().expect("called once");
        self.value = Some(work(transaction)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), SqliteError>) {
        let value = self.value;
        // The caller may have gone; the work is done all the same.
        let _ = self
            .answer
            .send(committed.map(|()| value.expect("what was committed was done")));
    }
}
