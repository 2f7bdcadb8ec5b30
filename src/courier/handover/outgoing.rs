//! The messages to other machines in the queue file: reading, and their ends.
//!
//! Each function runs in the caller's transaction. Knows neither frames nor sessions.

use std::collections::HashSet;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::frames::{Micros, OfferedMessage, Uid};
use crate::{
    base::fault::{Fault, planted},
    queue::sqlite::{
        checksum::{BAD_CHECKSUM, checksum, is_sound},
        limit,
    },
};

/// The authority of the machine that a message goes to, and the queue.
pub(super) type Destination = (String, String);

/// A message that is not sent yet.
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) message: OfferedMessage,
    pub(super) destination: Destination,
    /// Whether the body has its checksum. A receiver cannot tell a damaged row from a damaged
    /// frame, so that the message would be offered again and again.
    pub(super) is_sound: bool,
}

/// The reason of a dead letter.
const TOO_OLD: &str = "the next machine did not accept it within the age limit";
const COLUMNS: &str = "id, uid, authority, queue, visited, checksum, body";
/// All messages may be stored at the hop.
pub(crate) const ALL: i64 = i64::MAX;

/// A message to another machine, as a commit adds it.
#[derive(Debug)]
pub(crate) struct NewOutgoing<'a> {
    pub(crate) uid: &'a Uid,
    pub(crate) authority: &'a str,
    pub(crate) queue: &'a str,
    /// The next machine.
    pub(crate) hop: &'a str,
    pub(crate) stored_at: Micros,
    /// The age limit.
    pub(crate) ends_at: Option<Micros>,
    pub(crate) checksum: u32,
    pub(crate) body: &'a [u8],
}

/// Adds a message of this machine.
pub(crate) fn insert(
    transaction: &Transaction<'_>,
    message: &NewOutgoing<'_>,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO outgoing (uid, authority, queue, hop, status, stored_at, ends_at,
                 visited, size, checksum, body)
               VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, x'', ?7, ?8, ?9)";
    transaction.prepare_cached(sql)?.execute(params![
        message.uid,
        message.authority,
        message.queue,
        message.hop,
        message.stored_at,
        message.ends_at,
        limit(message.body.len()),
        message.checksum,
        message.body
    ])?;
    Ok(())
}

/// Returns the next machines of messages with a status. It steps from one machine to the next in the
/// index, so that the number of messages does not matter.
pub(crate) fn hops_with(connection: &Connection, status: u8) -> rusqlite::Result<Vec<String>> {
    let sql = format!(
        "SELECT hop FROM outgoing WHERE status = {status} AND hop > ?1 ORDER BY hop LIMIT 1"
    );
    let mut select = connection.prepare_cached(&sql)?;
    let mut hops: Vec<String> = Vec::new();
    loop {
        let last = hops.last().map_or("", String::as_str);
        match select.query_row([last], |row| row.get(0)).optional()? {
            Some(hop) => hops.push(hop),
            None => return Ok(hops),
        }
    }
}

/// Moves up to `most` ready messages beyond their age limit to the dead letters, without their next
/// machines; returns how many. A message that its next machine may have stored stays: only a
/// connection shows whether it has.
pub(crate) fn expire_unoffered(
    transaction: &Transaction<'_>,
    now: Micros,
    most: usize,
    fault: Fault,
) -> rusqlite::Result<usize> {
    let mut expired = 0;
    for hop in hops_with(transaction, 1)? {
        let after = match planted!(fault, UncertainExpired) {
            true => 0,
            false => uncertain_upto(transaction, &hop)?,
        };
        expired += expire(
            transaction,
            &hop,
            after,
            now,
            most - expired,
            &HashSet::new(),
        )?;
    }
    Ok(expired)
}

/// Moves up to `most` ready messages of a next machine beyond their age limit to the dead letters:
/// those behind the row `after` that are not among `except`.
pub(super) fn expire(
    transaction: &Transaction<'_>,
    hop: &str,
    after: i64,
    now: Micros,
    most: usize,
    except: &HashSet<i64>,
) -> rusqlite::Result<usize> {
    let sql = "SELECT id FROM outgoing WHERE hop = ?1 AND status = 1 AND ends_at <= ?2 AND id > ?3
               ORDER BY ends_at LIMIT ?4";
    let rows: Vec<i64> = transaction
        .prepare_cached(sql)?
        .query_map(
            params![hop, now, after, limit(most + except.len())],
            |row| row.get(0),
        )?
        .collect::<rusqlite::Result<_>>()?;
    let rows = rows.iter().filter(|row| !except.contains(row)).take(most);
    let mut expired = 0;
    for row in rows {
        bury(transaction, *row, now, TOO_OLD)?;
        expired += 1;
    }
    Ok(expired)
}

/// Returns the last row that the hop may have stored: only a connection shows which it has.
pub(super) fn uncertain_upto(connection: &Connection, hop: &str) -> rusqlite::Result<i64> {
    let sql = "SELECT uncertain_upto FROM hops WHERE authority = ?1";
    let upto = connection
        .prepare_cached(sql)?
        .query_row([hop], |row| row.get(0))
        .optional()?;
    Ok(upto.unwrap_or(0))
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

/// Messages to a machine no longer wait for the recorded reason.
pub(super) fn clear_error(transaction: &Transaction<'_>, hop: &str) -> rusqlite::Result<()> {
    let sql = "UPDATE hops SET last_error = NULL, last_error_at = NULL WHERE authority = ?1";
    transaction.prepare_cached(sql)?.execute([hop]).map(drop)
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

/// Reads a number of bytes.
pub(super) fn size(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<usize> {
    Ok(usize::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
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
    rows: &[i64],
    now: Micros,
) -> rusqlite::Result<()> {
    let sql = "UPDATE outgoing SET status = 2, sent_at = ?2, body = x''
               WHERE id IN (SELECT value FROM json_each(?1)) AND status = 1";
    mark(transaction, sql, rows, now)
}

fn mark(
    transaction: &Transaction<'_>,
    sql: &str,
    rows: &[i64],
    now: Micros,
) -> rusqlite::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    // A JSON array: one statement for all rows takes half the time of one for each.
    let mut update = transaction.prepare_cached(sql)?;
    update.execute(params![format!("{rows:?}"), now]).map(drop)
}

/// Makes the sent messages of a next machine ready, without their bodies; returns the rows.
pub(crate) fn take_back_sent(
    transaction: &Transaction<'_>,
    hop: &str,
) -> rusqlite::Result<Vec<i64>> {
    let sql = "UPDATE outgoing SET status = 1 WHERE hop = ?1 AND status = 2 RETURNING id";
    let mut update = transaction.prepare_cached(sql)?;
    let rows = update.query_map([hop], |row| row.get(0))?;
    rows.collect()
}

pub(super) fn mark_visible(
    transaction: &Transaction<'_>,
    rows: &[i64],
    now: Micros,
) -> rusqlite::Result<()> {
    let sql = "UPDATE outgoing SET status = 3, confirmed_at = ?2
               WHERE id IN (SELECT value FROM json_each(?1)) AND status = 2";
    mark(transaction, sql, rows, now)
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
