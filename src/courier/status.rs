//! Where messages are: counts per queue and destination, one message, and history.
//!
//! Long reads run on a thread and a connection of their caller, so that they delay no transaction.

use std::time::{Duration, SystemTime};

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{
    Deserialize, Serialize,
    de::{
        IntoDeserializer as _,
        value::{self, StrDeserializer},
    },
};

use super::{
    manager::QueueManager,
    message::{Destination, MessageId},
};
use crate::{
    error::Result,
    queue::sqlite::{
        clock::{self, Micros},
        dequeue_count, limit,
        schema::SCHEMA,
        system_time,
    },
};

/// The state of a queue file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagerStatus {
    /// The queues of this file, by name.
    pub queues: Vec<QueueStatus>,
    /// The destinations on other machines, by name.
    pub destinations: Vec<DestinationStatus>,
    /// Messages from other machines that are stored and not yet visible.
    pub accepted: u64,
    /// Messages that could not be delivered.
    pub dead_letters: u64,
}

/// The state of a queue of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStatus {
    /// The queue's name.
    pub name: String,
    /// Messages that wait for a consumer.
    pub arrived: u64,
    /// Messages that a consumer has got.
    pub being_received: u64,
    /// Messages in the history that a transaction has received.
    pub received: u64,
    /// The age of the first message in the queue's order.
    pub oldest: Option<Duration>,
}

/// The state of a destination on another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DestinationStatus {
    /// The destination.
    pub destination: Destination,
    /// The next machine on the way.
    pub hop: String,
    /// Committed, and not yet accepted by the next machine.
    pub ready: u64,
    /// Stored at the next machine, and not yet visible there.
    pub sent: u64,
    /// Messages in the history: visible at the next machine.
    pub confirmed: u64,
    /// The age of the oldest ready message.
    pub oldest: Option<Duration>,
    /// The last error of the next machine, and its time.
    pub last_error: Option<(String, SystemTime)>,
}

/// A message that left this machine or was received on it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The message.
    pub id: MessageId,
    /// Its destination; a queue of this file if it was received.
    pub destination: Destination,
    /// The size of its body in bytes.
    pub size: u64,
    /// The time at which it was sent or arrived.
    pub stored_at: SystemTime,
    /// The time at which it was received, or became visible at the next machine.
    pub settled_at: SystemTime,
}

/// Where a message is, as far as this machine knows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageStatus {
    /// Its state.
    pub state: MessageState,
    /// Where it goes, or the queue of this file that has it.
    pub destination: Destination,
    /// The next machine of a message to another one.
    pub hop: Option<String>,
    /// The time of the last change; `None` while it is being received.
    pub changed_at: Option<SystemTime>,
    /// Why it was not delivered, or the last error of the next machine that it waits for.
    pub reason: Option<String>,
    /// The number of gets so far, of a message in a queue of this file.
    pub dequeue_count: Option<u32>,
}

/// The states of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MessageState {
    /// It waits here for the next machine.
    Ready,
    /// The next machine has stored it; it is not yet visible there.
    Sent,
    /// It is visible at the next machine, or that machine passes it on.
    Confirmed,
    /// It came from another machine and is not yet visible.
    Accepted,
    /// It waits for a consumer.
    Arrived,
    /// A consumer has got it.
    BeingReceived,
    /// A committed transaction has received it.
    Received,
    /// It could not be delivered.
    DeadLetter,
}

const QUEUES: &str = "SELECT q.id, q.name, max(q.messages, 0),
       (SELECT count(*) FROM messages m
          WHERE m.queue = q.id AND m.visible_at > ?1 AND m.dequeue_count > 0),
       (SELECT inserted_at FROM messages m WHERE m.queue = q.id ORDER BY visible_at LIMIT 1)
     FROM queues q ORDER BY q.name";
const DESTINATIONS: &str = "SELECT o.authority, queue, hop, sum(status = 1), sum(status = 2),
       sum(status = 3), min(iif(status = 1, stored_at, NULL)),
       iif(sum(status < 3) > 0, last_error, NULL), last_error_at
     FROM outgoing o LEFT JOIN hops h ON h.authority = hop
     GROUP BY o.authority, queue, hop ORDER BY o.authority, queue, hop";
const HISTORY: &str = "SELECT * FROM (
       SELECT uid, '', queue, size, arrived_at, received_at AS at FROM received
         ORDER BY received_at DESC LIMIT ?1)
     UNION ALL SELECT * FROM (
       SELECT uid, authority, queue, size, stored_at, confirmed_at AS at FROM outgoing
         WHERE status = 3 ORDER BY confirmed_at DESC LIMIT ?1)
     ORDER BY at DESC, uid DESC LIMIT ?1";
/// Searches the tables from the most to the least telling one.
const FIND: &str = "SELECT state, authority, queue, hop, at, reason, gets FROM (
       SELECT 1 AS place, 'dead_letter' AS state, authority, queue, NULL AS hop, died_at AS at, reason,
         NULL AS gets FROM dead_letters WHERE uid = ?1
     UNION ALL
       SELECT 2, iif(is_got, 'being_received', 'arrived'), '', name, NULL,
         iif(is_got, NULL, inserted_at), NULL, dequeue_count FROM (
           SELECT q.name, m.inserted_at, m.dequeue_count,
             m.visible_at > ?2 AND m.dequeue_count > 0 AS is_got
           FROM messages m JOIN queues q ON q.id = m.queue WHERE m.uid = ?1)
     UNION ALL
       SELECT 3, 'accepted', '', queue, NULL, arrived_at, NULL, NULL
       FROM inbound WHERE uid = ?1 AND queue <> ''
     UNION ALL
       SELECT 4, 'received', '', queue, NULL, received_at, NULL, NULL FROM received WHERE uid = ?1
     UNION ALL
       SELECT 5, CASE status WHEN 1 THEN 'ready' WHEN 2 THEN 'sent' ELSE 'confirmed' END,
         authority, queue, hop,
         CASE status WHEN 1 THEN stored_at WHEN 2 THEN sent_at ELSE confirmed_at END,
         (SELECT last_error FROM hops WHERE authority = hop AND status = 1), NULL
       FROM outgoing WHERE uid = ?1)
     ORDER BY place LIMIT 1";

impl QueueManager {
    /// Returns where a message is, or `None` if this machine does not know it.
    ///
    /// # Errors
    /// Of the file.
    pub async fn message_status(&self, id: MessageId) -> Result<Option<MessageStatus>> {
        let found = self.database().run_apart(SCHEMA, move |connection| {
            let now = clock::now(connection)?;
            let mut find = connection.prepare(FIND)?;
            find.query_row(params![id.as_bytes(), now], message_status)
                .optional()
        });
        found.await
    }

    /// Returns the state of all queues and destinations.
    ///
    /// # Errors
    /// Of the file.
    pub async fn status(&self) -> Result<ManagerStatus> {
        let status = self.database().run_apart(SCHEMA, |connection| {
            let now = clock::now(connection)?;
            Ok(ManagerStatus {
                queues: queues(connection, now)?,
                destinations: destinations(connection, now)?,
                accepted: count(connection, "SELECT count(*) FROM inbound WHERE queue <> ''")?,
                dead_letters: count(connection, "SELECT count(*) FROM dead_letters")?,
            })
        });
        status.await
    }

    /// Returns up to `max` messages of the history, the newest first.
    ///
    /// # Errors
    /// Of the file.
    pub async fn history(&self, max: usize) -> Result<Vec<HistoryEntry>> {
        let read = self.database().run_apart(SCHEMA, move |connection| {
            let mut select = connection.prepare(HISTORY)?;
            let rows = select.query_map([limit(max)], entry)?;
            rows.collect()
        });
        read.await
    }
}

fn count(connection: &Connection, sql: &str) -> rusqlite::Result<u64> {
    connection.query_row(sql, (), |row| unsigned(row, 0))
}

fn age(row: &Row<'_>, column: usize, now: Micros) -> rusqlite::Result<Option<Duration>> {
    let since: Option<Micros> = row.get(column)?;
    Ok(since.map(|since| Duration::from_micros(now.saturating_sub(since).max(0).unsigned_abs())))
}

fn queues(connection: &Connection, now: Micros) -> rusqlite::Result<Vec<QueueStatus>> {
    let mut received = connection.prepare("SELECT count(*) FROM received WHERE queue = ?1")?;
    let mut select = connection.prepare(QUEUES)?;
    let rows = select.query_map([now], |row| {
        let name: String = row.get(1)?;
        let being_received = unsigned(row, 3)?;
        Ok(QueueStatus {
            arrived: unsigned(row, 2)?.saturating_sub(being_received),
            being_received,
            received: received.query_row([&name], |row| unsigned(row, 0))?,
            oldest: age(row, 4, now)?,
            name,
        })
    })?;
    rows.collect()
}

fn destinations(connection: &Connection, now: Micros) -> rusqlite::Result<Vec<DestinationStatus>> {
    let mut select = connection.prepare(DESTINATIONS)?;
    let rows = select.query_map((), |row| {
        Ok(DestinationStatus {
            destination: destination(row, 0)?,
            hop: row.get(2)?,
            ready: unsigned(row, 3)?,
            sent: unsigned(row, 4)?,
            confirmed: unsigned(row, 5)?,
            oldest: age(row, 6, now)?,
            last_error: match row.get(7)? {
                Some(error) => Some((error, time(row, 8)?)),
                None => None,
            },
        })
    })?;
    rows.collect()
}

fn entry(row: &Row<'_>) -> rusqlite::Result<HistoryEntry> {
    Ok(HistoryEntry {
        id: MessageId::from_bytes(row.get(0)?),
        destination: destination(row, 1)?,
        size: unsigned(row, 3)?,
        stored_at: time(row, 4)?,
        settled_at: time(row, 5)?,
    })
}

/// Reads the columns of [`FIND`].
fn message_status(row: &Row<'_>) -> rusqlite::Result<MessageStatus> {
    let state: StrDeserializer<'_, value::Error> = row.get_ref(0)?.as_str()?.into_deserializer();
    let gets: Option<i64> = row.get(6)?;
    Ok(MessageStatus {
        state: MessageState::deserialize(state).expect("the statement names states"),
        destination: destination(row, 1)?,
        hop: row.get(3)?,
        changed_at: row.get::<_, Option<Micros>>(4)?.map(system_time),
        reason: row.get(5)?,
        dequeue_count: gets.map(dequeue_count),
    })
}

pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.max(0).unsigned_abs())
}

pub(super) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<SystemTime> {
    Ok(system_time(
        row.get::<_, Option<_>>(column)?.unwrap_or_default(),
    ))
}

/// Reads a destination from the columns of its machine and its queue.
pub(super) fn destination(row: &Row<'_>, column: usize) -> rusqlite::Result<Destination> {
    // A damaged name must not hide the rows that are read with it.
    let text = |column| {
        let text = row.get_ref(column)?.as_bytes()?;
        Ok::<_, rusqlite::Error>(String::from_utf8_lossy(text).into_owned())
    };
    Ok(Destination::stored(text(column)?, text(column + 1)?))
}
