//! The thread that owns a database's connection.
//!
//! Runs one job after the other. A job that panics takes its connection with it, not the thread;
//! the next job finds the file opened anew, as after an I/O error.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::{
    Schema,
    error::{SqliteError, is_io},
    open::open,
};

/// One job: it answers its caller by itself.
pub(super) type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// The connection's owner.
#[derive(Debug)]
pub(crate) struct Worker {
    path: Arc<Path>,
    schema: Schema,
    connection: Option<Connection>,
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
        };
        if opened.send(Ok(())).is_err() {
            return;
        }
        while let Some(job) = jobs.blocking_recv() {
            // Unwind-safe: the one thing that a job can leave half done is thrown away.
            if catch_unwind(AssertUnwindSafe(|| job(&mut worker))).is_err() {
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

impl Worker {
    /// Does the work on a connection that has not seen the disk fail.
    pub(super) fn run<T>(
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
