//! The messages that processes have received, with the state to restore if a process dies.

use rusqlite::{ToSql, Transaction, params};

use crate::queue::sqlite::{clock::Micros, put::note_unnotified};

/// A message that is being received: its row, and the state to restore on rollback.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) row: i64,
    pub(super) receipt: i64,
    /// The former place in the queue.
    pub(super) visible_at: Micros,
}

/// What the transaction has received.
#[derive(Debug, Clone, Default)]
pub(super) struct Received {
    pub(super) messages: Vec<Taken>,
    /// The rows of `taken`.
    pub(super) steps: Vec<i64>,
}

/// Notes the messages that a transaction of a process has received in one step; returns the row.
pub(super) fn take(
    transaction: &Transaction<'_>,
    tx: &[u8; 16],
    process: [u8; 16],
    ends_at: Micros,
    taken: &[Taken],
) -> rusqlite::Result<i64> {
    let sql = "INSERT INTO taken (tx, process, ends_at, messages) VALUES (?1, ?2, ?3, ?4)";
    let values = params![tx, process, ends_at, list(taken)];
    transaction.prepare_cached(sql)?.insert(values)
}

/// The messages of the row were committed, or were given back.
pub(super) fn forget(
    transaction: &Transaction<'_>,
    tx: &[u8; 16],
    row: i64,
) -> rusqlite::Result<()> {
    // A row of a process that was thought dead is gone, and its number may have another transaction.
    let sql = "DELETE FROM taken WHERE id = ?1 AND tx = ?2";
    let mut delete = transaction.prepare_cached(sql)?;
    delete.execute(params![row, tx]).map(drop)
}

/// Returns messages as the JSON text `[[id, receipt, former visible_at], ...]`.
pub(super) fn list(taken: &[Taken]) -> String {
    let one = |one: &Taken| format!("[{},{},{}]", one.row, one.receipt, one.visible_at);
    format!("[{}]", taken.iter().map(one).collect::<Vec<_>>().join(","))
}

/// Whose messages are given back.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owner<'a> {
    /// A process that has died.
    Process(&'a [u8; 16]),
    /// A transaction that is rolled back, also of receives that were cancelled.
    Transaction(&'a [u8; 16]),
    /// Transactions whose time-out is over.
    Ended(Micros),
}

/// Makes the messages of an owner visible at their former places, and notes that the relay must be
/// notified of them; returns their number. Of ended transactions, some in each call.
pub(super) fn give_back(
    transaction: &Transaction<'_>,
    owner: Owner<'_>,
) -> rusqlite::Result<usize> {
    let (rows, value): (_, &dyn ToSql) = match &owner {
        Owner::Process(id) => ("process = ?1", *id),
        Owner::Transaction(id) => ("tx = ?1", *id),
        Owner::Ended(now) => (
            "id IN (SELECT id FROM taken WHERE ends_at <= ?1 ORDER BY ends_at LIMIT 32)",
            now,
        ),
    };
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
