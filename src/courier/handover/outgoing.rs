//! The messages to other machines in the queue file: reading, and their ends.
//!
//! Each function runs in the caller's transaction. Knows neither frames nor sessions.

use std::collections::HashSet;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::frames::{Micros, OfferedMessage, Uid};
use crate::{
    courier::message::{Destination as Queue, check_authority},
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
/// The age limit of a purged message. It is removed when it is certain that the hop has not stored it.
pub(crate) const PURGED: Micros = -1;

/// The purged messages that a step removes.
const REMOVED: usize = 1_000;

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
    let (mut hops, mut last) = (Vec::new(), Vec::new());
    loop {
        let next = select.query_row([Text(&last)], |row| {
            Ok(row.get_ref(0)?.as_bytes()?.to_vec())
        });
        let Some(next) = next.optional()? else {
            return Ok(hops);
        };
        // A damaged name is that of no machine, and delays no other one.
        hops.extend(String::from_utf8(next.clone()).ok());
        last = next;
    }
}

/// Moves up to `most` ready messages beyond their age limit to the dead letters, without their next
/// machines, and removes purged ones; returns how many. A message that its next machine may have stored
/// stays: only a
/// connection shows whether it has.
pub(crate) fn expire_unoffered(
    transaction: &Transaction<'_>,
    now: Micros,
    most: usize,
) -> rusqlite::Result<usize> {
    let mut expired = 0;
    for hop in hops_with(transaction, 1)? {
        let after = uncertain_upto(transaction, &hop)?;
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

/// Moves up to `most` ready messages of a next machine beyond their age limit to the dead letters, and
/// removes purged ones: those behind the row `after` that are not among `except`. Returns how many; `most`
/// if there may be more.
pub(super) fn expire(
    transaction: &Transaction<'_>,
    hop: &str,
    after: i64,
    now: Micros,
    most: usize,
    except: &HashSet<i64>,
) -> rusqlite::Result<usize> {
    let purged = "DELETE FROM outgoing WHERE id IN (SELECT id FROM outgoing
                    WHERE hop = ?1 AND status = 1 AND ends_at = ?2 AND id > ?3
                      AND id NOT IN (SELECT value FROM json_each(?4)) LIMIT ?5)";
    let offered: Vec<i64> = except.iter().copied().collect();
    let values = params![hop, PURGED, after, format!("{offered:?}"), limit(REMOVED)];
    if transaction.prepare_cached(purged)?.execute(values)? == REMOVED {
        return Ok(most);
    }
    let sql = "SELECT id FROM outgoing
               WHERE hop = ?1 AND status = 1 AND ends_at BETWEEN 0 AND ?2 AND id > ?3
               ORDER BY ends_at LIMIT ?4";
    let rows: Vec<i64> = transaction
        .prepare_cached(sql)?
        .query_map(
            params![hop, now, after, limit(most + except.len())],
            |row| row.get(0),
        )?
        .collect::<rusqlite::Result<_>>()?;
    let rows = rows.into_iter().filter(|row| !except.contains(row));
    let mut expired = 0;
    for row in rows.take(most) {
        bury(transaction, row, now, TOO_OLD)?;
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
           AND authority = ?4 AND queue = ?5 AND ends_at IS NOT -1 ORDER BY id LIMIT 1"
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

/// Copies the row `?1` of a table to the dead letters. `select` states the columns, with the reason
/// `?2` and the time `?3`.
pub(crate) fn add_dead_letter(
    transaction: &Transaction<'_>,
    select: &str,
    row: i64,
    reason: &str,
    now: Micros,
) -> rusqlite::Result<()> {
    let sql = format!(
        "INSERT INTO dead_letters
           (uid, authority, queue, reason, stored_at, died_at, checksum, body)
         {select}
         ON CONFLICT (uid) DO UPDATE SET reason = excluded.reason, died_at = excluded.died_at"
    );
    let mut insert = transaction.prepare_cached(&sql)?;
    insert.execute(params![row, reason, now]).map(drop)
}

/// Moves a message that was not sent to the dead letters.
pub(crate) fn bury(
    transaction: &Transaction<'_>,
    row: i64,
    now: Micros,
    reason: &str,
) -> rusqlite::Result<()> {
    let select = "SELECT uid, authority, queue, ?2, stored_at, ?3, checksum, body
                  FROM outgoing WHERE id = ?1 AND status = 1";
    add_dead_letter(transaction, select, row, reason, now)?;
    let delete = "DELETE FROM outgoing WHERE id = ?1 AND status = 1";
    transaction.prepare_cached(delete)?.execute([row]).map(drop)
}

/// Reads the columns of a machine and a queue; `None` if they are damaged. Neither this machine nor the
/// next one could read such a row, so that it would be offered again and again.
pub(super) fn destination(
    row: &rusqlite::Row<'_>,
    column: usize,
) -> rusqlite::Result<Option<Destination>> {
    let text = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_str().ok());
    let (Some(authority), Some(queue)) = (text(column)?, text(column + 1)?) else {
        return Ok(None);
    };
    let is_valid = check_authority(authority).is_ok() && Queue::local(queue).is_ok();
    Ok(is_valid.then(|| (authority.to_owned(), queue.to_owned())))
}

/// A next machine that the routes no longer name, or of a program with other routes.
#[derive(Debug)]
pub(crate) struct Detour {
    /// As stored: it may be damaged.
    hop: Vec<u8>,
    authority: String,
    new_hop: String,
}

/// The ready messages of a hop to an authority that the hop has certainly not stored.
const CERTAIN: &str = "hop = ?1 AND authority = ?2 AND status = 1
    AND id > coalesce((SELECT uncertain_upto FROM hops WHERE authority = ?1), 0)";

/// Returns the next machines of ready messages that are not those of `hop_of`. It steps from one
/// destination to the next in the index.
pub(crate) fn detours(
    connection: &Connection,
    hop_of: impl Fn(&str) -> String,
) -> rusqlite::Result<Vec<Detour>> {
    let mut select = connection.prepare_cached(
        "SELECT hop, authority FROM outgoing WHERE status = 1 AND (hop, authority) > (?1, ?2)
         ORDER BY hop, authority LIMIT 1",
    )?;
    let mut certain =
        connection.prepare_cached(&format!("SELECT 1 FROM outgoing WHERE {CERTAIN}"))?;
    let (mut hop, mut authority) = (Vec::new(), Vec::new());
    let mut detours = Vec::new();
    loop {
        let after = params![Text(&hop), Text(&authority)];
        let next = select.query_row(after, |row| {
            let text = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_bytes()?.to_vec());
            Ok((text(0)?, text(1)?))
        });
        let Some(next) = next.optional()? else {
            return Ok(detours);
        };
        (hop, authority) = next;
        let Ok(authority) = str::from_utf8(&authority) else {
            continue;
        };
        let new_hop = hop_of(authority);
        if new_hop.as_bytes() != hop && certain.exists(params![Text(&hop), authority])? {
            detours.push(Detour {
                hop: hop.clone(),
                authority: authority.to_owned(),
                new_hop,
            });
        }
    }
}

/// Gives the messages of a detour their new next machine. Those that the former one may have stored
/// stay.
///
/// They get the next numbers in the same order: a connection to the new machine may have passed the old
/// ones, and must not pass those of later messages.
pub(crate) fn reroute(transaction: &Transaction<'_>, detour: &Detour) -> rusqlite::Result<()> {
    let last = "SELECT max(coalesce(max(id), 0),
                  coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outgoing'), 0))
                FROM outgoing";
    let last: i64 = transaction
        .prepare_cached(last)?
        .query_row((), |row| row.get(0))?;
    let sql = format!(
        "UPDATE outgoing SET hop = ?3, id = ?4 + moved.place
         FROM (SELECT id AS former, row_number() OVER (ORDER BY id) AS place
               FROM outgoing WHERE {CERTAIN}) AS moved
         WHERE id = moved.former"
    );
    let values = params![Text(&detour.hop), detour.authority, detour.new_hop, last];
    let moved = transaction.prepare_cached(&sql)?.execute(values)?;
    // An update of an id does not raise the number of the next row.
    let next = "UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'outgoing'";
    transaction
        .prepare_cached(next)?
        .execute([last + limit(moved)])
        .map(drop)
}

/// A text of a file, which may be no UTF-8.
struct Text<'a>(&'a [u8]);

impl rusqlite::ToSql for Text<'_> {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        let text = rusqlite::types::ValueRef::Text(self.0);
        Ok(rusqlite::types::ToSqlOutput::Borrowed(text))
    }
}
