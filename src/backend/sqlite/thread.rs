//! The thread that owns a database's connection.
//!
//! Runs one job after the other. Writes that wait at the same time share a transaction and an fsync.
//! A job that panics closes the connection but does not end the thread; the next job opens the file
//! again, as after an I/O error.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, Mutex, mpsc as std_mpsc},
    thread::{self, ThreadId},
    time::Duration,
};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::{
    Missing, Schema,
    error::{self, is_io},
    open::{LOCK_TIMEOUT, keep_log, open, write_log_back},
    registry::{self, FileId},
};
use crate::{
    base::sync::lock,
    error::{Error, Result},
};

/// A job of the thread.
pub(super) enum Job {
    /// Any work; the closure sends its own result.
    Any(Box<dyn FnOnce(&mut Worker) + Send>),
    /// A write, whose result is sent when it is on disk.
    Write(Write),
}

/// One write of a transaction that several writes may share.
pub(super) struct Write {
    /// Whether the commit must wait for the disk.
    pub(super) is_synced: bool,
    pub(super) work: Work,
    /// Sends the error of the write or the commit.
    pub(super) answer: oneshot::Sender<Result<()>>,
}

type Work = Box<dyn FnOnce(&Transaction<'_>) -> rusqlite::Result<()> + Send>;

/// The maximum number of writes per transaction. All waiting writes share one, so that a slow disk
/// costs latency and not throughput. A write takes some ten microseconds, so later jobs wait about
/// ten milliseconds.
const MAX_GROUP: usize = 1024;

/// The capacity of a thread's job channel. Waiting writes share a commit; a longer queue would only
/// hide that the disk is too slow.
const JOBS: usize = 1024;

/// The longest wait for the end of a thread: for a lock, and for the writing of the log.
const CLOSING: Duration = LOCK_TIMEOUT.saturating_mul(2);

/// A thread's job channel. Dropping it ends the thread, and waits until the file is closed and its
/// log is written back: a copy of the file has all of it then. A disk that hangs is waited for 10 s.
#[derive(Debug)]
pub(super) struct Jobs {
    pub(super) sender: mpsc::Sender<Job>,
    /// Dropped after the sender, whose end ends the thread.
    _end: ThreadEnd,
}

#[derive(Debug)]
struct ThreadEnd {
    thread: ThreadId,
    /// Disconnected at the end of the thread. The lock makes it shareable.
    ended: Mutex<std_mpsc::Receiver<()>>,
}

/// The connection's owner.
#[derive(Debug)]
pub(crate) struct Worker {
    path: Arc<Path>,
    schema: Schema,
    file: FileId,
    connection: Option<Connection>,
    /// The log has no commit that may be in the system's cache only.
    log_is_durable: bool,
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        // Not where the last handle was in a job.
        if self.thread != thread::current().id() {
            let _ = lock(&self.ended).recv_timeout(CLOSING);
        }
    }
}

/// Starts the thread. It opens the file, reports the outcome on `opened`, and runs jobs until the
/// returned channel is dropped.
#[expect(clippy::disallowed_methods, reason = "the one thread of a database")]
pub(super) fn start(
    path: Arc<Path>,
    schema: Schema,
    missing: Missing,
    opened: oneshot::Sender<Result<()>>,
) -> Result<Jobs> {
    let owned = Arc::clone(&path);
    let (sender, mut jobs) = mpsc::channel(JOBS);
    let (running, ended) = std_mpsc::channel();
    let live = move || {
        let _running = running;
        let database = match open(&path, schema, missing) {
            Ok(database) => database,
            Err(error) => {
                let _ = opened.send(Err(error));
                return;
            }
        };
        let mut worker = Worker {
            path,
            schema,
            file: database.file,
            connection: Some(database.connection),
            log_is_durable: database.log_is_durable,
        };
        if opened.send(Ok(())).is_err() {
            return;
        }
        let mut next = None;
        while let Some(job) = next.take().or_else(|| jobs.blocking_recv()) {
            let run = || match job {
                Job::Any(job) => job(&mut worker),
                Job::Write(first) => {
                    let (group, other) = gather(first, &mut jobs);
                    next = other;
                    worker.write(group);
                }
            };
            // Unwind-safe: only the connection can be left in a broken state, and it is dropped.
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                worker.close();
            }
        }
    };
    let thread = thread::Builder::new()
        .name("reveille-sqlite".into())
        .spawn(live)
        .map_err(|source| error::no_thread(&owned, source))?;
    let end = ThreadEnd {
        thread: thread.thread().id(),
        ended: Mutex::new(ended),
    };
    Ok(Jobs { sender, _end: end })
}

/// Takes the waiting writes up to the first other job; returns both.
fn gather(first: Write, jobs: &mut mpsc::Receiver<Job>) -> (Vec<Write>, Option<Job>) {
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
    fn write(&mut self, group: Vec<Write>) {
        let mut failed: Vec<Option<Error>> = Vec::new();
        let path = Arc::clone(&self.path);
        let is_synced = group.iter().any(|write| write.is_synced);
        let parts = group.into_iter().map(|write| (write.work, write.answer));
        let (works, answers): (Vec<_>, Vec<_>) = parts.unzip();
        let mut log_is_durable = self.log_is_durable;
        let committed = self.with_connection(|connection| {
            if !log_is_durable {
                write_log_back(connection)?;
                log_is_durable = true;
            }
            if !is_synced {
                // The level can be changed outside of a transaction only.
                connection.pragma_update(None, "synchronous", "NORMAL")?;
            }
            // IMMEDIATE: a transaction that reads first and upgrades later fails at once, without
            // the busy handler, if another process wrote in between.
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let is_alone = works.len() == 1;
            for work in works {
                match is_alone {
                    true => work(&transaction)?,
                    false => failed.push(run_in_savepoint(&transaction, work, &path)?),
                }
            }
            transaction.commit()
        });
        self.log_is_durable = log_is_durable && self.connection.is_some();
        if !is_synced
            && let Some(connection) = &self.connection
            && connection
                .pragma_update(None, "synchronous", "FULL")
                .is_err()
        {
            // The next job opens the file with the right level.
            self.close();
        }
        let failed = failed.into_iter().chain(std::iter::repeat_with(|| None));
        for (answer, failed) in answers.into_iter().zip(failed) {
            let outcome = match (&committed, failed) {
                (_, Some(error)) => Err(error),
                (Ok(()), None) => Ok(()),
                (Err(error), None) => Err(error.clone()),
            };
            // The caller may no longer wait.
            let _ = answer.send(outcome);
        }
    }

    /// Runs the work on the connection; opens the file first if the last job closed it.
    ///
    /// Fails if the path does not lead to the open file any more. The check costs a microsecond.
    pub(super) fn with_connection<T>(
        &mut self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        self.file.check(&self.path)?;
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let opened = open(&self.path, self.schema, Missing::Refuse)?;
                if opened.file != self.file {
                    return Err(error::replaced(&self.path));
                }
                none.insert(opened.connection)
            }
        };
        work(connection).map_err(|source| {
            if is_io(&source) {
                self.close();
            }
            error::sql(&self.path, source)
        })
    }

    /// Closes the connection after a failure: its log may not be durable.
    fn close(&mut self) {
        self.connection = None;
        self.log_is_durable = false;
    }
}

impl Drop for Worker {
    /// The last connection to a file writes its log back and deletes it, by its path: where another
    /// file has taken the path, that would be the log of the other one.
    fn drop(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        if self.file.check(&self.path).is_err() {
            return;
        }
        // A program that only read may be the last one, after others that have written.
        if !self.log_is_durable
            && !self.file.is_used_by_others()
            && !registry::has_open(&self.path, self.schema)
        {
            self.log_is_durable = write_log_back(connection).is_ok();
        }
        if self.log_is_durable {
            keep_log(connection, false);
        }
    }
}

/// Does one of several writes of a transaction. If it fails, its effects are rolled back and its
/// error is returned.
///
/// # Errors
/// An error that ended the whole transaction.
fn run_in_savepoint(
    transaction: &Transaction<'_>,
    work: Work,
    path: &Path,
) -> rusqlite::Result<Option<Error>> {
    let run = |sql| transaction.prepare_cached(sql)?.execute([]).map(|_| ());
    run("SAVEPOINT part")?;
    // Unwind-safe: partial effects are rolled back.
    let failed = match catch_unwind(AssertUnwindSafe(|| work(transaction))) {
        Ok(Ok(())) => {
            run("RELEASE part")?;
            return Ok(None);
        }
        // Some errors, such as a full disk, have already ended the transaction.
        Ok(Err(error)) if is_io(&error) || transaction.is_autocommit() => return Err(error),
        Ok(Err(source)) => error::sql(path, source),
        Err(_) => error::panicked(path),
    };
    run("ROLLBACK TO part")?;
    run("RELEASE part")?;
    Ok(Some(failed))
}
