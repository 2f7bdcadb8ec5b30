//! The messages from other machines in the queue file: storing, showing and passing on.
//!
//! Each function runs in the caller's transaction. Knows no session.

use rusqlite::{Transaction, params};

use super::frames::{Micros, OfferedMessage, Uid};
use crate::{
    base::fault::{Fault, planted},
    queue::sqlite::put::count_put,
};

/// A stored message that becomes visible.
pub(super) struct Stored {
    pub(super) row: i64,
    pub(super) uid: Uid,
    pub(super) authority: String,
    pub(super) queue: String,
    pub(super) bytes: usize,
}

/// Returns whether the file has, or had, the message in a table other than `inbound`.
pub(super) fn is_known(
    transaction: &Transaction<'_>,
    uid: &Uid,
    fault: Fault,
) -> rusqlite::Result<bool> {
    if planted!(fault, RestoredCopyStored) {
        let sql = "SELECT 1 FROM messages WHERE uid = ?1";
        return transaction.prepare_cached(sql)?.exists([uid]);
    }
    let sql = "SELECT 1 WHERE EXISTS (SELECT 1 FROM messages WHERE uid = ?1)
                  OR EXISTS (SELECT 1 FROM received WHERE uid = ?1)
                  OR EXISTS (SELECT 1 FROM outgoing WHERE uid = ?1)
                  OR EXISTS (SELECT 1 FROM dead_letters WHERE uid = ?1)";
    transaction.prepare_cached(sql)?.exists([uid])
}

pub(super) fn store(
    transaction: &Transaction<'_>,
    wall: Micros,
    sender: i64,
    message: &OfferedMessage,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO inbound
                 (sender, number, uid, authority, queue, arrived_at, visited, checksum, body)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let number = i64::try_from(message.number).unwrap_or(i64::MAX);
    transaction.prepare_cached(sql)?.execute(params![
        sender,
        number,
        message.uid,
        message.authority,
        message.queue,
        wall,
        message.visited,
        message.checksum,
        &message.body[..],
    ])?;
    Ok(())
}

pub(super) fn make_visible(
    transaction: &Transaction<'_>,
    now: Micros,
    wall: Micros,
    row: i64,
    queue: i64,
) -> rusqlite::Result<()> {
    let copy = "INSERT INTO messages (queue, visible_at, inserted_at, uid, checksum, body)
                SELECT ?2, ?3, ?4, uid, checksum, body FROM inbound WHERE id = ?1";
    transaction
        .prepare_cached(copy)?
        .execute([row, queue, now, wall])?;
    count_put(transaction, queue, 1)
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
    let sql = "INSERT INTO dead_letters
                 (uid, authority, queue, reason, stored_at, died_at, checksum, body)
               SELECT uid, authority, queue, ?2, arrived_at, ?3, checksum, body
               FROM inbound WHERE id = ?1";
    transaction
        .prepare_cached(sql)?
        .execute(params![message.row, reason, wall])?;
    Ok(())
}
