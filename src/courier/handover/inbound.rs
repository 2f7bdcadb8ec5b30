//! The messages from other machines in the queue file: storing, showing and passing on.
//!
//! Each function runs in the caller's transaction. Knows no session.

use rusqlite::{Row, Transaction, params};

use super::{
    frames::{Micros, OfferedMessage, Uid},
    outgoing::{add_dead_letter, size},
};
use crate::queue::sqlite::limit;

/// A stored message that does not become visible in a queue of this machine.
pub(super) struct Stored {
    pub(super) row: i64,
    pub(super) authority: String,
    pub(super) queue: String,
}

/// The messages of a sender that it has confirmed: those in a range of rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Confirmed {
    pub(super) sender: i64,
    pub(super) first: i64,
    pub(super) last: i64,
}

/// In place of the checksum: the message was given up, because its sender was away. The row stays
/// without the body, so that the sender learns that it must not offer the message again. A checksum is
/// not negative.
const GIVEN_UP: i64 = -1;

/// The confirmed messages, in `i`.
const CONFIRMED: &str = "i.sender = ?1 AND i.id BETWEEN ?2 AND ?3";

impl Confirmed {
    fn rows(self) -> [i64; 3] {
        [self.sender, self.first, self.last]
    }
}

/// The tables that know the id `?1` of an offered message.
const KNOWN: &str = "EXISTS (SELECT 1 FROM arrived WHERE uid = ?1)
       OR EXISTS (SELECT 1 FROM messages WHERE uid = ?1)
       OR EXISTS (SELECT 1 FROM outgoing WHERE uid = ?1)
       OR EXISTS (SELECT 1 FROM dead_letters WHERE uid = ?1)";

/// Returns whether the file has, or had, the message.
pub(super) fn is_known(
    transaction: &Transaction<'_>,
    sender: i64,
    uid: &Uid,
) -> rusqlite::Result<bool> {
    let sql = format!(
        "SELECT 1 WHERE {KNOWN}
            OR EXISTS (SELECT 1 FROM inbound WHERE sender = ?2 AND uid = ?1)"
    );
    transaction
        .prepare_cached(&sql)?
        .exists(params![uid, sender])
}

/// Deletes the confirmed messages that the file had already: another connection of a restored copy
/// of the sender has brought them, or they were given up.
pub(super) fn drop_known(
    transaction: &Transaction<'_>,
    confirmed: Confirmed,
) -> rusqlite::Result<()> {
    let sql = format!(
        "DELETE FROM inbound AS i WHERE {CONFIRMED} AND (i.checksum = {GIVEN_UP} OR {})",
        KNOWN.replace("?1", "i.uid")
    );
    let mut delete = transaction.prepare_cached(&sql)?;
    delete.execute(confirmed.rows()).map(drop)
}

/// Remembers the ids of the confirmed messages, whatever becomes of them.
pub(super) fn note_arrived(
    transaction: &Transaction<'_>,
    now: Micros,
    confirmed: Confirmed,
) -> rusqlite::Result<()> {
    let sql = format!(
        "INSERT INTO arrived (uid, at) SELECT uid, ?4 FROM inbound i WHERE {CONFIRMED}
         ON CONFLICT DO UPDATE SET at = excluded.at"
    );
    let values = params![confirmed.sender, confirmed.first, confirmed.last, now];
    transaction.prepare_cached(&sql)?.execute(values).map(drop)
}

/// Moves the confirmed messages to their queues, in the order of their offers. Returns the queues
/// with the numbers of messages and bytes.
pub(super) fn make_visible(
    transaction: &Transaction<'_>,
    now: Micros,
    wall: Micros,
    confirmed: Confirmed,
) -> rusqlite::Result<Vec<(i64, usize, usize)>> {
    let from = format!(
        "FROM inbound i CROSS JOIN queues q ON q.name = i.queue WHERE {CONFIRMED} AND i.authority = ''"
    );
    let count = format!("SELECT q.id, count(*), sum(length(i.body)) {from} GROUP BY q.id");
    let counts: Vec<_> = transaction
        .prepare_cached(&count)?
        .query_map(confirmed.rows(), |row| {
            Ok((row.get(0)?, size(row, 1)?, size(row, 2)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    if counts.is_empty() {
        return Ok(counts);
    }
    let copy = format!(
        "INSERT INTO messages (queue, visible_at, inserted_at, uid, checksum, body)
         SELECT q.id, ?4, ?5, i.uid, i.checksum, i.body {from} ORDER BY i.id"
    );
    let values = params![confirmed.sender, confirmed.first, confirmed.last, now, wall];
    transaction.prepare_cached(&copy)?.execute(values)?;
    let delete = format!(
        "DELETE FROM inbound AS i WHERE {CONFIRMED} AND i.authority = ''
           AND EXISTS (SELECT 1 FROM queues WHERE name = i.queue)"
    );
    let mut delete = transaction.prepare_cached(&delete)?;
    delete.execute(confirmed.rows())?;
    Ok(counts)
}

/// Returns the confirmed messages.
pub(super) fn confirmed(
    transaction: &Transaction<'_>,
    confirmed: Confirmed,
) -> rusqlite::Result<Vec<Stored>> {
    let sql = format!("SELECT id, authority, queue FROM inbound i WHERE {CONFIRMED} ORDER BY id");
    let mut select = transaction.prepare_cached(&sql)?;
    let stored = select.query_map(confirmed.rows(), read)?;
    stored.collect()
}

pub(super) fn delete(transaction: &Transaction<'_>, message: &Stored) -> rusqlite::Result<()> {
    let delete = "DELETE FROM inbound WHERE id = ?1";
    transaction
        .prepare_cached(delete)?
        .execute([message.row])
        .map(drop)
}

/// Stores a message; returns the row.
pub(super) fn store(
    transaction: &Transaction<'_>,
    wall: Micros,
    sender: i64,
    message: &OfferedMessage,
) -> rusqlite::Result<i64> {
    let sql = "INSERT INTO inbound
                 (sender, uid, authority, queue, arrived_at, visited, checksum, body)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    transaction.prepare_cached(sql)?.insert(params![
        sender,
        message.uid,
        message.authority,
        message.queue,
        wall,
        message.visited,
        message.checksum,
        &message.body[..],
    ])
}

pub(super) fn pass_on(
    transaction: &Transaction<'_>,
    wall: Micros,
    message: &Stored,
    hop: &str,
    ends_at: Option<Micros>,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO outgoing
                 (uid, authority, queue, hop, status, stored_at, ends_at, visited, size, checksum,
                  body)
               SELECT uid, authority, queue, ?2, 1, ?3, ?4, visited, length(body), checksum, body
               FROM inbound WHERE id = ?1";
    let values = params![message.row, hop, wall, ends_at];
    transaction.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

pub(super) fn bury(
    transaction: &Transaction<'_>,
    wall: Micros,
    message: &Stored,
    reason: &str,
) -> rusqlite::Result<()> {
    let select = "SELECT uid, authority, queue, ?2, arrived_at, ?3, checksum, body
                  FROM inbound WHERE id = ?1";
    add_dead_letter(transaction, select, message.row, reason, wall)
}

/// Moves up to `most` messages whose senders are away to the dead letters, and forgets senders without
/// messages; returns how many. `absent` is the time since which a sender has not connected, by the
/// file's clock `now`, and since which a message has been here, by the machine's `wall`.
///
/// The sender may offer such a message, or make a dead letter of it, when it comes back after all. So
/// the row stays, and Welcome lists it.
pub(crate) fn bury_absent(
    transaction: &Transaction<'_>,
    absent: Micros,
    (now, wall): (Micros, Micros),
    most: usize,
) -> rusqlite::Result<usize> {
    let (seen, arrived) = (now.saturating_sub(absent), wall.saturating_sub(absent));
    let sql = format!(
        "SELECT i.id, i.authority, i.queue, {} FROM inbound i JOIN senders s ON s.id = i.sender
         WHERE s.seen_at <= ?1 AND i.arrived_at <= ?2 AND i.checksum <> {GIVEN_UP} LIMIT ?3",
        KNOWN.replace("?1", "i.uid")
    );
    let mut select = transaction.prepare_cached(&sql)?;
    let stored = select.query_map(params![seen, arrived, limit(most)], |row| {
        Ok((read(row)?, row.get(3)?))
    })?;
    let stored: Vec<(Stored, bool)> = stored.collect::<rusqlite::Result<_>>()?;
    let note = "INSERT INTO arrived (uid, at) SELECT uid, ?2 FROM inbound WHERE id = ?1
                ON CONFLICT DO UPDATE SET at = excluded.at";
    let mut note = transaction.prepare_cached(note)?;
    let give_up = format!("UPDATE inbound SET checksum = {GIVEN_UP}, body = x'' WHERE id = ?1");
    let mut give_up = transaction.prepare_cached(&give_up)?;
    for (message, is_known) in &stored {
        if !is_known {
            let reason = "its sender has not confirmed it, and is away";
            bury(transaction, wall, message, reason)?;
        }
        note.execute([message.row, now])?;
        give_up.execute([message.row])?;
    }
    let forget = "DELETE FROM senders
                  WHERE seen_at <= ?1 AND id NOT IN (SELECT sender FROM inbound)";
    transaction.prepare_cached(forget)?.execute([seen])?;
    Ok(stored.len())
}

/// Reads the columns id, authority, queue.
fn read(row: &Row<'_>) -> rusqlite::Result<Stored> {
    Ok(Stored {
        row: row.get(0)?,
        authority: row.get(1)?,
        queue: row.get(2)?,
    })
}
