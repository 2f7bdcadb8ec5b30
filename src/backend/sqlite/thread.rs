//! The thread that owns a database's connection.
//!
//! Runs one job after the other. Writes that wait at the same time share a transaction and an fsync.
//! A job that panics closes the connection but does not end the thread; the next job opens the file
//! again, as after an I/O error.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::{
    Schema,
    error::{SqliteError, is_io},
    lock_wait::WriteFairness,
    open::open_for_groups,
};

/// A job of the thread.
pub(super) enum Job {
    /// Any work; the closure sends its own result.
    Any(Box<dyn FnOnce(&mut Worker) + Send>),
    /// A write, whose result is sent when it is on disk.
    Write(Box<dyn GroupedWrite>),
}

/// One write of a transaction that several writes may share.
pub(super) trait GroupedWrite: Send {
    /// Whether the commit must wait for the disk.
    fn is_synced(&self) -> bool;

    /// Does the work; called once.
    fn work(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()>;

    /// Sends the caller the work's result, or the error of the write or the commit.
    fn answer(self: Box<Self>, committed: Result<(), SqliteError>);
}

/// The maximum number of writes per transaction. All waiting writes share one, so that a slow disk
/// costs latency and not throughput. A write takes some ten microseconds, so later jobs wait about
/// ten milliseconds.
const MAX_GROUP: usize = 1024;

/// The connection's owner.
#[derive(Debug)]
pub(crate) struct Worker {
    path: Arc<Path>,
    schema: Schema,
    connection: Option<Connection>,
    fairness: WriteFairness,
}

/// Starts the thread. It opens the file, reports the outcome on `opened`, and runs jobs until all
/// senders are dropped.
#[expect(clippy::disallowed_methods, reason = "the one thread of a database")]
pub(super) fn start(
    path: Arc<Path>,
    schema: Schema,
    opened: oneshot::Sender<Result<(), SqliteError>>,
    mut jobs: mpsc::Receiver<Job>,
) -> Result<(), SqliteError> {
    let shown = path.display().to_string();
    let live = move || {
        let connection = match open_for_groups(&path, schema) {
            Ok(connection) => connection,
            Err(error) => {
                let _ = opened.send(Err(error));
                return;
            }
        };
        let mut worker = Worker {
            path,
            schema,
            connection: Some(connection),
            fairness: WriteFairness::default(),
        };
        if opened.send(Ok(())).is_err() {
            return;
        }
        let mut next = None;
        while let Some(job) = next.take().or_else(|| jobs.blocking_recv()) {
            let run = || match job {
                Job::Any(job) => job(&mut worker),
                Job::Write(first) => {
                    // Before the other writes are taken: those that arrive during the gap share the
                    // commit.
                    worker.fairness.leave_a_gap();
                    let (group, other) = gather(first, &mut jobs);
                    next = other;
                    worker.write(group);
                }
            };
            // Unwind-safe: only the connection can be left in a broken state, and it is dropped.
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                worker.connection = None;
            }
        }
    };
    std::thread::Builder::new()
        .name("reveille-sqlite".into())
        .spawn(live)
        .map(drop)
        .map_err(|source| SqliteError::Thread {
            path: shown,
            source,
        })
}

/// Takes the waiting writes up to the first other job; returns both.
fn gather(
    first: Box<dyn GroupedWrite>,
    jobs: &mut mpsc::Receiver<Job>,
) -> (Vec<Box<dyn GroupedWrite>>, Option<Job>) {
    let mut group = vec![first];
    while group.len() < MAX_GROUP {
        match jobs.try_recv() {
            Ok(Job::Write(write)) => group.push(write),
            Ok(other) => return (group, Some(other)),
            Err(_) => break,
        }
    }
    (group, None)
}

impl Worker {
    /// Does the writes in one transaction. A failed write does not affect the others.
    fn write(&mut self, mut group: Vec<Box<dyn GroupedWrite>>) {
        let mut failed: Vec<Option<SqliteError>> = Vec::new();
        let path = Arc::clone(&self.path);
        let mut fairness = std::mem::take(&mut self.fairness);
        let is_synced = group.iter().any(|write| write.is_synced());
        let committed = self.with_connection(|connection| {
            if !is_synced {
                // The level can be changed outside of a transaction only.
                connection.pragma_update(None, "synchronous", "NORMAL")?;
            }
            // IMMEDIATE: a transaction that reads first and upgrades later fails at once, without
            // the busy handler, if another process wrote in between.
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            fairness.detect_writers(&transaction)?;
            match &mut group[..] {
                [alone] => alone.work(&transaction)?,
                group => {
                    for write in group {
                        failed.push(run_in_savepoint(&transaction, &mut **write, &path)?);
                    }
                }
            }
            transaction.commit()
        });
        fairness.committed();
        self.fairness = fairness;
        if !is_synced {
            self.restore_level();
        }
        let failed = failed.into_iter().chain(std::iter::repeat_with(|| None));
        for (write, failed) in group.into_iter().zip(failed) {
            let outcome = match (&committed, failed) {
                (_, Some(error)) => Err(error),
                (Ok(()), None) => Ok(()),
                (Err(error), None) => Err(error.duplicate()),
            };
            write.answer(outcome);
        }
    }

    /// Makes commits wait for the disk again. All jobs but a group of unsynced writes rely on it.
    fn restore_level(&mut self) {
        let restored = self.connection.as_ref().map_or(Ok(()), |connection| {
            connection.pragma_update(None, "synchronous", "FULL")
        });
        if restored.is_err() {
            // The next job opens the file with the right level.
            self.connection = None;
        }
    }

    /// Runs the work on the connection; opens the file first if the last job closed it.
    pub(super) fn with_connection<T>(
        &mut self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T, SqliteError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(open_for_groups(&self.path, self.schema)?),
        };
        work(connection).map_err(|error| {
            if is_io(&error) {
                self.connection = None;
            }
            SqliteError::sql(&self.path, error)
        })
    }
}

/// Does one of several writes of a transaction. If it fails, its effects are rolled back and its
/// error is returned.
///
/// # Errors
/// An error that ended the whole transaction.
fn run_in_savepoint(
    transaction: &Transaction<'_>,
    write: &mut dyn GroupedWrite,
    path: &Path,
) -> rusqlite::Result<Option<SqliteError>> {
    let run = |sql| transaction.prepare_cached(sql)?.execute([]).map(|_| ());
    run("SAVEPOINT part")?;
    // Unwind-safe: partial effects are rolled back.
    let failed = match catch_unwind(AssertUnwindSafe(|| write.work(transaction))) {
        Ok(Ok(())) => {
            run("RELEASE part")?;
            return Ok(None);
        }
        // Some errors, such as a full disk, have already ended the transaction.
        Ok(Err(error)) if is_io(&error) || transaction.is_autocommit() => return Err(error),
        Ok(Err(error)) => SqliteError::sql(path, error),
        Err(_) => SqliteError::panicked(path),
    };
    run("ROLLBACK TO part")?;
    run("RELEASE part")?;
    Ok(Some(failed))
}
