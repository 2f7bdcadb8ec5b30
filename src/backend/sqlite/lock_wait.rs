//! Waiting for the write lock while another process holds it.
//!
//! SQLite has no queue for its lock: the process that polls at the right moment gets it. SQLite's
//! own busy handler polls less and less often. So a new waiter overtakes an old one, and a process
//! that writes without a pause is never overtaken. Here a waiter polls more often the longer it has
//! waited, and a process that shares the file leaves a gap after each commit.

use std::{cell::Cell, thread, time::Duration};

use rusqlite::Connection;
use tokio::time::Instant;

/// The maximum wait for another process's lock.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after a commit: long enough for an old waiter to poll.
const GAP: Duration = Duration::from_micros(400);
/// After a commit of another process, the file counts as shared for this many own commits.
const SHARED_FOR: u32 = 64;

/// Detects other writers of the same file, and leaves gaps for them.
#[derive(Debug, Default)]
pub(super) struct WriteFairness {
    /// Changes with each commit of another connection (`PRAGMA data_version`).
    version: i64,
    /// The number of own commits for which the file still counts as shared.
    shared_for: u32,
    committed_at: Option<Instant>,
}

thread_local! {
    /// The start of the current wait. A thread-local suffices: each database has its own thread.
    static WAITING_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Installs the busy handler of this module.
pub(super) fn wait_for_locks(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(on_busy))
}

/// SQLite calls this when a lock is held: waits, and returns whether to poll again.
fn on_busy(polls: i32) -> bool {
    let now = Instant::now();
    let since = match WAITING_SINCE.get().filter(|_| polls > 0) {
        Some(since) => since,
        None => {
            WAITING_SINCE.set(Some(now));
            now
        }
    };
    let waited = now.saturating_duration_since(since);
    if waited >= LOCK_TIMEOUT {
        return false;
    }
    // Jitter, because waiters that began together would poll together.
    thread::sleep(pause(waited).mul_f64(0.5 + fastrand::f64()));
    true
}

/// Returns the average wait before the next poll.
fn pause(waited: Duration) -> Duration {
    /// A new waiter polls slowly and leaves the lock to older ones.
    const LONGEST: Duration = Duration::from_millis(1);
    /// Half of the gap. A poll takes some microseconds, so this is 2 % of a core at most.
    const SHORTEST: Duration = Duration::from_micros(200);
    /// A waiter of this age polls as often as possible. On a fast disk, six processes have all
    /// written once within this time.
    const OLD: Duration = Duration::from_millis(20);
    let left = 1.0 - waited.as_secs_f64() / OLD.as_secs_f64();
    LONGEST.mul_f64(left.max(0.0)).max(SHORTEST)
}

impl WriteFairness {
    /// If the file is shared, waits until the gap after this connection's last commit is over.
    pub(super) fn leave_a_gap(&self) {
        let since = self.committed_at.map(|at| at.elapsed());
        if self.shared_for > 0
            && let Some(left) = since.and_then(|since| GAP.checked_sub(since))
        {
            thread::sleep(left);
        }
    }

    /// Detects, under the write lock, whether another connection has written since the last call.
    pub(super) fn detect_writers(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let version: i64 = connection
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get(0))?;
        // The first version has no predecessor to compare with.
        let changed = self.version != version && self.version != 0;
        self.version = version;
        self.shared_for = match changed {
            true => SHARED_FOR,
            false => self.shared_for.saturating_sub(1),
        };
        Ok(())
    }

    pub(super) fn committed(&mut self) {
        self.committed_at = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_wait_polls_more_often() {
        let millis = Duration::from_millis;
        let pauses = [0, 5, 10, 20, 4_000].map(|waited| pause(millis(waited)));
        assert!(pauses.is_sorted_by(|a, b| a >= b), "{pauses:?}");
        assert!(pauses[0] >= pauses[4] * 5, "{pauses:?}");
    }
}
