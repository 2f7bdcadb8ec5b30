//! What keeps a file of queues in order: messages that have ended go, and counters are set right.

use rusqlite::{Connection, Transaction};

use super::clock::Micros;

/// Messages that have ended and go with one call: each takes some microseconds, and all writers of
/// the file wait meanwhile.
pub(super) const AT_ONCE: i64 = 1_000;
/// A queue of fewer messages is counted one by one, which takes some ten microseconds; so a counter
/// that is wrong is found at the latest when the queue is nearly empty.
const FEW: i64 = 1_000;

/// The counter, and how many have ended. The index is named, as the one by time holds the same
/// columns, and all messages.
pub(super) const COUNTED: &str = "SELECT messages,
     (SELECT count(*) FROM messages INDEXED BY messages_by_end WHERE ends_at <= ?2 AND queue = ?1)
     FROM queues WHERE id = ?1";
const COUNT_FEW: &str = "SELECT count(*) FROM (SELECT 1 FROM messages WHERE queue = ?1 LIMIT ?2)";
const RECOUNT: &str = "UPDATE queues
     SET messages = (SELECT count(*) FROM messages WHERE queue = ?1) WHERE id = ?1";
const REMOVE: &str = "DELETE FROM messages WHERE id IN
     (SELECT id FROM messages WHERE ends_at <= ?1 ORDER BY ends_at LIMIT ?2)";

/// What is known of how many messages a queue has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Census {
    /// The queue's counter, which an older program may have left wrong.
    counter: i64,
    /// Those that have ended, and are still in the file.
    ended: i64,
    /// As many as were counted, up to [`FEW`].
    few: i64,
}

impl Census {
    pub(super) fn take(connection: &Connection, queue: i64, now: Micros) -> rusqlite::Result<Self> {
        let (counter, ended) = connection
            .prepare_cached(COUNTED)?
            .query_row([queue, now], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let few = connection
            .prepare_cached(COUNT_FEW)?
            .query_row([queue, FEW], |row| row.get(0))?;
        Ok(Self {
            counter,
            ended,
            few,
        })
    }

    /// Returns how many messages have not ended.
    pub(super) fn depth(&self) -> u64 {
        u64::try_from(self.counter - self.ended).unwrap_or_default()
    }

    /// Returns whether a write would set something right.
    pub(super) fn needs_upkeep(&self) -> bool {
        self.ended > 0 || self.is_wrong()
    }

    fn is_wrong(&self) -> bool {
        match self.few < FEW {
            true => self.counter != self.few,
            false => self.counter < self.few,
        }
    }
}

/// Removes what has ended, so much at a time, and sets a counter right that is wrong; returns what
/// there is then.
pub(super) fn upkeep(
    transaction: &Transaction<'_>,
    queue: i64,
    now: Micros,
) -> rusqlite::Result<Census> {
    remove_ended(transaction, now)?;
    let census = Census::take(transaction, queue, now)?;
    if !census.is_wrong() {
        return Ok(census);
    }
    transaction.prepare_cached(RECOUNT)?.execute([queue])?;
    Census::take(transaction, queue, now)
}

/// Removes what has ended, of all queues of the file: those first that ended first.
pub(super) fn remove_ended(transaction: &Transaction<'_>, now: Micros) -> rusqlite::Result<()> {
    let mut remove = transaction.prepare_cached(REMOVE)?;
    remove.execute([now, AT_ONCE]).map(|_| ())
}
