//! Queues in a SQLite file: embedded, durable, and shared by several processes of one machine.
//!
//! When a call has returned, its effect is on disk. Calls that wait at the same time share a commit,
//! so single deletes do not cost one fsync each. Time is the machine's wall clock; if that is set
//! back, the file's own clock continues ([`clock`]).

pub(crate) mod checksum;
pub(crate) mod clock;
pub(crate) mod put;
pub(crate) mod schema;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use self::{clock::Micros, schema::SCHEMA};
use super::{
    Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue,
    invalid_receipt, local_group, missing_queue,
};
use crate::{
    backend::sqlite::{Database, Missing, refuse},
    base::fnv::fnv1a,
    error::Result,
    types::{GroupName, QueueAddress},
};

/// A queue in a SQLite file. All handles of a process on one file share one thread.
#[derive(Debug, Clone)]
pub struct SqliteQueue {
    database: Database,
    /// Distinguishes the file from others with a queue under the same address.
    identity: u64,
    address: QueueAddress,
    /// Set for a queue of a queue manager: puts note that the relay must be notified.
    observer: Option<Arc<dyn PutObserver>>,
}

/// Is told after each commit of a put, so that it notifies the relay of the noted messages.
pub(crate) trait PutObserver: fmt::Debug + Send + Sync + 'static {
    /// Must not block.
    fn put_committed(self: Arc<Self>);
}

/// Opens the file, and creates it if it is missing.
pub(crate) async fn create_file(path: impl Into<PathBuf>) -> Result<Database> {
    Database::open(path, SCHEMA, Missing::Create).await
}

impl SqliteQueue {
    /// Opens a queue of the file. The queue in it has the address's queue name.
    ///
    /// # Errors
    /// One line with the file's path and the reason; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound)
    /// if there is no file. That the queue is missing is the error of its calls.
    pub async fn open(path: impl Into<PathBuf>, address: QueueAddress) -> Result<Self> {
        Self::with_database(
            Database::open(path, SCHEMA, Missing::Refuse).await?,
            address,
        )
        .await
    }

    /// Opens a queue of the file, and creates the file and the queue if they are missing. The
    /// directory must exist.
    ///
    /// # Errors
    /// One line with the file's path and the reason; [`ErrorKind::Conflict`](crate::ErrorKind::Conflict)
    /// if the file is missing because it was damaged and set aside.
    pub async fn create(path: impl Into<PathBuf>, address: QueueAddress) -> Result<Self> {
        let queue = Self::with_database(create_file(path).await?, address).await?;
        WorkQueue::create(&queue).await?;
        Ok(queue)
    }

    pub(crate) async fn with_database(database: Database, address: QueueAddress) -> Result<Self> {
        let read = "SELECT id FROM identity";
        let id: Vec<u8> = database
            .run(move |connection| connection.query_row(read, (), |row| row.get(0)))
            .await?;
        // A copy of the file has the same id, so the file's identity on this machine is hashed too.
        let identity = fnv1a([id, file_identity(database.path())].concat());
        Ok(Self {
            identity,
            database,
            address,
            observer: None,
        })
    }

    /// Returns the names of the file's queues.
    ///
    /// # Errors
    /// As [`SqliteQueue::open`].
    pub async fn names(path: impl Into<PathBuf>) -> Result<Vec<String>> {
        let database = Database::open(path, SCHEMA, Missing::Refuse).await?;
        let read = |connection: &mut Connection| {
            let mut select = connection.prepare("SELECT name FROM queues ORDER BY name")?;
            select.query_map((), |row| row.get(0))?.collect()
        };
        database.run(read).await
    }

    /// Opens another queue of the same file.
    #[must_use]
    pub fn another(&self, address: QueueAddress) -> Self {
        Self {
            address,
            ..self.clone()
        }
    }

    /// Sets the observer of all puts.
    #[cfg(feature = "courier")]
    #[must_use]
    pub(crate) fn observed_by(mut self, observer: Arc<dyn PutObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Puts messages inside a transaction of the caller, on a connection to the same file: business
    /// data and messages are committed together or not at all.
    ///
    /// For a queue of a `courier::QueueManager`, call its `committed` after the commit: it notifies
    /// the relay at once. After a crash in between, the process that hosts the file notifies.
    ///
    /// # Errors
    /// As [`WorkQueue::put`]. Roll back the transaction after an error.
    pub fn put_in(
        &self,
        transaction: &Transaction<'_>,
        messages: &[NewMessage],
    ) -> Result<Vec<MessageId>> {
        self.limits().check_put(messages)?;
        let put = || {
            let queue = existing_queue(transaction, &self.name(), self)?;
            put::insert(transaction, queue, messages, self.observer.is_some())
        };
        put().map_err(|error| self.database.error(error))
    }

    /// Runs a write if the queue exists.
    async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>, i64) -> rusqlite::Result<T> + Send + 'static,
    {
        let (name, shown) = (self.name(), self.to_string());
        let work = move |transaction: &Transaction<'_>| {
            work(transaction, existing_queue(transaction, &name, &shown)?)
        };
        self.database.write(work).await
    }

    /// Hides the message of a receipt for `span`, and subtracts `uncounted` from its dequeue count;
    /// returns the new receipt.
    async fn hide(&self, receipt: &Receipt, span: Duration, uncounted: u32) -> Result<Receipt> {
        let (id, number) = self.parse(receipt)?;
        let hidden = self.write(move |transaction, queue| {
            let now = clock::advance(transaction)?;
            transaction
                .prepare_cached(
                    "UPDATE messages SET visible_at = ?1, receipt = receipt + 1,
                       dequeue_count = max(dequeue_count - ?5, 0)
                     WHERE id = ?2 AND queue = ?3 AND receipt = ?4
                     RETURNING receipt",
                )?
                .query_row(
                    params![later(now, span), id, queue, number, uncounted],
                    |row| row.get::<_, i64>(0),
                )
                .optional()
        });
        let number = hidden
            .await?
            .ok_or_else(|| invalid_receipt(self, receipt))?;
        let id = receipt.message_id().clone();
        Ok(Receipt::new(id, &number.to_string()))
    }

    fn name(&self) -> String {
        self.address.queue_name().to_owned()
    }

    /// Returns the row and the number of the hand-out.
    fn parse(&self, receipt: &Receipt) -> Result<(i64, i64)> {
        let id = receipt.message_id().as_str().parse().ok();
        let numbers = id.zip(receipt.token().parse().ok());
        numbers.ok_or_else(|| invalid_receipt(self, receipt))
    }
}

/// Returns an identity of a file that is unique on this machine and across machines, independent of
/// its path. Falls back to the path if the system does not provide it.
fn file_identity(path: &Path) -> Vec<u8> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt as _;
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id");
        if let (Ok(file), Ok(boot)) = (std::fs::metadata(path), boot) {
            let numbers = [file.dev().to_le_bytes(), file.ino().to_le_bytes()];
            return [numbers.as_flattened(), &boot].concat();
        }
    }
    path.as_os_str().as_encoded_bytes().to_owned()
}

#[async_trait]
impl WorkQueue for SqliteQueue {
    fn address(&self) -> &QueueAddress {
        &self.address
    }

    fn listener_group(&self) -> GroupName {
        local_group(&self.address, self.identity)
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits::EMBEDDED
    }

    async fn create(&self) -> Result<bool> {
        let name = self.name();
        let made = self.database.write(move |transaction| {
            let insert = "INSERT INTO queues (name) VALUES (?1) ON CONFLICT DO NOTHING";
            transaction.prepare_cached(insert)?.execute([&name])
        });
        Ok(made.await? > 0)
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.limits().check_put(&messages)?;
        let notify = self.observer.is_some();
        let put = self
            .write(move |transaction, queue| put::insert(transaction, queue, &messages, notify));
        let ids = put.await?;
        if let Some(observer) = &self.observer {
            Arc::clone(observer).put_committed();
        }
        Ok(ids)
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let max = self.limits().check_max(max)?;
        self.limits().check_visibility(visibility_timeout)?;
        self.write(move |transaction, queue| {
            let now = clock::advance(transaction)?;
            let until = later(now, visibility_timeout);
            let max = limit(max);
            let mut update = transaction.prepare_cached(
                "UPDATE messages
                 SET visible_at = ?1, receipt = receipt + 1, dequeue_count = dequeue_count + 1
                 WHERE id IN (SELECT id FROM messages WHERE queue = ?2 AND visible_at <= ?3
                              ORDER BY visible_at LIMIT ?4)
                 RETURNING id, body, dequeue_count, inserted_at, checksum, receipt",
            )?;
            let rows = update.query_map(params![until, queue, now, max], |row| {
                let read = read_message(row)?;
                let receipt = Receipt::new(read.id, &row.get::<_, i64>(5)?.to_string());
                let (count, inserted_at) = (read.dequeue_count, read.inserted_at);
                let mut message = Message::new(receipt, read.body, count, inserted_at);
                message.fault = read.fault;
                Ok(message)
            })?;
            rows.collect()
        })
        .await
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        let (id, number) = self.parse(receipt)?;
        let deleted = self.write(move |transaction, queue| {
            let delete = "DELETE FROM messages WHERE id = ?1 AND queue = ?2 AND receipt = ?3";
            let mut delete = transaction.prepare_cached(delete)?;
            delete.execute(params![id, queue, number])
        });
        match deleted.await? {
            0 => Err(invalid_receipt(self, receipt)),
            _ => Ok(()),
        }
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        self.limits().check_visibility(visibility_timeout)?;
        self.hide(receipt, visibility_timeout, 0).await
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.limits().check_delay(delay)?;
        self.hide(receipt, delay, 0).await.map(|_| ())
    }

    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        self.limits().check_delay(delay)?;
        self.hide(receipt, delay, 1).await.map(|_| true)
    }

    async fn depth(&self) -> Result<u64> {
        let name = self.name();
        let depth = self
            .database
            .run(move |connection| queue_depth(connection, &name));
        depth.await?.ok_or_else(|| missing_queue(self))
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        let max = self.limits().check_max(max)?;
        let (name, shown) = (self.name(), self.to_string());
        let peeked = self.database.run(move |connection| {
            let queue = existing_queue(connection, &name, &shown)?;
            let now = clock::now(connection)?;
            let mut select = connection.prepare_cached(
                "SELECT id, body, dequeue_count, inserted_at, checksum FROM messages
                 WHERE queue = ?1 AND visible_at <= ?2
                 ORDER BY visible_at LIMIT ?3",
            )?;
            let rows = select.query_map(params![queue, now, limit(max)], read_message)?;
            rows.collect()
        });
        peeked.await
    }

    async fn purge(&self) -> Result<()> {
        self.write(|transaction, queue| {
            let mut delete = transaction.prepare_cached("DELETE FROM messages WHERE queue = ?1")?;
            delete.execute([queue]).map(|_| ())
        })
        .await
    }
}

/// Returns the number of a queue in the file.
pub(crate) fn queue_id(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached("SELECT id FROM queues WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()
}

/// Returns the row of a queue, or refuses a missing one by the name `shown`.
pub(crate) fn existing_queue(
    connection: &Connection,
    name: &str,
    shown: impl fmt::Display,
) -> rusqlite::Result<i64> {
    let queue = queue_id(connection, name)?;
    queue.ok_or_else(|| refuse(missing_queue(shown)))
}

/// Returns the number of messages of a queue in the file.
pub(crate) fn queue_depth(connection: &Connection, name: &str) -> rusqlite::Result<Option<u64>> {
    let depth: Option<i64> = connection
        .prepare_cached("SELECT max(messages, 0) FROM queues WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    Ok(depth.map(i64::unsigned_abs))
}

/// Expects the columns id, body, dequeue_count, inserted_at, checksum.
fn read_message(row: &Row<'_>) -> rusqlite::Result<PeekedMessage> {
    let body = Bytes::from(row.get::<_, Vec<u8>>(1)?);
    Ok(PeekedMessage {
        id: message_id(row.get(0)?),
        dequeue_count: dequeue_count(row.get(2)?),
        inserted_at: system_time(row.get(3)?),
        fault: checksum::fault(&body, row.get(4)?),
        body,
    })
}

/// Converts a dequeue count of the file. A damaged row may have any number; it must not hide the
/// messages that are read with it.
pub(crate) fn dequeue_count(stored: i64) -> u32 {
    u32::try_from(stored.max(0)).unwrap_or(u32::MAX)
}

/// Converts a time of the file.
pub(crate) fn system_time(at: Micros) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(at).unwrap_or_default())
}

pub(crate) fn limit(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

fn message_id(id: i64) -> MessageId {
    MessageId::new(&id.to_string())
}

pub(crate) fn later(now: Micros, span: Duration) -> Micros {
    now.saturating_add(Micros::try_from(span.as_micros()).unwrap_or(Micros::MAX))
}

impl fmt::Display for SqliteQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, name) = (self.database.path().display(), self.address.queue_name());
        write!(f, "sqlite:{path}?queue={name}")
    }
}
