//! What a listener is told: look into this queue.

use std::{fmt, sync::Arc, time::SystemTime};

use super::{Selector, Token};

/// A wake-up: the trigger event as a listener gets it. **Any wake-up means: read until empty**;
/// the counts are a lower bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkDetected {
    /// The queue to read; a pattern where [`WakeReason::CatchUp`] asks to look at all that match.
    pub queue: Selector,
    /// Why; the strongest of the reasons owed together.
    pub reason: WakeReason,
    /// The queue's sequence up to which this tells.
    pub sequence: u64,
    /// How many notifications it stands for.
    pub notifications: u64,
    /// The sum of their payload sizes.
    pub payload_size: u64,
    /// How many messages they told of.
    pub messages: u64,
    /// Who published the newest of them; may be empty.
    pub publisher: Arc<str>,
    /// When the newest was published, by its publisher's clock.
    pub published_at: Option<SystemTime>,
    /// W3C trace context of the newest; may be empty.
    pub traceparent: Arc<str>,
    /// The place after it.
    pub token: Token,
}

/// Why a listener is woken, from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum WakeReason {
    /// None was named, or one that this version does not know: look.
    #[default]
    Unspecified,
    /// The relay is not certain what this listener has seen: look once.
    CatchUp,
    /// One listener of the fleet is asked to look.
    Sentinel,
    /// Messages were to become visible now.
    Timed,
    /// Whoever was woken for this did not take it.
    Reassigned,
    /// A publisher notified.
    Notified,
}

impl WorkDetected {
    /// Returns a bound of what this takes up on the wire, so that a wake keeps its limit (R1).
    #[cfg_attr(
        not(feature = "server"),
        allow(dead_code, reason = "the relay fills wakes")
    )]
    pub(crate) fn encoded_at_most(&self) -> usize {
        /// Numbers, time, token and all fields' tags: 11 bytes each of four sums, 2 of the
        /// reason, 20 of the time, 66 of the token, 3 each of four texts, 4 of the entry itself.
        const FIXED: usize = 4 * 11 + 2 + 20 + 66 + 4 * 3 + 4;
        let (account, queue) = (self.queue.storage_account(), self.queue.queue_name());
        FIXED + account.len() + queue.len() + self.publisher.len() + self.traceparent.len()
    }
}

impl WakeReason {
    /// Returns the reason's name as the wire and the command line write it.
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
