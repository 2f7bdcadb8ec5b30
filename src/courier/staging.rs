//! The SQL of transactions: messages that are not ready, messages that are being received, and the
//! commit that settles both.
//!
//! Knows no clock and no socket: the caller passes `now`. Each function runs inside one short
//! database transaction.

use std::{collections::BTreeMap, sync::Arc, time::Duration, time::SystemTime};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::{message::MessageId, taken};
use crate::{
    backend::sqlite::refuse,
    error::{Error, ErrorKind, Result},
    queue::sqlite::{
        checksum::{BAD_CHECKSUM, checksum, is_sound},
        clock::Micros,
        dequeue_count, limit,
        put::{count_put, note_unnotified},
        queue_id, system_time,
    },
};

/// A message that a transaction received.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedMessage {
    /// The id. A message that was put outside of a transaction gets its id when it is received.
    pub id: MessageId,
    /// The queue's name.
    pub queue: String,
    /// The payload.
    pub body: Bytes,
    /// The number of receives so far, including this one.
    pub dequeue_count: u32,
    /// The time at which the message became part of this queue.
    pub arrived_at: SystemTime,
}

/// A message to stage.
#[derive(Debug)]
pub(super) struct NewSend {
    pub(super) tx: [u8; 16],
    pub(super) ends_at: Micros,
    pub(super) uid: [u8; 16],
    /// Empty for this machine.
    pub(super) authority: String,
    pub(super) queue: String,
    pub(super) body: Bytes,
    pub(super) max_queue: Option<u64>,
}

/// A staged message, as the commit needs it.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    /// The row in `staged`.
    pub(super) row: i64,
    pub(super) size: usize,
    pub(super) to: SentTo,
}

/// Where a commit moves a staged message.
#[derive(Debug, Clone)]
pub(super) enum SentTo {
    /// A queue of this file.
    Queue(i64),
    /// Another machine, by the next one.
    Hop(Arc<str>),
}

/// A message that is being received: its row, and the state to restore on rollback.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    row: i64,
    queue: i64,
    receipt: i64,
    size: usize,
    /// The former place in the queue.
    visible_at: Micros,
}

/// All that a commit settles.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) tx: [u8; 16],
    pub(super) timeout: Duration,
    pub(super) ends_at: Micros,
    pub(super) sent: Vec<Sent>,
    pub(super) received: Vec<Taken>,
    /// The age limit of messages to other machines.
    pub(super) outgoing_ends_at: Micros,
}

const INSERT_STAGED: &str =
    "INSERT INTO staged (tx, ends_at, uid, authority, queue, stored_at, checksum, body)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
/// In the order of the index by time, so that nothing is sorted.
const SELECT_VISIBLE: &str =
    "SELECT id, uid, body, checksum, dequeue_count, inserted_at, receipt, visible_at
     FROM messages WHERE queue = ?1 AND visible_at <= ?2 AND (ends_at IS NULL OR ends_at > ?2)
     ORDER BY visible_at, ends_at, id LIMIT ?3";
const HIDE: &str = "UPDATE messages SET visible_at = ?2, receipt = receipt + 1,
       dequeue_count = dequeue_count + 1, uid = coalesce(uid, randomblob(16))
     WHERE id = ?1 RETURNING uid";
const RESTORE: &str = "UPDATE messages SET visible_at = ?3, receipt = receipt + 1
     WHERE id = ?1 AND receipt = ?2";
const INSERT_RECEIVED: &str = "INSERT INTO received (uid, queue, size, arrived_at, received_at)
     SELECT m.uid, q.name, length(m.body), m.inserted_at, ?4
     FROM messages m JOIN queues q ON q.id = m.queue
     WHERE m.id = ?1 AND m.queue = ?2 AND m.receipt = ?3
     ON CONFLICT (uid) DO UPDATE SET received_at = excluded.received_at";
const INSERT_LOCAL: &str =
    "INSERT INTO messages (queue, visible_at, inserted_at, uid, checksum, body)
     SELECT ?3, ?4, ?4, uid, checksum, body FROM staged WHERE id = ?1 AND tx = ?2";
const INSERT_OUTGOING: &str = "INSERT INTO outgoing
       (uid, authority, queue, hop, status, stored_at, ends_at, visited, size, checksum, body)
     SELECT uid, authority, queue, ?3, 1, ?4, ?5, x'', length(body), checksum, body
     FROM staged WHERE id = ?1 AND tx = ?2";
const DEAD_LETTER: &str = "INSERT INTO dead_letters
       (uid, authority, queue, reason, stored_at, died_at, checksum, body)
     SELECT coalesce(m.uid, randomblob(16)), '', q.name, ?2, m.inserted_at, ?3,
       coalesce(m.checksum, 0), m.body
     FROM messages m JOIN queues q ON q.id = m.queue WHERE m.id = ?1
     ON CONFLICT (uid) DO UPDATE SET reason = excluded.reason, died_at = excluded.died_at";

/// Stores a message that is not ready; returns the row and, for a queue of this file, its number.
pub(super) fn stage(
    transaction: &Transaction<'_>,
    send: &NewSend,
    now: Micros,
) -> rusqlite::Result<(i64, Option<i64>)> {
    check_time(now, send.ends_at)?;
    let queue = match send.authority.is_empty() {
        true => Some(local_queue(transaction, &send.queue, send.max_queue)?),
        false => None,
    };
    let sum = checksum(&send.body);
    let (authority, name, body) = (&send.authority, &send.queue, &send.body[..]);
    let row = params![
        send.tx,
        send.ends_at,
        send.uid,
        authority,
        name,
        now,
        sum,
        body
    ];
    let row = transaction.prepare_cached(INSERT_STAGED)?.insert(row)?;
    Ok((row, queue))
}

/// Returns the number of a queue of this file that has room.
pub(super) fn local_queue(
    connection: &Connection,
    name: &str,
    max: Option<u64>,
) -> rusqlite::Result<i64> {
    let Some(queue) = queue_id(connection, name)? else {
        let message = format!(
            "destination: queue `{name}` does not exist: create it first, for example with \
             `reveille queue create`"
        );
        return Err(refuse(Error::new(ErrorKind::NotFound, message)));
    };
    if let Some(max) = max {
        let count: i64 = connection
            .prepare_cached("SELECT max(messages, 0) FROM queues WHERE id = ?1")?
            .query_row([queue], |row| row.get(0))?;
        if count >= i64::try_from(max).unwrap_or(i64::MAX) {
            let message = format!(
                "max_queue: queue `{name}` has {count} messages, and at most {max} may wait"
            );
            return Err(refuse(Error::new(ErrorKind::Exhausted, message)));
        }
    }
    Ok(queue)
}

/// Puts a message with its id into a queue of this file.
pub(super) fn insert_local(
    transaction: &Transaction<'_>,
    queue: i64,
    now: Micros,
    inserted_at: Micros,
    uid: &[u8; 16],
    body: &[u8],
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO messages (queue, visible_at, inserted_at, uid, checksum, body)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let values = params![queue, now, inserted_at, uid, checksum(body), body];
    transaction.prepare_cached(sql)?.execute(values)?;
    count_put(transaction, queue, 1)?;
    note_unnotified(transaction, queue, 0, 1, body.len())
}

/// Checks that there is room for a message to another machine; returns how many more may be sent
/// until the next check. Half of the room, because other processes send too.
pub(super) fn check_outgoing(connection: &Connection, max: u64) -> rusqlite::Result<i64> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let count: i64 = connection
        .prepare_cached(
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM outgoing WHERE status = 1 LIMIT ?1))
               + (SELECT count(*) FROM staged WHERE authority <> '')",
        )?
        .query_row([max], |row| row.get(0))?;
    if count >= max {
        let message =
            format!("max_outgoing: {count} messages wait for other machines, the maximum is {max}");
        return Err(refuse(Error::new(ErrorKind::Exhausted, message)));
    }
    Ok((max - count - 1) / 2)
}

/// Hides up to `max` messages until `until`, in the queue's order. A damaged message becomes a dead
/// letter.
pub(super) fn receive(
    transaction: &Transaction<'_>,
    name: &str,
    max: usize,
    until: Micros,
    now: Micros,
    process: [u8; 16],
) -> rusqlite::Result<Vec<(Taken, ReceivedMessage)>> {
    check_time(now, until)?;
    let queue = local_queue(transaction, name, None)?;
    let mut taken = Vec::new();
    let mut select = transaction.prepare_cached(SELECT_VISIBLE)?;
    let mut hide = transaction.prepare_cached(HIDE)?;
    while taken.len() < max {
        let rows = select.query_map(params![queue, now, limit(max - taken.len())], |row| {
            visible(row, queue, name)
        })?;
        let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        if rows.is_empty() {
            break;
        }
        for (mut one, mut message, stored) in rows {
            if !is_sound(&message.body, stored) {
                bury(transaction, one.row, BAD_CHECKSUM, now)?;
                continue;
            }
            let uid = hide.query_row(params![one.row, until], |row| row.get(0))?;
            message.id = MessageId::from_bytes(uid);
            one.receipt += 1;
            taken::take(transaction, process, one.row, one.receipt, one.visible_at)?;
            taken.push((one, message));
        }
    }
    Ok(taken)
}

type Visible = (Taken, ReceivedMessage, Option<i64>);

fn visible(row: &Row<'_>, queue: i64, name: &str) -> rusqlite::Result<Visible> {
    let body = Bytes::from(row.get::<_, Vec<u8>>(2)?);
    let taken = Taken {
        row: row.get(0)?,
        queue,
        receipt: row.get(6)?,
        size: body.len(),
        visible_at: row.get(7)?,
    };
    let message = ReceivedMessage {
        id: MessageId::from_bytes(row.get::<_, Option<_>>(1)?.unwrap_or_default()),
        queue: name.to_owned(),
        body,
        dequeue_count: dequeue_count(row.get(4)?).saturating_add(1),
        arrived_at: system_time(row.get(5)?),
    };
    Ok((taken, message, row.get(3)?))
}

/// Moves a message to the dead letters.
fn bury(
    transaction: &Transaction<'_>,
    row: i64,
    reason: &str,
    now: Micros,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(DEAD_LETTER)?
        .execute(params![row, reason, now])?;
    let delete = "DELETE FROM messages WHERE id = ?1";
    transaction.prepare_cached(delete)?.execute([row]).map(drop)
}

/// Applies a commit as a whole, or refuses it. Returns whether local queues and other machines got
/// messages.
pub(super) fn commit(
    transaction: &Transaction<'_>,
    outcome: &Outcome,
    now: Micros,
) -> rusqlite::Result<()> {
    if now >= outcome.ends_at {
        return Err(refuse(timed_out(Some(outcome.timeout))));
    }
    settle_received(transaction, &outcome.received, now)?;
    let mut tally: BTreeMap<i64, (usize, usize)> = BTreeMap::new();
    for sent in &outcome.sent {
        let moved = match &sent.to {
            SentTo::Queue(queue) => {
                let (messages, bytes) = tally.entry(*queue).or_default();
                (*messages, *bytes) = (*messages + 1, *bytes + sent.size);
                transaction
                    .prepare_cached(INSERT_LOCAL)?
                    .execute(params![sent.row, outcome.tx, queue, now])?
            }
            SentTo::Hop(hop) => {
                let ends_at = outcome.outgoing_ends_at;
                transaction
                    .prepare_cached(INSERT_OUTGOING)?
                    .execute(params![sent.row, outcome.tx, hop, now, ends_at])?
            }
        };
        if moved != 1 {
            return Err(refuse(timed_out(Some(outcome.timeout))));
        }
    }
    for (queue, (messages, bytes)) in tally {
        count_put(transaction, queue, messages)?;
        note_unnotified(transaction, queue, 0, messages, bytes)?;
    }
    forget_staged(transaction, &outcome.tx)
}

fn settle_received(
    transaction: &Transaction<'_>,
    received: &[Taken],
    now: Micros,
) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare_cached(INSERT_RECEIVED)?;
    let mut delete = transaction.prepare_cached("DELETE FROM messages WHERE id = ?1")?;
    for taken in received {
        if insert.execute(params![taken.row, taken.queue, taken.receipt, now])? == 0 {
            let message = "a message of the transaction was got by another consumer, or is gone: \
                nothing was committed";
            return Err(refuse(Error::new(ErrorKind::Conflict, message)));
        }
        delete.execute([taken.row])?;
        taken::forget(transaction, taken.row, taken.receipt)?;
    }
    Ok(())
}

/// Puts received messages back at their former places and removes staged ones.
pub(super) fn roll_back(
    transaction: &Transaction<'_>,
    tx: &[u8; 16],
    received: &[Taken],
) -> rusqlite::Result<()> {
    let mut restore = transaction.prepare_cached(RESTORE)?;
    for taken in received {
        taken::forget(transaction, taken.row, taken.receipt)?;
        let restored = restore.execute(params![taken.row, taken.receipt, taken.visible_at])?;
        if restored > 0 {
            // Listeners of the queue may wait for a wake-up.
            note_unnotified(transaction, taken.queue, 0, 1, taken.size)?;
        }
    }
    forget_staged(transaction, tx)
}

fn forget_staged(transaction: &Transaction<'_>, tx: &[u8; 16]) -> rusqlite::Result<()> {
    let delete = "DELETE FROM staged WHERE tx = ?1";
    transaction.prepare_cached(delete)?.execute([tx]).map(drop)
}

/// Returns whether the identity of the connection's file is this one.
pub(super) fn is_file(connection: &Connection, id: &[u8; 16]) -> rusqlite::Result<bool> {
    let found: Option<[u8; 16]> = connection
        .prepare_cached("SELECT id FROM identity")?
        .query_row((), |row| row.get(0))
        .optional()?;
    Ok(found.as_ref() == Some(id))
}

fn check_time(now: Micros, ends_at: Micros) -> rusqlite::Result<()> {
    match now >= ends_at {
        true => Err(refuse(timed_out(None))),
        false => Ok(()),
    }
}

fn timed_out(timeout: Option<Duration>) -> Error {
    let after = timeout.map_or_else(String::new, |timeout| format!(" of {timeout:?}"));
    let message = format!("the time-out{after} of the transaction is over: nothing was committed");
    Error::new(ErrorKind::Conflict, message)
}

/// Checks a body's size.
pub(super) fn check_body(body: &[u8], max: usize) -> Result<()> {
    match body.len() > max {
        true => {
            let rule = format_args!("must be at most {max} bytes, but has {}", body.len());
            Err(Error::invalid("body", rule))
        }
        false => Ok(()),
    }
}
