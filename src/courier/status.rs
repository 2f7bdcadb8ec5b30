//! Where messages are: counts per queue and destination, one message, and history.
//!
//! Long reads run on a thread and a connection of their caller, so that they delay no transaction.

use std::time::{Duration, SystemTime};

use rusqlite::{Connection, OptionalExtension, Row};

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
pub enum MessageStatus {
    /// It is on its way to another machine.
    Outgoing {
        /// Where it goes.
        destination: Destination,
        /// The next machine.
        hop: String,
        /// How far the next machine has it.
        handed_over: HandedOver,
        /// The time of the last change.
        at: SystemTime,
        /// The last error of the next machine, if the message waits for it.
        last_error: Option<String>,
    },
    /// It came from another machine and is not yet visible.
    Accepted {
        /// The queue.
        queue: String,
        /// The time at which it was stored.
        at: SystemTime,
    },
    /// It waits for a consumer.
    Arrived {
        /// The queue.
        queue: String,
        /// The time at which it was committed or became visible.
        at: SystemTime,
    },
    /// A consumer has got it.
    BeingReceived {
        /// The queue.
        queue: String,
        /// The number of gets so far.
        dequeue_count: u32,
    },
    /// A committed transaction has received it.
    Received {
        /// The queue.
        queue: String,
        /// The time of the commit.
        at: SystemTime,
    },
    /// It could not be delivered.
    DeadLetter {
        /// Where it was sent.
        destination: Destination,
        /// Why it was not delivered.
        reason: String,
        /// The time at which it became a dead letter.
        at: SystemTime,
    },
}

/// How far the next machine has a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandedOver {
    /// It waits here for the next machine.
    Ready,
    /// The next machine has stored it; it is not yet visible there.
    Sent,
    /// It is visible at the next machine, or that machine passes it on.
    Visible,
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

impl QueueManager {
    /// Returns where a message is, or `None` if this machine does not know it.
    ///
    /// # Errors
    /// Of the file.
    pub async fn message_status(&self, id: MessageId) -> Result<Option<MessageStatus>> {
        let found = self
            .database()
            .run_apart(SCHEMA, move |connection| find(connection, *id.as_bytes()));
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

type Read = fn(&Row<'_>, Micros) -> rusqlite::Result<MessageStatus>;

/// Searches the tables from the most to the least telling one.
fn find(connection: &Connection, uid: [u8; 16]) -> rusqlite::Result<Option<MessageStatus>> {
    let now = clock::now(connection)?;
    let searches: [(&str, Read); 5] = [
        (
            "SELECT authority, queue, reason, died_at FROM dead_letters WHERE uid = ?1",
            |row, _| {
                Ok(MessageStatus::DeadLetter {
                    destination: destination(row, 0)?,
                    reason: row.get(2)?,
                    at: time(row, 3)?,
                })
            },
        ),
        (
            "SELECT q.name, m.inserted_at, m.dequeue_count, m.visible_at
             FROM messages m JOIN queues q ON q.id = m.queue WHERE m.uid = ?1",
            in_queue,
        ),
        (
            "SELECT queue, arrived_at FROM inbound WHERE uid = ?1 AND queue <> ''",
            |row, _| {
                Ok(MessageStatus::Accepted {
                    queue: row.get(0)?,
                    at: time(row, 1)?,
                })
            },
        ),
        (
            "SELECT queue, received_at FROM received WHERE uid = ?1",
            |row, _| {
                Ok(MessageStatus::Received {
                    queue: row.get(0)?,
                    at: time(row, 1)?,
                })
            },
        ),
        (
            "SELECT authority, queue, hop, status, stored_at, sent_at, confirmed_at,
               (SELECT last_error FROM hops WHERE authority = hop AND status = 1)
             FROM outgoing WHERE uid = ?1",
            outgoing,
        ),
    ];
    for (sql, read) in searches {
        let mut select = connection.prepare(sql)?;
        let found = select.query_row([uid], |row| read(row, now)).optional()?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn in_queue(row: &Row<'_>, now: Micros) -> rusqlite::Result<MessageStatus> {
    let (queue, dequeue_count) = (row.get(0)?, dequeue_count(row.get(2)?));
    let is_hidden = row.get::<_, Micros>(3)? > now;
    Ok(if is_hidden && dequeue_count > 0 {
        MessageStatus::BeingReceived {
            queue,
            dequeue_count,
        }
    } else {
        MessageStatus::Arrived {
            queue,
            at: time(row, 1)?,
        }
    })
}

fn outgoing(row: &Row<'_>, _: Micros) -> rusqlite::Result<MessageStatus> {
    let (handed_over, at) = match row.get::<_, i64>(3)? {
        1 => (HandedOver::Ready, time(row, 4)?),
        2 => (HandedOver::Sent, time(row, 5)?),
        _ => (HandedOver::Visible, time(row, 6)?),
    };
    Ok(MessageStatus::Outgoing {
        destination: destination(row, 0)?,
        hop: row.get(2)?,
        handed_over,
        at,
        last_error: row.get(7)?,
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
