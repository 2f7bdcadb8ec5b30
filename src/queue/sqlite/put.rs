//! The rows of a put: messages with their checksums, the counter, and the pending notification.
//!
//! Knows neither a relay nor how the caller's transaction is committed.

use std::collections::BTreeMap;

use rusqlite::{Transaction, params};

use super::{
    MessageId, NewMessage,
    checksum::checksum,
    clock::{self, Micros},
    later, limit, message_id,
};

/// Inserts messages. With `notify`, the relay has to be notified of them after the commit.
pub(super) fn insert(
    transaction: &Transaction<'_>,
    queue: i64,
    messages: &[NewMessage],
    notify: bool,
) -> rusqlite::Result<Vec<MessageId>> {
    let (now, inserted_at) = (clock::advance(transaction)?, clock::machine_time());
    let mut insert = transaction.prepare_cached(
        "INSERT INTO messages (queue, visible_at, inserted_at, checksum, body)
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let ids = messages.iter().map(|message| {
        let visible_at = later(now, message.delay);
        let body = &message.body[..];
        let sum = checksum(body);
        let row = params![queue, visible_at, inserted_at, sum, body];
        Ok(message_id(insert.insert(row)?))
    });
    let ids = ids.collect::<rusqlite::Result<Vec<_>>>()?;
    count_put(transaction, queue, messages.len())?;
    if notify {
        note_put(transaction, queue, now, messages)?;
    }
    Ok(ids)
}

/// Notes that the relay must be notified of messages that were put at `now`.
fn note_put(
    transaction: &Transaction<'_>,
    queue: i64,
    now: Micros,
    messages: &[NewMessage],
) -> rusqlite::Result<()> {
    let mut unnotified: BTreeMap<Micros, (usize, usize)> = BTreeMap::new();
    for message in messages {
        let due = if message.delay.is_zero() {
            0
        } else {
            later(now, message.delay)
        };
        let (count, bytes) = unnotified.entry(due).or_default();
        (*count, *bytes) = (*count + 1, *bytes + message.body.len());
    }
    for (due, (count, bytes)) in unnotified {
        note_unnotified(transaction, queue, due, count, bytes)?;
    }
    Ok(())
}

/// Adds to the queue's counter of messages; a trigger subtracts each removed message.
pub(crate) fn count_put(
    transaction: &Transaction<'_>,
    queue: i64,
    messages: usize,
) -> rusqlite::Result<()> {
    let count = "UPDATE queues SET messages = messages + ?2 WHERE id = ?1";
    let mut count = transaction.prepare_cached(count)?;
    count.execute([queue, limit(messages)]).map(drop)
}

/// Notes that the relay must be notified of messages that are visible from `due` on; 0 is at once.
///
/// The row's revision is random: a process that has notified deletes the row only if its revision is
/// the same as before, and a counter that begins anew with each row could repeat.
pub(crate) fn note_unnotified(
    transaction: &Transaction<'_>,
    queue: i64,
    due: Micros,
    messages: usize,
    bytes: usize,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO unnotified (queue, due, messages, bytes, revision)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET messages = messages + excluded.messages,
               bytes = bytes + excluded.bytes, revision = excluded.revision, told = 0",
        )?
        .execute(params![
            queue,
            due,
            limit(messages),
            limit(bytes),
            fastrand::i64(..)
        ])
        .map(drop)
}
