//! The messages to other machines in the queue file: reading, and their ends.
//!
//! Each function runs in the caller's transaction. Knows neither frames nor sessions.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::frames::OfferedMessage;
use crate::{
    base::fault::{Fault, planted},
    queue::sqlite::checksum::{BAD_CHECKSUM, checksum, is_sound},
};

/// Microseconds of the file's clock.
type Micros = i64;
/// The authority of the machine that a message goes to, and the queue.
pub(super) type Destination = (String, String);

/// A message that is not sent yet.
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) message: OfferedMessage,
    pub(super) destination: Destination,
    /// Whether the body has its checksum. A receiver cannot tell a damaged row from a damaged
    /// frame, so it would ask for the message again and again.
    pub(super) is_sound: bool,
}

const COLUMNS: &str = "id, uid, authority, queue, visited, checksum, body";
/// All messages may be stored at the hop.
pub(super) const ALL: i64 = i64::MAX;

/// Moves ready messages beyond their age limit to the dead letters, without their next machines;
/// returns how many. A message that its next machine may have stored stays: only a connection shows
/// whether it has.
pub(crate) fn expire_unoffered(
    transaction: &Transaction<'_>,
    now: Micros,
    limit: usize,
    fault: Fault,
) -> rusqlite::Result<usize> {
    let sql = "SELECT id FROM outgoing WHERE status = 1 AND ends_at <= ?1
                 AND (?3 OR id > coalesce(
                   (SELECT uncertain_upto FROM hops WHERE authority = hop), 0))
               ORDER BY ends_at LIMIT ?2";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let all = planted!(fault, UncertainExpired);
    let rows: Vec<i64> = transaction
        .prepare_cached(sql)?
        .query_map(params![now, limit, all], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for row in &rows {
        bury(
            transaction,
            *row,
            now,
            "the next machine did not accept it within the age limit",
        )?;
    }
    Ok(rows.len())
}

/// After a crash: limits the uncertainty of connections that did not end in order to the messages
/// that are there now.
pub(crate) fn end_crashed(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    let sql = "UPDATE hops SET uncertain_upto = (SELECT coalesce(max(id), 0) FROM outgoing)
               WHERE uncertain_upto = ?1";
    transaction.execute(sql, [ALL])?;
    Ok(())
}

/// Records why messages to a machine wait.
pub(crate) fn note_error(
    transaction: &Transaction<'_>,
    hop: &str,
    now: Micros,
    text: &str,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO hops (authority, last_error, last_error_at) VALUES (?1, ?2, ?3)
               ON CONFLICT (authority) DO UPDATE
               SET last_error = excluded.last_error, last_error_at = excluded.last_error_at";
    transaction
        .prepare_cached(sql)?
        .execute(params![hop, text, now])?;
    Ok(())
}

/// Returns the next ready message of a destination in rows `after` to `upto`.
pub(super) fn next_of(
    connection: &Connection,
    hop: &str,
    destination: &Destination,
    after: i64,
    upto: i64,
) -> rusqlite::Result<Option<Row>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM outgoing WHERE hop = ?1 AND status = 1 AND id > ?2 AND id <= ?3
           AND authority = ?4 AND queue = ?5 ORDER BY id LIMIT 1"
    );
    let (authority, queue) = destination;
    connection
        .prepare_cached(&sql)?
        .query_row(params![hop, after, upto, authority, queue], |row| {
            read(row, hop)
        })
        .optional()
}

/// Returns a row that is known to be there.
pub(super) fn with_id(connection: &Connection, hop: &str, id: i64) -> rusqlite::Result<Row> {
    let sql = format!("SELECT {COLUMNS} FROM outgoing WHERE id = ?1");
    connection
        .prepare_cached(&sql)?
        .query_row([id], |row| read(row, hop))
}

fn read(row: &rusqlite::Row<'_>, hop: &str) -> rusqlite::Result<Row> {
    let (authority, queue): (String, String) = (row.get(2)?, row.get(3)?);
    let is_last = authority == hop;
    let (stored, body): (i64, Vec<u8>) = (row.get(5)?, row.get(6)?);
    Ok(Row {
        id: row.get(0)?,
        is_sound: is_sound(&body, Some(stored)),
        message: OfferedMessage {
            number: 0,
            uid: row.get(1)?,
            authority: if is_last {
                String::new()
            } else {
                authority.clone()
            },
            queue: queue.clone(),
            visited: row.get(4)?,
            checksum: checksum(&body),
            body: Bytes::from(body),
            resume: false,
        },
        destination: (authority, queue),
    })
}

pub(super) fn mark_sent(
    transaction: &Transaction<'_>,
    row: i64,
    now: Micros,
) -> rusqlite::Result<()> {
    let sql =
        "UPDATE outgoing SET status = 2, sent_at = ?2, body = x'' WHERE id = ?1 AND status = 1";
    transaction.prepare_cached(sql)?.execute([row, now])?;
    Ok(())
}

pub(super) fn mark_visible(
    transaction: &Transaction<'_>,
    row: i64,
    now: Micros,
) -> rusqlite::Result<()> {
    let sql = "UPDATE outgoing SET status = 3, confirmed_at = ?2 WHERE id = ?1 AND status = 2";
    transaction.prepare_cached(sql)?.execute([row, now])?;
    Ok(())
}

/// Moves damaged messages that were not offered to the dead letters.
pub(crate) fn bury_damaged(
    transaction: &Transaction<'_>,
    rows: &[i64],
    now: Micros,
) -> rusqlite::Result<()> {
    rows.iter()
        .try_for_each(|row| bury(transaction, *row, now, BAD_CHECKSUM))
}

/// Moves a message that was not sent to the dead letters.
pub(crate) fn bury(
    transaction: &Transaction<'_>,
    row: i64,
    now: Micros,
    reason: &str,
) -> rusqlite::Result<()> {
    let copy = "INSERT INTO dead_letters
                  (uid, authority, queue, reason, stored_at, died_at, checksum, body)
                SELECT uid, authority, queue, ?2, stored_at, ?3, checksum, body
                FROM outgoing WHERE id = ?1 AND status = 1
                ON CONFLICT (uid) DO UPDATE
                SET reason = excluded.reason, died_at = excluded.died_at";
    transaction
        .prepare_cached(copy)?
        .execute(params![row, reason, now])?;
    let delete = "DELETE FROM outgoing WHERE id = ?1 AND status = 1";
    transaction.prepare_cached(delete)?.execute([row])?;
    Ok(())
}
