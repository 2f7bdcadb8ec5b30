//! The SQL of the steps of a transaction: sends, receives, the commit, and messages that go back.
//!
//! Knows no clock and no socket: the caller passes `now`. Each function runs inside one short
//! database transaction.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, Transaction, params};

use super::{
    handover::outgoing::{self, NewSend},
    message::{MessageId, new_id},
};
use crate::{
    backend::sqlite::refuse,
    error::{Error, ErrorKind},
    queue::{
        missing_queue,
        sqlite::{
            checksum::{BAD_CHECKSUM, checksum, is_sound},
            clock::Micros,
            dequeue_count, existing_queue, limit,
            put::{count_put, note_unnotified},
            queue_depth, system_time,
        },
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

/// In the order of the index by time, so that nothing is sorted.
const SELECT_VISIBLE: &str =
    "SELECT id, uid, body, checksum, dequeue_count, inserted_at, receipt, visible_at
     FROM messages WHERE queue = ?1 AND visible_at <= ?2
     ORDER BY visible_at, id LIMIT ?3";
const HIDE: &str = "UPDATE messages SET visible_at = ?2, receipt = receipt + 1,
       dequeue_count = dequeue_count + 1
     WHERE id IN (SELECT value ->> 0 FROM json_each(?1))";

/// Checks that a queue of this file has room.
pub(super) fn check_queue(connection: &Connection, name: &str, max: u64) -> rusqlite::Result<()> {
    let count = queue_depth(connection, name)?;
    let count = count.ok_or_else(|| refuse(missing_queue(name)))?;
    if count < max {
        return Ok(());
    }
    let message =
        format!("max_queue: queue `{name}` has {count} messages, and at most {max} may wait");
    Err(refuse(Error::new(ErrorKind::Exhausted, message)))
}

/// Checks that there is room for a message to another machine; returns how many more may be sent
/// until the next check. Half of the room, because other processes send too.
pub(super) fn check_outgoing(
    connection: &Connection,
    hop: &str,
    max: u64,
) -> rusqlite::Result<u64> {
    let count = outgoing::count_ready(connection, hop, max)?;
    if count < max {
        return Ok((max - count - 1) / 2);
    }
    let message = format!("max_outgoing: {count} messages wait for `{hop}`, the maximum is {max}");
    Err(refuse(Error::new(ErrorKind::Exhausted, message)))
}

/// Adds a message to a queue of this file, or to those for other machines, where it may wait until
/// `ends_at`.
pub(super) fn insert(
    transaction: &Transaction<'_>,
    send: &NewSend,
    (now, stored_at): (Micros, Micros),
    ends_at: Micros,
) -> rusqlite::Result<()> {
    if send.hop.is_some() {
        return outgoing::insert(transaction, send, stored_at, Some(ends_at));
    }
    let queue = existing_queue(transaction, &send.queue, &send.queue)?;
    let sql = "INSERT INTO messages (queue, visible_at, inserted_at, uid, checksum, body)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let sum = checksum(&send.body);
    let values = params![queue, now, stored_at, send.uid, sum, &send.body[..]];
    transaction.prepare_cached(sql)?.execute(values)?;
    count_put(transaction, queue, 1)?;
    note_unnotified(transaction, queue, 0, 1, send.body.len())
}

/// Hides up to `max` messages until `until`, in the queue's order. A damaged message becomes a dead
/// letter.
pub(super) fn receive(
    transaction: &Transaction<'_>,
    (tx, process): (&[u8; 16], [u8; 16]),
    name: &str,
    max: usize,
    until: Micros,
    now: Micros,
) -> rusqlite::Result<(Vec<Taken>, Vec<ReceivedMessage>)> {
    if now >= until {
        return Err(refuse(time_is_over(None)));
    }
    let queue = existing_queue(transaction, name, name)?;
    let (mut taken, mut messages) = (Vec::new(), Vec::new());
    let mut select = transaction.prepare_cached(SELECT_VISIBLE)?;
    loop {
        let (first, wanted) = (taken.len(), max - taken.len());
        let rows =
            select.query_map(params![queue, now, limit(wanted)], |row| visible(row, name))?;
        let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        let is_last = rows.len() < wanted;
        for (mut one, mut message, stored, uid) in rows {
            if !is_sound(&message.body, stored) {
                bury(transaction, one.row, BAD_CHECKSUM, now)?;
                continue;
            }
            let uid = match uid {
                Some(uid) => uid,
                None => set_uid(transaction, one.row)?,
            };
            message.id = MessageId::from_bytes(uid);
            one.receipt += 1;
            taken.push(one);
            messages.push(message);
        }
        let mut hide = transaction.prepare_cached(HIDE)?;
        hide.execute(params![list(&taken[first..]), until])?;
        if is_last || taken.len() == max {
            break;
        }
    }
    if !taken.is_empty() {
        let sql = "INSERT INTO taken (tx, process, ends_at, messages) VALUES (?1, ?2, ?3, ?4)";
        let values = params![tx, process, until, list(&taken)];
        transaction.prepare_cached(sql)?.execute(values)?;
    }
    Ok((taken, messages))
}

/// Gives an id to a message that was put outside of a transaction.
fn set_uid(transaction: &Transaction<'_>, row: i64) -> rusqlite::Result<[u8; 16]> {
    let uid = new_id().map_err(refuse)?;
    let sql = "UPDATE messages SET uid = ?2 WHERE id = ?1";
    transaction
        .prepare_cached(sql)?
        .execute(params![row, uid])?;
    Ok(uid)
}

/// With the checksum, and the id of a message that was put in a transaction.
type Visible = (Taken, ReceivedMessage, Option<i64>, Option<[u8; 16]>);

fn visible(row: &Row<'_>, name: &str) -> rusqlite::Result<Visible> {
    let body = Bytes::from(row.get::<_, Vec<u8>>(2)?);
    let taken = Taken {
        row: row.get(0)?,
        receipt: row.get(6)?,
        visible_at: row.get(7)?,
    };
    let message = ReceivedMessage {
        id: MessageId::from_bytes(<[u8; 16]>::default()),
        queue: name.to_owned(),
        body,
        dequeue_count: dequeue_count(row.get(4)?).saturating_add(1),
        arrived_at: system_time(row.get(5)?),
    };
    Ok((taken, message, row.get(3)?, row.get(1)?))
}

/// Moves a message to the dead letters.
fn bury(
    transaction: &Transaction<'_>,
    row: i64,
    reason: &str,
    now: Micros,
) -> rusqlite::Result<()> {
    let select = "SELECT coalesce(m.uid, randomblob(16)), '', q.name, ?2, m.inserted_at, ?3,
                    coalesce(m.checksum, 0), m.body
                  FROM messages m JOIN queues q ON q.id = m.queue WHERE m.id = ?1";
    outgoing::add_dead_letter(transaction, select, row, reason, now)?;
    let delete = "DELETE FROM messages WHERE id = ?1";
    transaction.prepare_cached(delete)?.execute([row]).map(drop)
}

/// Returns whether the identity of the connection's file is this one.
pub(super) fn is_file(connection: &Connection, id: &[u8; 16]) -> rusqlite::Result<bool> {
    let found: Option<[u8; 16]> = connection
        .prepare_cached("SELECT id FROM identity")?
        .query_row((), |row| row.get(0))
        .optional()?;
    Ok(found.as_ref() == Some(id))
}

pub(super) fn time_is_over(timeout: Option<Duration>) -> Error {
    let after = timeout.map_or_else(String::new, |timeout| format!(" of {timeout:?}"));
    let message = format!("the time-out{after} of the transaction is over: nothing was committed");
    Error::new(ErrorKind::Conflict, message)
}

/// A message that is being received: its row, and the state to restore on rollback.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) row: i64,
    pub(super) receipt: i64,
    /// The former place in the queue.
    pub(super) visible_at: Micros,
}

/// Returns messages as the JSON text `[[id, receipt, former visible_at], ...]`.
fn list(taken: &[Taken]) -> String {
    let one = |one: &Taken| format!("[{},{},{}]", one.row, one.receipt, one.visible_at);
    format!("[{}]", taken.iter().map(one).collect::<Vec<_>>().join(","))
}

/// The rows of `taken` that a process has received, by its id.
pub(super) const OF_PROCESS: &str = "process = ?1";
/// The rows of a transaction, by its id.
pub(super) const OF_TRANSACTION: &str = "tx = ?1";
/// Rows of transactions whose time-out is over, by the file's time.
pub(super) const ENDED: &str =
    "id IN (SELECT id FROM taken WHERE ends_at <= ?1 ORDER BY ends_at LIMIT 32)";

/// Makes the messages of an owner visible at their former places, and notes that the relay must be
/// notified of them; returns their number. Of ended transactions, some in each call.
pub(super) fn give_back(
    transaction: &Transaction<'_>,
    rows: &str,
    value: &dyn ToSql,
) -> rusqlite::Result<usize> {
    // A message that was received again since has another receipt. Those of a damaged row are visible
    // again after the time-out.
    let restore = format!(
        "UPDATE messages SET visible_at = t.visible_at, receipt = messages.receipt + 1
         FROM (SELECT j.value ->> 0 AS id, j.value ->> 1 AS receipt, j.value ->> 2 AS visible_at
               FROM (SELECT messages FROM taken WHERE {rows}) t,
                 json_each(iif(json_valid(t.messages), t.messages, '[]')) j) t
         WHERE t.id = messages.id AND t.receipt = messages.receipt
         RETURNING messages.queue, length(messages.body)"
    );
    let mut restore = transaction.prepare_cached(&restore)?;
    let restored = restore.query_map([value], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let restored: Vec<(i64, usize)> = restored
        .map(|row| row.map(|(queue, size): (i64, i64)| (queue, usize::try_from(size).unwrap_or(0))))
        .collect::<rusqlite::Result<_>>()?;
    for (queue, size) in &restored {
        note_unnotified(transaction, *queue, 0, 1, *size)?;
    }
    let delete = format!("DELETE FROM taken WHERE {rows}");
    transaction.prepare_cached(&delete)?.execute([value])?;
    Ok(restored.len())
}

/// For all messages of a list of `taken`.
const INSERT_RECEIVED: &str = "INSERT INTO received (uid, queue, size, arrived_at, received_at)
     SELECT m.uid, q.name, length(m.body), m.inserted_at, ?2
     FROM json_each(?1) j CROSS JOIN messages m JOIN queues q ON q.id = m.queue
     WHERE m.id = j.value ->> 0 AND m.receipt = j.value ->> 1
     ON CONFLICT (uid) DO UPDATE SET received_at = excluded.received_at";

/// Moves the received messages to the history.
pub(super) fn settle_received(
    transaction: &Transaction<'_>,
    received: &[Taken],
    now: Micros,
) -> rusqlite::Result<()> {
    let list = list(received);
    let mut insert = transaction.prepare_cached(INSERT_RECEIVED)?;
    if insert.execute(params![list, now])? != received.len() {
        let message = "a message of the transaction was got by another consumer, or is gone: \
            nothing was committed";
        return Err(refuse(Error::new(ErrorKind::Conflict, message)));
    }
    let delete = "DELETE FROM messages WHERE id IN (SELECT value ->> 0 FROM json_each(?1))";
    transaction.prepare_cached(delete)?.execute([list])?;
    Ok(())
}
