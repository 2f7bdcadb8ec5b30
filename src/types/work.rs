//! Wake-ups: a listener reads a queue because of them.

use std::fmt;

use super::{LastEvent, Selector};

/// A wake-up of a listener. **Any wake-up means: read until empty**; the counts are a lower bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkDetected {
    /// The queue to read. With [`WakeReason::CatchUp`] it may be a pattern: read all matching
    /// queues.
    pub queue: Selector,
    /// The strongest of the conflated reasons.
    pub reason: WakeReason,
    /// The queue's sequence that the wake-up covers.
    pub sequence: u64,
    /// Number of notifications conflated into it.
    pub notifications: u64,
    /// The sum of their payload sizes.
    pub payload_size: u64,
    /// The sum of their message counts.
    pub messages: u64,
    /// The newest notification.
    pub last_event: LastEvent,
}

/// Why a listener is woken, from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum WakeReason {
    /// No reason, or a reason unknown to this version: read the queue.
    #[default]
    Unspecified,
    /// The relay cannot tell which notifications this listener has seen: read the queue once.
    CatchUp,
    /// A check: one listener reads the queue without a notification.
    Sentinel,
    /// A delayed message becomes visible now.
    Timed,
    /// A redelivery: the listener that was woken first did not handle the wake-up.
    Reassigned,
    /// A notification of a publisher.
    Notified,
}

impl WorkDetected {
    /// Returns a bound of what this takes up on the wire, so that a wake keeps its limit (R1).
    #[cfg(feature = "relay")]
    pub(crate) fn encoded_at_most(&self) -> usize {
        /// Numbers, time and all fields' tags: 11 bytes each of four sums, 2 of the reason, 20 of
        /// the time, 3 each of four texts, 4 of the entry itself.
        const FIXED: usize = 4 * 11 + 2 + 20 + 4 * 3 + 4;
        let (account, queue) = (self.queue.storage_account(), self.queue.queue_name());
        let texts = self.last_event.publisher.len() + self.last_event.traceparent.len();
        FIXED + account.len() + queue.len() + texts
    }
}

impl WakeReason {
    /// Returns the reason's name in the protocol and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "UNSPECIFIED",
            Self::CatchUp => "CATCH_UP",
            Self::Sentinel => "SENTINEL",
            Self::Timed => "TIMED",
            Self::Reassigned => "REASSIGNED",
            Self::Notified => "NOTIFIED",
        }
    }
}

impl fmt::Display for WakeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
