//! Where one message is, as far as this machine knows.

use std::time::SystemTime;

use rusqlite::{Connection, OptionalExtension, Row};

use super::{
    manager::QueueManager,
    message::{Destination, MessageId},
    rows::{destination, time},
};
use crate::{
    error::Result,
    queue::sqlite::{
        clock::{self, Micros},
        dequeue_count,
        schema::SCHEMA,
    },
};

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
            "SELECT queue, arrived_at FROM inbound WHERE uid = ?1 AND checksum >= 0",
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
    Ok(match is_hidden && dequeue_count > 0 {
        true => MessageStatus::BeingReceived {
            queue,
            dequeue_count,
        },
        false => MessageStatus::Arrived {
            queue,
            at: time(row, 1)?,
        },
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
