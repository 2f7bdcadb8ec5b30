//! The messages from other machines in the queue file: storing, showing and passing on.
//!
//! Each function runs in the caller's transaction. Knows no session.

use std::collections::BTreeMap;

use rusqlite::{Transaction, params};

use super::{outgoing::add_dead_letter, policy::Policy, receiver::no_route};
use crate::{
    base::fault::planted,
    queue::sqlite::{
        clock::Micros,
        later,
        put::{count_put, note_unnotified},
        queue_id,
    },
    wire::proto::OfferedMessage,
};

/// A stored message that is not visible yet.
struct Stored {
    row: i64,
    authority: String,
    queue: String,
    size: usize,
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
    uid: &[u8],
) -> rusqlite::Result<bool> {
    let sql = format!(
        "SELECT 1 WHERE {KNOWN}
            OR EXISTS (SELECT 1 FROM inbound WHERE sender = ?2 AND uid = ?1)"
    );
    transaction
        .prepare_cached(&sql)?
        .exists(params![uid, sender])
}

/// Stores a message.
pub(super) fn store(
    transaction: &Transaction<'_>,
    wall: Micros,
    sender: i64,
    message: &OfferedMessage,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO inbound
                 (sender, uid, authority, queue, arrived_at, visited, checksum, body)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let mut insert = transaction.prepare_cached(sql)?;
    insert.execute(params![
        sender,
        &message.id[..],
        message.authority,
        message.queue,
        wall,
        &message.visited[..],
        message.checksum,
        &message.body[..],
    ])?;
    Ok(())
}

/// Moves all messages of a sender, which has confirmed them, to their queues or to the messages for the
/// next machine, in the order of their offers.
pub(super) fn show(
    transaction: &Transaction<'_>,
    policy: &Policy,
    (now, wall): (Micros, Micros),
    sender: i64,
) -> rusqlite::Result<()> {
    let mut tally = BTreeMap::<i64, (usize, usize)>::new();
    for message in take(transaction, "sender = ?1", sender, now)? {
        if message.authority.is_empty() {
            let Some(queue) = queue_id(transaction, &message.queue)? else {
                let reason = format!("queue `{}` does not exist", message.queue);
                bury(transaction, wall, message.row, &reason)?;
                continue;
            };
            let sql = "INSERT INTO messages (queue, visible_at, inserted_at, uid, checksum, body)
                       SELECT ?2, ?3, ?4, uid, checksum, body FROM inbound WHERE id = ?1";
            let mut insert = transaction.prepare_cached(sql)?;
            insert.execute(params![message.row, queue, now, wall])?;
            let (messages, bytes) = tally.entry(queue).or_default();
            (*messages, *bytes) = (*messages + 1, *bytes + message.size);
        } else if let Some(hop) = policy.config.next_hop(&message.authority) {
            let ends_at = later(now, policy.config.max_age);
            let sql =
                "INSERT INTO outgoing (uid, authority, queue, hop, status, stored_at, ends_at,
                         visited, size, checksum, body)
                       SELECT uid, authority, queue, ?2, 1, ?3, ?4, visited, length(body), checksum,
                         body FROM inbound WHERE id = ?1";
            let mut insert = transaction.prepare_cached(sql)?;
            insert.execute(params![message.row, hop, wall, ends_at])?;
        } else {
            // The routes have changed since the message was stored.
            bury(
                transaction,
                wall,
                message.row,
                &no_route(&message.authority),
            )?;
        }
    }
    for (queue, (messages, bytes)) in tally {
        count_put(transaction, queue, messages)?;
        if !planted!(NotificationNotNoted) {
            note_unnotified(transaction, queue, 0, messages, bytes)?;
        }
    }
    let mut delete = transaction.prepare_cached("DELETE FROM inbound WHERE sender = ?1")?;
    delete.execute([sender]).map(drop)
}

/// Returns the messages of a condition, and remembers their ids, whatever becomes of them. Those that the
/// file had already are removed: another connection of a restored copy of the sender has brought them.
fn take(
    transaction: &Transaction<'_>,
    condition: &str,
    value: i64,
    now: Micros,
) -> rusqlite::Result<Vec<Stored>> {
    let note = |of: &str| {
        let sql = format!(
            "INSERT INTO arrived (uid, at) SELECT uid, ?2 FROM inbound WHERE {condition} AND {of}
             ON CONFLICT DO UPDATE SET at = excluded.at"
        );
        transaction.prepare_cached(&sql)?.execute([value, now])
    };
    // Also of a message that was given up, and that its sender has confirmed now.
    note("queue = ''")?;
    let known = KNOWN.replace("?1", "i.uid");
    let drop_known =
        format!("DELETE FROM inbound AS i WHERE {condition} AND (queue = '' OR {known})");
    transaction.prepare_cached(&drop_known)?.execute([value])?;
    let sql = format!(
        "SELECT id, authority, queue, length(body) FROM inbound WHERE {condition} ORDER BY id"
    );
    let mut select = transaction.prepare_cached(&sql)?;
    let stored = select.query_map([value], |row| {
        Ok(Stored {
            row: row.get(0)?,
            authority: row.get(1)?,
            queue: row.get(2)?,
            size: usize::try_from(row.get::<_, i64>(3)?).unwrap_or(0),
        })
    })?;
    let stored = stored.collect::<rusqlite::Result<Vec<_>>>()?;
    note("TRUE")?;
    Ok(stored)
}

fn bury(
    transaction: &Transaction<'_>,
    wall: Micros,
    row: i64,
    reason: &str,
) -> rusqlite::Result<()> {
    let select = "SELECT uid, authority, queue, ?2, arrived_at, ?3, checksum, body
                  FROM inbound WHERE id = ?1";
    add_dead_letter(transaction, select, row, reason, wall)
}

/// Moves the messages that were stored by the time `arrived` to the dead letters: each connection of
/// their sender would have confirmed them. Returns how many.
///
/// Their ids stay held for a time, without a queue: a sender that comes back would otherwise move the
/// messages to its own dead letters, and both sides could send them again.
pub(crate) fn bury_absent(
    transaction: &Transaction<'_>,
    arrived: Micros,
    (now, wall): (Micros, Micros),
) -> rusqlite::Result<usize> {
    let absent = take(
        transaction,
        "queue <> '' AND arrived_at <= ?1",
        arrived,
        now,
    )?;
    for message in &absent {
        let reason = "its sender has not confirmed it, and is away";
        bury(transaction, wall, message.row, reason)?;
    }
    let hold = "UPDATE inbound SET queue = '', body = x'', visited = x''
                WHERE queue <> '' AND arrived_at <= ?1";
    transaction.execute(hold, [arrived])?;
    Ok(absent.len())
}
