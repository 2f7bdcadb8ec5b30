//! Removal in small steps: history, messages that are too old, and free pages.
//!
//! Each step is a short write, so that no other writer of the file waits long. Knows no socket.

use std::time::Duration;

use rusqlite::{Connection, Transaction};
use tokio::time::Instant;

use super::{
    config::QueueManagerConfig,
    handover::{bury_absent, outgoing::expire_unoffered},
    manager::QueueManager,
};
use crate::{
    base::sync::lock,
    error::Result,
    queue::sqlite::clock::{self, Micros},
};

/// The rows that a step removes. Each takes some microseconds.
const STEP: i64 = 1_000;
/// The messages that a step moves with their bodies: at most 6.4 MB.
const MOVED_PER_STEP: usize = 100;
/// The free pages that a step gives back: 1 MiB.
const PAGES_PER_STEP: i64 = 256;
/// A file keeps this many free pages, and a quarter of its size, for new messages.
const KEPT_FREE: i64 = 1_024;

/// Without a relay nothing else bounds the number of rows.
const MERGE_DUE: &str = "INSERT INTO unnotified (queue, due, messages, bytes, revision)
     SELECT queue, 0, sum(messages), sum(bytes), random() FROM unnotified
     WHERE due BETWEEN 1 AND ?1 GROUP BY queue
     ON CONFLICT DO UPDATE SET messages = messages + excluded.messages,
       bytes = bytes + excluded.bytes, revision = excluded.revision";
const REMOVE_MERGED: &str = "DELETE FROM unnotified WHERE due BETWEEN 1 AND ?1";
const REMOVE_SENT: &str = "DELETE FROM outgoing WHERE id IN (SELECT id FROM outgoing
       WHERE status = 3 AND confirmed_at <= ?1 ORDER BY confirmed_at LIMIT ?2)";
const COUNT_SENT: &str = "SELECT count(*) FROM outgoing WHERE status = 3";
const REMOVE_RECEIVED: &str = "DELETE FROM received WHERE uid IN
     (SELECT uid FROM received WHERE received_at <= ?1 ORDER BY received_at LIMIT ?2)";
const COUNT_RECEIVED: &str = "SELECT count(*) FROM received";
const REMOVE_ARRIVED: &str = "DELETE FROM arrived WHERE uid IN
     (SELECT uid FROM arrived WHERE at <= ?1 ORDER BY at LIMIT ?2)";
/// Machines that never answered, and for which no message waits.
const REMOVE_HOPS: &str = "DELETE FROM hops WHERE receiver IS NULL AND uncertain_upto = 0
       AND NOT EXISTS (SELECT 1 FROM outgoing WHERE hop = hops.authority AND status = 1)
       AND NOT EXISTS (SELECT 1 FROM outgoing WHERE hop = hops.authority AND status = 2)";
/// The held ids of messages that were given up, of senders that have not connected by a time of the file.
const REMOVE_HELD: &str = "DELETE FROM inbound WHERE queue = ''
       AND sender IN (SELECT id FROM senders WHERE seen_at <= ?1)";
/// Senders without messages here that have not connected by a time of the file.
const REMOVE_SENDERS: &str =
    "DELETE FROM senders WHERE seen_at <= ?1 AND id NOT IN (SELECT sender FROM inbound)";
/// A sender connects at least once an hour while it has a host. One that was away for this long, and
/// for the age limit, does not come back.
const ABSENT: Micros = 2 * 24 * 3_600_000_000;
/// After this long each sender has connected again: it could not while this machine was off or suspended.
const GREETED: Duration = Duration::from_secs(2 * 3_600);
/// If the wall clock goes further than the process's by this much, one of them has jumped, or this machine
/// was suspended.
const JUMP: Micros = 60_000_000;

/// Since when this process has run without a suspension and without a jump of the clock.
#[derive(Debug)]
pub(super) struct Awake {
    since: Instant,
    /// The newest reading of both clocks.
    read_at: Instant,
    wall: Micros,
}

impl Awake {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            since: now,
            read_at: now,
            wall: clock::machine_time(),
        }
    }

    /// Returns whether each sender could connect again by now.
    fn is_greeted(&mut self, now: Instant, wall: Micros) -> bool {
        let passed = micros(now.duration_since(self.read_at));
        if wall.saturating_sub(self.wall) > passed.saturating_add(JUMP) {
            self.since = now;
        }
        (self.read_at, self.wall) = (now, wall);
        now.duration_since(self.since) >= GREETED
    }
}

impl QueueManager {
    /// Does one step of each kind of removal; returns whether more is left to do. The host calls it
    /// every ten seconds, and again soon while it returns `true`.
    ///
    /// # Errors
    /// Of the file.
    pub async fn maintain(&self) -> Result<bool> {
        let config = self.config().clone();
        let removed = self.database().write_unsynced(move |transaction| {
            let now = clock::advance(transaction)?;
            remove(transaction, &config, now)
        });
        let removed = removed.await?;
        let absent = micros(self.config().max_age).max(ABSENT);
        let gone = absent.saturating_add(micros(self.config().history_age));
        let wall = clock::machine_time();
        let is_greeted = lock(&self.shared.awake).is_greeted(Instant::now(), wall);
        let buried = self.database().write(move |transaction| {
            let now = clock::advance(transaction)?;
            if is_greeted {
                bury_absent(transaction, wall.saturating_sub(absent), (now, wall))?;
                transaction.execute(REMOVE_HELD, [now.saturating_sub(gone)])?;
                transaction.execute(REMOVE_SENDERS, [now.saturating_sub(absent)])?;
            }
            Ok(expire_unoffered(transaction, now, MOVED_PER_STEP)? >= MOVED_PER_STEP)
        });
        let buried = buried.await?;
        let shrunk = self.database().run(|connection| shrink(connection)).await?;
        Ok(removed || buried || shrunk)
    }
}

/// Removes history; returns whether a step was a full one.
fn remove(
    transaction: &Transaction<'_>,
    config: &QueueManagerConfig,
    now: Micros,
) -> rusqlite::Result<bool> {
    let delete = |sql, upto: Micros, rows: i64| {
        let mut delete = transaction.prepare_cached(sql)?;
        let deleted = delete.execute([upto, rows])?;
        Ok::<_, rusqlite::Error>(i64::try_from(deleted).unwrap_or(i64::MAX) >= STEP)
    };
    let cut = now.saturating_sub(micros(config.history_age));
    let most = i64::try_from(config.history_rows).unwrap_or(i64::MAX);
    transaction.prepare_cached(REMOVE_HOPS)?.execute(())?;
    let known_from = now.saturating_sub(micros(config.duplicate_window));
    let mut is_full = delete(REMOVE_ARRIVED, known_from, STEP)?;
    for sql in [MERGE_DUE, REMOVE_MERGED] {
        transaction.prepare_cached(sql)?.execute([now])?;
    }
    for (remove, count) in [(REMOVE_SENT, COUNT_SENT), (REMOVE_RECEIVED, COUNT_RECEIVED)] {
        is_full |= delete(remove, cut, STEP)?;
        let count: i64 = transaction
            .prepare_cached(count)?
            .query_row((), |row| row.get(0))?;
        let excess = (count - most).clamp(0, STEP);
        is_full |= excess > 0 && delete(remove, Micros::MAX, excess)?;
    }
    Ok(is_full)
}

fn micros(span: Duration) -> Micros {
    Micros::try_from(span.as_micros()).unwrap_or(Micros::MAX)
}

/// Gives free pages back to the file system; returns whether there are more.
fn shrink(connection: &Connection) -> rusqlite::Result<bool> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (free, all) = (number("freelist_count")?, number("page_count")?);
    let is_incremental = number("auto_vacuum")? == 2;
    if !is_incremental || free <= KEPT_FREE.max(all / 4) {
        return Ok(false);
    }
    let mut step = connection.prepare(&format!("PRAGMA incremental_vacuum({PAGES_PER_STEP})"))?;
    // The statement removes one page per row.
    let mut rows = step.query(())?;
    while rows.next()?.is_some() {}
    Ok(true)
}
