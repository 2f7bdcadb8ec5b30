//! The wake-ups whose command is to run: at most one of each queue. A command that failed is run again
//! soon: the relay does not know of it.

use std::time::Duration;

use reveille::WorkDetected;
use tokio::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Pending(Vec<Run>);

#[derive(Debug)]
struct Run {
    work: WorkDetected,
    due: Instant,
    /// It is the run after one that failed.
    is_repeated: bool,
}

/// The pause after a run that failed.
const PAUSE: Duration = Duration::from_secs(5);

impl Pending {
    /// Adds a wake-up, which is due at once.
    pub(super) fn add(&mut self, work: WorkDetected) {
        let now = Instant::now();
        match self.0.iter_mut().find(|run| run.work.queue == work.queue) {
            Some(run) => {
                merge(&mut run.work, work);
                (run.due, run.is_repeated) = (run.due.min(now), false);
            }
            None => self.push(work, now, false),
        }
    }

    /// Adds a run for a poll. A run that waits already reads the queue as well, and covers a wake-up.
    pub(super) fn add_poll(&mut self, work: WorkDetected) {
        if !self.has(&work) {
            self.push(work, Instant::now(), false);
        }
    }

    /// Adds the run after one that failed. A wake-up that came meanwhile starts the next run at once.
    pub(super) fn add_failed(&mut self, work: WorkDetected) {
        if !self.has(&work) {
            self.push(work, Instant::now() + PAUSE, true);
        }
    }

    /// Returns when the next run is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.iter().map(|run| run.due).min()
    }

    /// Takes the run that has been due for longest.
    pub(super) fn take(&mut self) -> Option<WorkDetected> {
        let next = self.next_due().filter(|due| *due <= Instant::now())?;
        let at = self.0.iter().position(|run| run.due == next)?;
        Some(self.0.remove(at).work)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether only runs after failed ones are left.
    pub(super) fn has_only_repeated(&self) -> bool {
        self.0.iter().all(|run| run.is_repeated)
    }

    fn has(&self, work: &WorkDetected) -> bool {
        self.0.iter().any(|run| run.work.queue == work.queue)
    }

    fn push(&mut self, work: WorkDetected, due: Instant, is_repeated: bool) {
        self.0.push(Run {
            work,
            due,
            is_repeated,
        });
    }
}

/// Merges a later wake-up of the same queue into one that waits.
fn merge(waiting: &mut WorkDetected, later: WorkDetected) {
    *waiting = WorkDetected {
        reason: waiting.reason.max(later.reason),
        notifications: waiting.notifications.saturating_add(later.notifications),
        payload_size: waiting.payload_size.saturating_add(later.payload_size),
        messages: waiting.messages.saturating_add(later.messages),
        ..later
    };
}

#[cfg(test)]
mod tests {
    use reveille::{LastEvent, WakeReason};

    use super::*;

    fn work(queue: &str, sequence: u64, reason: WakeReason) -> WorkDetected {
        WorkDetected {
            queue: queue.parse().expect(queue),
            reason,
            sequence,
            notifications: 1,
            payload_size: 10,
            messages: 2,
            last_event: LastEvent::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn wake_ups_that_wait_are_merged_into_one_run_of_each_queue() {
        let mut pending = Pending::default();
        pending.add(work("a/q", 1, WakeReason::Notified));
        pending.add(work("a/r", 1, WakeReason::Notified));
        pending.add(work("a/q", 2, WakeReason::Timed));
        let first = pending.take().expect("a run");
        assert_eq!(
            (first.sequence, first.notifications, first.payload_size),
            (2, 2, 20)
        );
        assert_eq!(first.reason, WakeReason::Notified);
        assert_eq!(pending.take().expect("a run").queue.to_string(), "a/r");
        assert!(pending.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_failed_is_tried_again_after_a_pause_or_with_the_next_wake_up() {
        let mut pending = Pending::default();
        let failed = work("a/q", 1, WakeReason::Notified);
        pending.add_failed(failed.clone());
        assert_eq!(pending.next_due(), Some(Instant::now() + PAUSE));
        pending.add_poll(work("a/q", 0, WakeReason::CatchUp));
        assert!(pending.take().is_none(), "its own run covers a wake-up");
        assert!(pending.has_only_repeated());
        tokio::time::sleep(PAUSE).await;
        assert_eq!(pending.take().as_ref(), Some(&failed));
        pending.add(failed.clone());
        pending.add_failed(failed.clone());
        assert!(!pending.has_only_repeated(), "a wake-up came meanwhile");
        assert!(pending.take().is_some());
        pending.add_failed(failed.clone());
        pending.add(failed);
        assert!(pending.take().is_some(), "at once");
    }
}
