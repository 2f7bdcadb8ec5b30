//! The backlog of a queue: messages that are not known to be handled.
//!
//! It is the newest depth and the messages counted since. A publisher puts, then notifies. So a depth
//! contains all messages whose notifications were counted before it was read, but for handled ones.
//! Only certainty lowers the backlog: too much of it costs a listener without work, too little strands
//! messages. It is certain which messages a report has seen in three cases:
//!
//! * DRAINED, with the sequence of the stream's newest wake-up: the queue was read until empty after
//!   that wake-up, so all messages counted up to it are covered.
//! * A depth that was read [`LATE`] or more after the queue's newest cause. A report takes time to
//!   arrive, so its depth is older than its age says.
//! * A depth that was read as long after an earlier report: messages counted up to that one are
//!   covered. So the backlog of a queue that never pauses does not grow without bound.
//!
//! Any other depth may raise the backlog only.

use std::time::Duration;

use super::super::{counters::saturate, queue::QueueState};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{Report, ReportState},
};

/// A listener gives up a report after 10 s, and sends another one with a new age.
const LATE: Duration = Duration::from_secs(10);

impl QueueState {
    /// Returns the number of messages that are not known to be handled.
    pub(crate) fn backlog(&self) -> u64 {
        self.depth.0.saturating_add(self.since_depth)
    }

    pub(crate) fn add_to_backlog(&mut self, messages: u128) {
        self.since_depth = self.since_depth.saturating_add(saturate(messages));
    }

    /// Notes the depth that a report states: no visible message after DRAINED, and without an age
    /// none. `seen` has the messages counted up to the stream's newest wake-up, where the report
    /// covers that.
    pub(crate) fn note_depth(&mut self, report: &Report, seen: Option<u128>, now: Tick) {
        self.heard = true;
        let (depth, read_at) = match (report.state, report.depth_age) {
            (ReportState::Drained, _) => (0, now),
            (_, Some(age)) => (report.current_queue_depth, now - age),
            (_, None) => return self.set_checkpoint(now),
        };
        // Another listener's may be newer.
        if self.depth.1 != Tick::NEVER && self.depth.1 > read_at {
            return;
        }
        let messages = self.counters.messages;
        let covered = match report.state {
            _ if planted!(LateDepthLowersBacklog) => Some(messages),
            ReportState::Drained => seen,
            _ => self.covered_by_depth(read_at),
        };
        let unseen = covered.map(|covered| saturate(messages.saturating_sub(covered)));
        let before = self.backlog().saturating_sub(depth);
        self.depth = (depth, read_at);
        self.since_depth = unseen.map_or(before, |unseen| unseen.min(before));
        self.set_checkpoint(now);
    }

    /// Returns the messages counted before a depth was certainly read; takes the checkpoint that it
    /// uses.
    fn covered_by_depth(&mut self, read_at: Tick) -> Option<u128> {
        if self.active_at + LATE <= read_at {
            return Some(self.counters.messages);
        }
        let checkpoint = &mut self.coordinator.as_mut()?.checkpoint;
        let (messages, _) = checkpoint.take_if(|(_, at)| *at + LATE <= read_at)?;
        Some(messages.into())
    }

    /// Notes the messages counted by now, for a later depth, unless an earlier report waits for one.
    /// A queue without a coordinator has no checkpoint: it has neither a group nor a sentinel.
    fn set_checkpoint(&mut self, now: Tick) {
        let messages = saturate(self.counters.messages);
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.checkpoint.get_or_insert((messages, now));
        }
    }
}
