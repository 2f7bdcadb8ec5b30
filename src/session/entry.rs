//! One entry of a publisher's pending notifications: what is conflated into it, whom it answers.

use std::time::Duration;

use super::callers::Listed;
use crate::{
    clock::Tick,
    words::{Limits, Notification, QueueAddress},
};

/// What is conflated: the same queue at the same time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) queue: QueueAddress,
    /// When it is due, on the grid; `None` for at once.
    pub(super) due: Option<Tick>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) notification: Notification,
    /// The first submission in it, for which a flush waits; none where it was set aside.
    pub(super) oldest: u64,
    /// Sent among this many at most: half of the request that it was refused in.
    pub(super) among: usize,
    pub(super) waiters: Listed,
    /// It holds something that was posted.
    pub(super) posted: bool,
}

impl Entry {
    /// Takes on another notification of the same queue and time.
    pub(super) fn merge(&mut self, other: Self) {
        let (kept, new) = (&mut self.notification, other.notification);
        kept.notifications = kept
            .notifications
            .max(1)
            .saturating_add(new.notifications.max(1));
        kept.messages = kept.messages.max(1).saturating_add(new.messages.max(1));
        kept.payload_size = kept.payload_size.saturating_add(new.payload_size);
        if new.published_at >= kept.published_at {
            kept.published_at = new.published_at;
            kept.traceparent = new.traceparent;
        }
        self.oldest = self.oldest.min(other.oldest);
        self.among = self.among.min(other.among);
        self.posted |= other.posted;
        self.waiters.extend(other.waiters);
    }

    /// It waits for room: no flush waits for it, and the flush is told at once.
    pub(super) fn is_set_aside(&mut self) {
        (self.oldest, self.among, self.posted) = (u64::MAX, usize::MAX, false);
    }

    /// Returns the notification with what is left of its delay.
    pub(super) fn effective(&self, now: Tick) -> Notification {
        // The grid may lie beyond the longest delay, which is refused; cut to it, the wake-up comes
        // no earlier than asked for all the same.
        let left = self.key.due.map_or(Duration::ZERO, |due| due.since(now));
        let delay = left.min(Limits::DELAY);
        Notification {
            delay,
            ..self.notification.clone()
        }
    }
}
