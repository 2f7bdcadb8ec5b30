//! Maintenance of a queue file: removes expired messages and corrects counters.

use rusqlite::{Connection, Transaction};

use super::clock::Micros;

/// The number of expired messages that one call removes. Each takes some microseconds, during which
/// all writers of the file wait.
pub(super) const REMOVED_PER_CALL: i64 = 1_000;
/// A queue with fewer messages is counted exactly, which takes some ten microseconds. So a wrong
/// counter is detected at the latest when the queue is nearly empty.
const EXACT_BELOW: i64 = 1_000;

/// Selects the counter and the number of expired messages. The query names the index, because the
/// index by time has the same columns but contains all messages.
pub(super) const COUNT: &str = "SELECT messages,
     (SELECT count(*) FROM messages INDEXED BY messages_by_end WHERE ends_at <= ?2 AND queue = ?1)
     FROM queues WHERE id = ?1";
const COUNT_EXACT: &str = "SELECT count(*) FROM (SELECT 1 FROM messages WHERE queue = ?1 LIMIT ?2)";
const RECOUNT: &str = "UPDATE queues
     SET messages = (SELECT count(*) FROM messages WHERE queue = ?1) WHERE id = ?1";
const REMOVE: &str = "DELETE FROM messages WHERE id IN
     (SELECT id FROM messages WHERE ends_at <= ?1 ORDER BY ends_at LIMIT ?2)";

/// The numbers that give a queue's depth.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageCounts {
    /// The queue's counter. An older program may have left it wrong.
    counter: i64,
    /// Expired messages that are still in the file.
    expired: i64,
    /// An exact count, limited to [`EXACT_BELOW`].
    exact: i64,
}

impl MessageCounts {
    pub(super) fn read(connection: &Connection, queue: i64, now: Micros) -> rusqlite::Result<Self> {
        let (counter, expired) = connection
            .prepare_cached(COUNT)?
            .query_row([queue, now], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let exact = connection
            .prepare_cached(COUNT_EXACT)?
            .query_row([queue, EXACT_BELOW], |row| row.get(0))?;
        Ok(Self {
            counter,
            expired,
            exact,
        })
    }

    /// Returns the number of messages that have not expired.
    pub(super) fn depth(&self) -> u64 {
        u64::try_from(self.counter - self.expired).unwrap_or_default()
    }

    /// Returns whether expired messages must be removed or the counter corrected.
    pub(super) fn needs_maintenance(&self) -> bool {
        self.expired > 0 || self.is_wrong()
    }

    fn is_wrong(&self) -> bool {
        if self.exact < EXACT_BELOW {
            self.counter != self.exact
        } else {
            self.counter < self.exact
        }
    }
}

/// Removes a batch of expired messages, and corrects a wrong counter; returns the counts afterwards.
pub(super) fn maintain(
    transaction: &Transaction<'_>,
    queue: i64,
    now: Micros,
) -> rusqlite::Result<MessageCounts> {
    remove_expired(transaction, now)?;
    let counts = MessageCounts::read(transaction, queue, now)?;
    if !counts.is_wrong() {
        return Ok(counts);
    }
    transaction.prepare_cached(RECOUNT)?.execute([queue])?;
    MessageCounts::read(transaction, queue, now)
}

/// Removes a batch of expired messages of all queues of the file, the earliest expired first;
/// returns whether there may be more.
pub(crate) fn remove_expired(transaction: &Transaction<'_>, now: Micros) -> rusqlite::Result<bool> {
    let mut remove = transaction.prepare_cached(REMOVE)?;
    let removed = remove.execute([now, REMOVED_PER_CALL])?;
    Ok(i64::try_from(removed).unwrap_or(i64::MAX) >= REMOVED_PER_CALL)
}
