//! The local part on real files: transactions, notification, retention, damage, status.

mod hosting;
mod notifying;
mod retention;
mod status;
mod transactions;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;

use super::*;
use crate::{
    error::{Error, ErrorKind, Result},
    queue::{NewMessage, WorkQueue, sqlite::clock},
    types::{Accepted, Notification, Notifier},
};

/// A file in a directory that is removed at the end.
#[derive(Debug)]
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("queues.db")
    }

    /// Opens the file with two queues.
    async fn open(&self) -> QueueManager {
        self.open_with(QueueManagerConfig::default()).await
    }

    /// The same; what becomes visible is told to this relay.
    async fn open_notifying(&self, relay: &Arc<impl Notifier + 'static>) -> QueueManager {
        let relay = Arc::clone(relay) as Arc<dyn Notifier>;
        self.open().await.with_notifier(relay)
    }

    async fn open_with(&self, config: QueueManagerConfig) -> QueueManager {
        let manager = QueueManager::open(self.path(), config).await.expect("open");
        for queue in ["orders", "invoices"] {
            manager
                .queue(queue)
                .expect("a name")
                .create()
                .await
                .expect("created");
        }
        manager
    }
}

async fn send(manager: &QueueManager, to: &str, bodies: &[&str]) -> Vec<MessageId> {
    let to = manager.destination(to).expect("a destination");
    let mut transaction = manager.begin();
    let mut ids = Vec::new();
    for body in bodies {
        ids.push(transaction.send(&to, body.to_string()).expect("sent"));
    }
    transaction.commit().await.expect("committed");
    ids
}

/// Receives and commits all visible messages.
async fn drain(manager: &QueueManager, queue: &str) -> Vec<String> {
    let mut bodies = Vec::new();
    loop {
        let mut transaction = manager.begin();
        let got = transaction.receive_many(queue, 32).await.expect("received");
        transaction.commit().await.expect("committed");
        if got.is_empty() {
            return bodies;
        }
        bodies.extend(got.iter().map(text));
    }
}

fn text(message: &ReceivedMessage) -> String {
    String::from_utf8(message.body.to_vec()).expect("text")
}

/// Returns a number that SQL selects.
async fn number(manager: &QueueManager, sql: &'static str) -> i64 {
    let read = manager
        .database()
        .run(move |connection| connection.query_row(sql, (), |row| row.get(0)));
    read.await.expect(sql)
}

async fn execute(manager: &QueueManager, sql: &'static str) {
    let done = manager
        .database()
        .write(move |transaction| transaction.execute_batch(sql));
    done.await.expect(sql);
}

/// Moves the file's clock forward.
async fn move_clock(manager: &QueueManager, hours: i64) {
    let micros = hours * 3_600_000_000;
    let moved = manager.database().write(move |transaction| {
        // The file's clock goes on from what it has seen.
        let now = clock::advance_exactly(transaction)?;
        let update = "UPDATE clock SET seen = ?1, ahead = ahead + ?2";
        transaction.execute(update, [now + micros, micros])
    });
    moved.await.expect("moved");
}

/// Records notifications, and fails on demand.
#[derive(Debug, Default)]
struct Recorder {
    notified: Mutex<Vec<(String, u64, u64)>>,
    fails: std::sync::atomic::AtomicBool,
    /// The relay refuses each request that names this queue.
    refuses: Mutex<Option<String>>,
}

#[async_trait]
impl Notifier for Recorder {
    async fn notify_each(&self, notifications: Vec<Notification>) -> Result<Vec<Result<Accepted>>> {
        if self.fails.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "the relay is away"));
        }
        let refuses = self.refuses.lock().expect("no panic").clone();
        let mut notified = self.notified.lock().expect("no panic");
        let results = notifications.iter().map(|one| {
            let name = one.queue.to_string();
            if refuses.as_ref() == Some(&name) {
                return Err(Error::new(ErrorKind::Denied, "not allowed"));
            }
            notified.push((name, one.messages, one.payload_size));
            Ok(Accepted::default())
        });
        Ok(results.collect())
    }
}

impl Recorder {
    fn taken(&self) -> Vec<(String, u64, u64)> {
        std::mem::take(&mut *self.notified.lock().expect("no panic"))
    }

    /// Waits until something was notified.
    async fn next(&self) -> Vec<(String, u64, u64)> {
        for _ in 0..2_000 {
            let taken = self.taken();
            if !taken.is_empty() {
                return taken;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("nothing was notified");
    }
}

fn recorder() -> Arc<Recorder> {
    Arc::new(Recorder::default())
}
