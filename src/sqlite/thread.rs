//! The thread that owns a database's connection.
//!
//! Runs one job after the other; writes that wait at the same time share a transaction, and so an
//! fsync. A job that panics takes its connection with it, not the thread; the next job finds the
//! file opened anew, as after an I/O error.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::{
    Schema,
    busy::Turns,
    error::{SqliteError, is_io},
    open::open,
};

/// What the thread is given to do.
pub(super) enum Job {
    /// Anything; it answers its caller by itself.
    Any(Box<dyn FnOnce(&mut Worker) + Send>),
    /// A write, which is answered when it is on the disk.
    Write(Box<dyn Write>),
}

/// A part of a transaction.
pub(super) trait Write: Send {
    /// Does the work; called once.
    fn work(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()>;

    /// Answers the caller: with what the work came to, where it was committed.
    fn answer(self: Box<Self>, committed: Result<(), SqliteError>);
}

/// Writes of one transaction: as many as wait, so that a slow disk costs latency and no throughput.
/// Each takes some ten microseconds, so what comes meanwhile waits for about ten milliseconds.
const GROUP: usize = 1024;

/// The connection's owner.
#[derive(Debug)]
pub(crate) struct Worker {
    path: Arc<Path>,
    schema: Schema,
    connection: Option<Connection>,
    turns: Turns,
}

/// Starts the thread, which opens the file, says so, and works until no sender of jobs is left.
pub(super) fn start(
    path: Arc<Path>,
    schema: Schema,
    opened: oneshot::Sender<Result<(), SqliteError>>,
    mut jobs: mpsc::Receiver<Job>,
) -> Result<(), SqliteError> {
    let shown = path.display().to_string();
    let live = move || {
        let connection = match open(&path, schema) {
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
            turns: Turns::default(),
        };
        if opened.send(Ok(())).is_err() {
            return;
        }
        let mut next = None;
        while let Some(job) = next.take().or_else(|| jobs.blocking_recv()) {
            let run = || match job {
                Job::Any(job) => job(&mut worker),
                Job::Write(first) => {
                    // Before the others are taken: those that come meanwhile share the commit.
                    worker.turns.leave_a_gap();
                    let (group, other) = gather(first, &mut jobs);
                    next = other;
                    worker.write(group);
                }
            };
            // Unwind-safe: the one thing that a job can leave half done is thrown away.
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

/// Takes the writes that wait already, and the job that ends them.
fn gather(
    first: Box<dyn Write>,
    jobs: &mut mpsc::Receiver<Job>,
) -> (Vec<Box<dyn Write>>, Option<Job>) {
    let mut group = vec![first];
    while group.len() < GROUP {
        match jobs.try_recv() {
            Ok(Job::Write(write)) => group.push(write),
            Ok(other) => return (group, Some(other)),
            Err(_) => break,
        }
    }
    (group, None)
}

impl Worker {
    /// Does the writes in one transaction. One that fails takes nothing of the others with it.
    fn write(&mut self, mut group: Vec<Box<dyn Write>>) {
        let mut failed: Vec<Option<SqliteError>> = Vec::new();
        let path = Arc::clone(&self.path);
        let mut turns = std::mem::take(&mut self.turns);
        let committed = self.connected(|connection| {
            // IMMEDIATE: a transaction that reads first and upgrades later fails at once, without
            // the busy time-out, where another process wrote in between.
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            turns.look(&transaction)?;
            match &mut group[..] {
                [alone] => alone.work(&transaction)?,
                group => {
                    for write in group {
                        failed.push(part(&transaction, &mut **write, &path)?);
                    }
                }
            }
            transaction.commit()
        });
        turns.committed();
        self.turns = turns;
        let failed = failed.into_iter().chain(std::iter::repeat_with(|| None));
        for (write, failed) in group.into_iter().zip(failed) {
            let outcome = match (&committed, failed) {
                (_, Some(error)) => Err(error),
                (Ok(()), None) => Ok(()),
                (Err(error), None) => Err(error.again()),
            };
            write.answer(outcome);
        }
    }

    /// Does the work on a connection that has not seen the disk fail.
    pub(super) fn connected<T>(
        &mut self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T, SqliteError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(open(&self.path, self.schema)?),
        };
        work(connection).map_err(|error| {
            if is_io(&error) {
                self.connection = None;
            }
            SqliteError::sql(&self.path, error)
        })
    }
}

/// Does one write among others of a transaction; returns why it failed, with nothing of it left
/// behind.
///
/// # Errors
/// What ended the whole transaction.
fn part(
    transaction: &Transaction<'_>,
    write: &mut dyn Write,
    path: &Path,
) -> rusqlite::Result<Option<SqliteError>> {
    let run = |sql| transaction.prepare_cached(sql)?.execute([]).map(|_| ());
    run("SAVEPOINT part")?;
    // Unwind-safe: what it left half done is rolled back.
    let failed = match catch_unwind(AssertUnwindSafe(|| write.work(transaction))) {
        Ok(Ok(())) => {
            run("RELEASE part")?;
            return Ok(None);
        }
        // A full disk, for one, has ended all of it already.
        Ok(Err(error)) if is_io(&error) || transaction.is_autocommit() => return Err(error),
        Ok(Err(error)) => SqliteError::sql(path, error),
        Err(_) => SqliteError::panicked(path),
    };
    run("ROLLBACK TO part")?;
    run("RELEASE part")?;
    Ok(Some(failed))
}
