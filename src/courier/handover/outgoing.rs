//! The messages to other machines in the queue file: their next machines, and their ends.
//!
//! Each function runs in the caller's transaction. Knows no session.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use crate::queue::sqlite::{checksum::checksum, clock::Micros, limit};

/// The authority of the machine that a message goes to, and the queue.
pub(super) type Destination = (String, String);

/// The reason of a dead letter.
const TOO_OLD: &str = "the next machine did not accept it within the age limit";
/// All messages may be stored at the hop.
pub(crate) const ALL: i64 = i64::MAX;

/// A message that is sent.
#[derive(Debug)]
pub(crate) struct NewSend {
    pub(crate) uid: [u8; 16],
    /// Empty for this machine.
    pub(crate) authority: String,
    pub(crate) queue: String,
    pub(crate) body: Bytes,
    /// The next machine, if the message goes to another one.
    pub(crate) hop: Option<String>,
}

/// Adds a message of this machine.
pub(crate) fn insert(
    transaction: &Transaction<'_>,
    send: &NewSend,
    stored_at: Micros,
    ends_at: Option<Micros>,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO outgoing (uid, authority, queue, hop, status, stored_at, ends_at,
                 visited, size, checksum, body)
               VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, x'', ?7, ?8, ?9)";
    transaction.prepare_cached(sql)?.execute(params![
        send.uid,
        send.authority,
        send.queue,
        send.hop,
        stored_at,
        ends_at,
        limit(send.body.len()),
        checksum(&send.body),
        &send.body[..]
    ])?;
    Ok(())
}

/// Counts the ready messages of a next machine, up to `most`.
pub(crate) fn count_ready(connection: &Connection, hop: &str, most: u64) -> rusqlite::Result<u64> {
    let sql = "SELECT count(*) FROM
                 (SELECT 1 FROM outgoing WHERE hop = ?1 AND status = 1 LIMIT ?2)";
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let mut select = connection.prepare_cached(sql)?;
    let count: i64 = select.query_row(params![hop, most], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// Returns the next machines of messages with a status. It steps from one machine to the next in the
/// index, so that the number of messages does not matter.
pub(crate) fn hops_with(connection: &Connection, status: u8) -> rusqlite::Result<Vec<String>> {
    let sql = format!(
        "WITH RECURSIVE hops (hop) AS (
           SELECT min(hop) FROM outgoing WHERE status = {status}
           UNION
           SELECT (SELECT min(hop) FROM outgoing WHERE status = {status} AND hop > hops.hop)
             FROM hops WHERE hop IS NOT NULL)
         SELECT hop FROM hops WHERE hop IS NOT NULL"
    );
    let mut select = connection.prepare_cached(&sql)?;
    let hops = select.query_map([], |row| {
        Ok(row.get_ref(0)?.as_str().ok().map(str::to_owned))
    })?;
    // A damaged name is that of no machine, and delays no other one.
    hops.filter_map(Result::transpose).collect()
}

/// Returns the destinations of the ready messages of a next machine, in their order. It steps from one
/// destination to the next in the index. `UNION` ends it where the index and the table of a damaged file
/// differ.
pub(crate) fn destinations(
    connection: &Connection,
    hop: &str,
) -> rusqlite::Result<Vec<Destination>> {
    let sql = "WITH RECURSIVE places (authority, queue) AS (
           SELECT * FROM (SELECT authority, queue FROM outgoing WHERE status = 1 AND hop = ?1
             ORDER BY authority, queue LIMIT 1)
           UNION
           SELECT o.authority, o.queue FROM places p JOIN outgoing o ON o.id = (
             SELECT id FROM outgoing
             WHERE status = 1 AND hop = ?1 AND (authority, queue) > (p.authority, p.queue)
             ORDER BY authority, queue LIMIT 1))
         SELECT authority, queue FROM places";
    let mut select = connection.prepare_cached(sql)?;
    let places = select.query_map([hop], |row| {
        let text = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_str().ok());
        let (authority, queue) = (text(0)?, text(1)?);
        Ok(authority
            .zip(queue)
            .map(|(authority, queue)| (authority.to_owned(), queue.to_owned())))
    })?;
    places.filter_map(Result::transpose).collect()
}

/// Moves up to `most` ready messages beyond their age limit to the dead letters, without their next
/// machines; returns how many. A message that its next machine may have stored stays: only a connection
/// shows whether it has.
pub(crate) fn expire_unoffered(
    transaction: &Transaction<'_>,
    now: Micros,
    most: usize,
) -> rusqlite::Result<usize> {
    let mut expired = 0;
    for hop in hops_with(transaction, 1)? {
        let after = uncertain_upto(transaction, &hop)?;
        expired += expire(transaction, &hop, after, now, most - expired)?;
    }
    Ok(expired)
}

/// Moves up to `most` ready messages of a next machine beyond their age limit to the dead letters: those
/// behind the row `after`. Returns how many; `most` if there may be more.
pub(super) fn expire(
    transaction: &Transaction<'_>,
    hop: &str,
    after: i64,
    now: Micros,
    most: usize,
) -> rusqlite::Result<usize> {
    let sql = "SELECT id FROM outgoing
               WHERE hop = ?1 AND status = 1 AND ends_at <= ?2 AND id > ?3
               ORDER BY ends_at LIMIT ?4";
    let rows: Vec<i64> = transaction
        .prepare_cached(sql)?
        .query_map(params![hop, now, after, limit(most)], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for row in &rows {
        bury(transaction, *row, now, TOO_OLD)?;
    }
    Ok(rows.len())
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
    let sql = "UPDATE hops SET last_error = NULL, last_error_at = NULL
               WHERE authority = ?1 AND last_error IS NOT NULL";
    transaction.prepare_cached(sql)?.execute([hop]).map(drop)
}

pub(super) fn mark_sent(
    transaction: &Transaction<'_>,
    rows: &[i64],
    now: Micros,
) -> rusqlite::Result<()> {
    // A JSON array: one statement for all rows takes half the time of one for each.
    let sql = "UPDATE outgoing SET status = 2, sent_at = ?2, body = x''
               WHERE id IN (SELECT value FROM json_each(?1)) AND status = 1";
    let mut update = transaction.prepare_cached(sql)?;
    update.execute(params![format!("{rows:?}"), now]).map(drop)
}

/// All sent messages of a next machine are visible there.
pub(super) fn mark_visible(
    transaction: &Transaction<'_>,
    hop: &str,
    now: Micros,
) -> rusqlite::Result<()> {
    let sql = "UPDATE outgoing SET status = 3, confirmed_at = ?2 WHERE hop = ?1 AND status = 2";
    let mut update = transaction.prepare_cached(sql)?;
    update.execute(params![hop, now]).map(drop)
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

/// Moves a message to the dead letters.
pub(crate) fn bury(
    transaction: &Transaction<'_>,
    row: i64,
    now: Micros,
    reason: &str,
) -> rusqlite::Result<()> {
    let select = "SELECT uid, authority, queue, ?2, stored_at, ?3, checksum, body
                  FROM outgoing WHERE id = ?1";
    add_dead_letter(transaction, select, row, reason, now)?;
    let delete = "DELETE FROM outgoing WHERE id = ?1";
    transaction.prepare_cached(delete)?.execute([row]).map(drop)
}

/// A next machine that the routes no longer name, or of a program with other routes.
#[derive(Debug)]
pub(crate) struct Detour {
    hop: String,
    authority: String,
    new_hop: String,
}

/// The ready messages of a hop to an authority that the hop has certainly not stored.
const CERTAIN: &str = "hop = ?1 AND authority = ?2 AND status = 1
    AND id > coalesce((SELECT uncertain_upto FROM hops WHERE authority = ?1), 0)";

/// Returns the next machines of ready messages that are not those of `hop_of`.
pub(crate) fn detours(
    connection: &Connection,
    hop_of: impl Fn(&str) -> String,
) -> rusqlite::Result<Vec<Detour>> {
    let certain = format!("SELECT 1 FROM outgoing WHERE {CERTAIN}");
    let mut certain = connection.prepare_cached(&certain)?;
    let mut detours = Vec::new();
    for hop in hops_with(connection, 1)? {
        let mut destinations = destinations(connection, &hop)?;
        destinations.dedup_by(|one, other| one.0 == other.0);
        for (authority, _) in destinations {
            let new_hop = hop_of(&authority);
            if new_hop != hop && certain.exists([&hop, &authority])? {
                detours.push(Detour {
                    hop: hop.clone(),
                    authority,
                    new_hop,
                });
            }
        }
    }
    Ok(detours)
}

/// Gives the messages of a detour their new next machine. Those that the former one may have stored
/// stay.
pub(crate) fn reroute(transaction: &Transaction<'_>, detour: &Detour) -> rusqlite::Result<()> {
    let sql = format!("UPDATE outgoing SET hop = ?3 WHERE {CERTAIN}");
    let mut update = transaction.prepare_cached(&sql)?;
    let values = [&detour.hop, &detour.authority, &detour.new_hop];
    update.execute(values).map(drop)
}
