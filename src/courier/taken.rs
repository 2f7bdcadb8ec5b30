//! The messages that processes have received, with the state to restore if a process dies.

use rusqlite::{Transaction, params};

use crate::queue::sqlite::put::note_unnotified;

/// Notes that a process has received a message that was visible from `visible_at` on.
pub(super) fn take(
    transaction: &Transaction<'_>,
    process: [u8; 16],
    row: i64,
    receipt: i64,
    visible_at: i64,
) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO taken (message, process, receipt, visible_at)
               VALUES (?1, ?2, ?3, ?4)";
    let values = params![row, process, receipt, visible_at];
    transaction.prepare_cached(sql)?.execute(values).map(drop)
}

/// The message was committed, or was given back.
pub(super) fn forget(
    transaction: &Transaction<'_>,
    row: i64,
    receipt: i64,
) -> rusqlite::Result<()> {
    let sql = "DELETE FROM taken WHERE message = ?1 AND receipt = ?2";
    transaction
        .prepare_cached(sql)?
        .execute([row, receipt])
        .map(drop)
}

/// Makes the messages of a dead process visible at their former places.
pub(super) fn give_back(
    transaction: &Transaction<'_>,
    process: [u8; 16],
) -> rusqlite::Result<usize> {
    // A message that was received again since has another receipt.
    let restore = "UPDATE messages SET visible_at = t.visible_at, receipt = messages.receipt + 1
                   FROM taken t WHERE t.process = ?1 AND t.message = messages.id
                     AND t.receipt = messages.receipt
                   RETURNING messages.queue, length(messages.body)";
    let mut restore = transaction.prepare_cached(restore)?;
    let rows = restore.query_map([process], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let restored: Vec<(i64, usize)> = rows
        .map(|row| row.map(|(queue, size): (i64, i64)| (queue, usize::try_from(size).unwrap_or(0))))
        .collect::<rusqlite::Result<_>>()?;
    for (queue, size) in &restored {
        note_unnotified(transaction, *queue, 0, 1, *size)?;
    }
    let delete = "DELETE FROM taken WHERE process = ?1";
    transaction.prepare_cached(delete)?.execute([process])?;
    Ok(restored.len())
}
