//! A position in a queue: four counters.
//!
//! The totals are 128 bits wide, so the difference of two positions is exact for all values of
//! publishers. It saturates only in a wake-up.

/// The hub's name of its life.
pub(crate) use crate::types::cluster::LifeId as Epoch;
use crate::types::{Notification, WakeReason, cluster::FrameEntry};

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

pub(crate) fn saturate(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}
