//! A position in a queue, four counters, and its backlog: the messages that are not known to be handled.
//!
//! The totals are 128 bits wide, so the difference of two positions is exact for all values of
//! publishers. It saturates only in a wake-up.
//!
//! The backlog is the newest depth and the messages counted since. A publisher puts, then notifies. So a
//! depth contains all messages whose notifications were counted before it was read, but for handled ones.
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

use super::super::queue::QueueState;
/// The hub's name of its life.
pub(crate) use crate::types::cluster::LifeId as Epoch;
use crate::{
    base::{clock::Tick, fault::planted},
    types::{Notification, Report, ReportState, WakeReason, cluster::FrameEntry},
};

/// The running totals of a queue, or a subscriber's copy of them: its position.
///
/// Packed: aligned to 16 bytes, it would take 16 bytes more in each queue and 8 in each cursor.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(8))]
pub(crate) struct Counters {
    /// The number of events: notifications and timed wake-ups.
    pub(crate) sequence: u64,
    pub(crate) notifications: u128,
    pub(crate) payload: u128,
    pub(crate) messages: u128,
}

impl Counters {
    /// Returns the counters of an entry that starts at `sequence`.
    pub(crate) fn starting_at(sequence: u64) -> Self {
        Self {
            sequence,
            ..Self::default()
        }
    }

    /// Reads the increments of a queue that another relay counted.
    pub(crate) fn of_increment(increment: &FrameEntry) -> Self {
        Self {
            sequence: increment.causes,
            notifications: increment.notifications.into(),
            payload: increment.payload_size.into(),
            messages: increment.messages.into(),
        }
    }

    /// Adds a notification's values; the sequence is counted apart.
    pub(crate) fn add(&mut self, notification: &Notification) {
        self.notifications += u128::from(notification.notifications.max(1));
        self.payload += u128::from(notification.payload_size);
        self.messages += u128::from(notification.messages.max(1));
    }

    /// Adds totals; the sequence is counted apart.
    pub(crate) fn add_totals(&mut self, other: &Self) {
        self.notifications += other.notifications;
        self.payload += other.payload;
        self.messages += other.messages;
    }

    /// Returns the difference since an earlier position, saturating.
    pub(crate) fn delta_since(&self, position: &Self) -> Delta {
        Delta {
            notifications: saturate(self.notifications.saturating_sub(position.notifications)),
            payload: saturate(self.payload.saturating_sub(position.payload)),
            messages: saturate(self.messages.saturating_sub(position.messages)),
        }
    }
}

/// The difference of two positions, as a wake-up states it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) notifications: u64,
    pub(crate) payload: u64,
    pub(crate) messages: u64,
}

impl Delta {
    pub(crate) fn add(&mut self, other: &Self) {
        self.notifications = self.notifications.saturating_add(other.notifications);
        self.payload = self.payload.saturating_add(other.payload);
        self.messages = self.messages.saturating_add(other.messages);
    }

    /// Returns the number of messages to find listeners for: at least one for each notification,
    /// and at least one in all.
    pub(crate) fn needs(&self) -> u64 {
        self.messages.max(self.notifications).max(1)
    }

    /// Splits off a part with this many messages. The first part has all notifications and payload,
    /// so that the parts add up.
    pub(crate) fn split(&mut self, messages: u64, first: bool) -> Self {
        let messages = messages.min(self.messages);
        self.messages -= messages;
        let whole = if first { *self } else { Self::default() };
        if first {
            (self.notifications, self.payload) = (0, 0);
        }
        Self { messages, ..whole }
    }
}

/// The queue's counters, and the sequences of its newest notification and its newest resync (C6).
/// Positions are compared with it. Other causes are timed wake-ups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueHead {
    pub(crate) counters: Counters,
    pub(crate) notified: u64,
    pub(crate) resynced: u64,
    /// Own causes wait for a frame to the other relays of a cluster.
    pub(crate) has_increments: bool,
}

impl QueueHead {
    /// Returns why a subscriber at `position` gets a wake-up, or `None` where it is up to date.
    pub(crate) fn wake_reason(&self, position: &Counters) -> Option<WakeReason> {
        if position.sequence >= self.counters.sequence {
            return None;
        }
        Some(if self.notified > position.sequence {
            WakeReason::Notified
        } else if self.resynced > position.sequence {
            WakeReason::CatchUp
        } else {
            WakeReason::Timed
        })
    }
}

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

pub(crate) fn saturate(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}
