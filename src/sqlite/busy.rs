//! How a connection waits while another process has the write lock.
//!
//! SQLite has no queue for its lock: the process that asks at the right moment has it. Its own
//! handler asks more and more seldom, so that a process that comes late overtakes one that has
//! waited for long, and one that never leaves is never overtaken. Here a waiter asks more often the
//! longer it has waited, and a process that shares the file leaves a gap after each commit.

use std::{cell::Cell, thread, time::Duration};

use rusqlite::Connection;
use tokio::time::Instant;

/// How long a lock of another process is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The gap after a commit: long enough for a waiter of some age to ask.
const GAP: Duration = Duration::from_micros(400);
/// Other processes are taken to be writing for so many commits after one of theirs was seen.
const SHARED_FOR: u32 = 64;

/// Whether other processes write the same file, and when this one wrote last.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Changes with each commit of another connection (`PRAGMA data_version`).
    version: i64,
    /// Commits for which the file is still taken to be shared.
    shared_for: u32,
    committed_at: Option<Instant>,
}

thread_local! {
    /// When the present wait began; each database has a thread of its own.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Has the connection wait for locks as described above.
pub(super) fn wait_for_locks(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(ask_again))
}

/// Called by SQLite when a lock is held: waits, and says whether to ask again.
fn ask_again(asked: i32) -> bool {
    let now = Instant::now();
    let since = match SINCE.get().filter(|_| asked > 0) {
        Some(since) => since,
        None => {
            SINCE.set(Some(now));
            now
        }
    };
    let waited = now.saturating_duration_since(since);
    if waited >= PATIENCE {
        return false;
    }
    // Waiters that began together would ask together.
    thread::sleep(pause(waited).mul_f64(0.5 + fastrand::f64()));
    true
}

/// Returns how long to wait before the next question, on average.
fn pause(waited: Duration) -> Duration {
    /// A waiter that has just come leaves the others some turns.
    const LONGEST: Duration = Duration::from_millis(1);
    /// Half of the gap. A question takes some microseconds, so this is 2 % of a core at most.
    const SHORTEST: Duration = Duration::from_micros(200);
    /// A waiter of this age goes before all that came since: six processes have all had a turn in
    /// this time where the disk is quick.
    const OLD: Duration = Duration::from_millis(20);
    let left = 1.0 - waited.as_secs_f64() / OLD.as_secs_f64();
    LONGEST.mul_f64(left.max(0.0)).max(SHORTEST)
}

impl Turns {
    /// Waits until the gap after this connection's last commit is over, where the file is shared.
    pub(super) fn leave_a_gap(&self) {
        let since = self.committed_at.map(|at| at.elapsed());
        if self.shared_for > 0
            && let Some(left) = since.and_then(|since| GAP.checked_sub(since))
        {
            thread::sleep(left);
        }
    }

    /// Looks, under the write lock, whether another connection has written since.
    pub(super) fn look(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let version: i64 = connection
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get(0))?;
        // The first one says nothing: it is only then that this connection begins to look.
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
    fn who_has_waited_for_longer_asks_more_often() {
        let millis = Duration::from_millis;
        let pauses = [0, 5, 10, 20, 4_000].map(|waited| pause(millis(waited)));
        assert!(pauses.is_sorted_by(|a, b| a >= b), "{pauses:?}");
        assert!(pauses[0] >= pauses[4] * 5, "{pauses:?}");
    }
}
