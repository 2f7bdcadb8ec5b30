//! How a publisher sends: limits of requests, of memory and of waits.

use std::time::Duration;

use crate::types::{Counted, Limits};

/// How a publisher sends.
#[derive(Debug, Clone)]
pub(crate) struct PublisherConfig {
    /// Conflate pending notifications of the same queue and due time.
    pub(crate) conflate: bool,
    /// Maximum events of one request; 1..=1024.
    pub(crate) batch: usize,
    /// Maximum requests in flight.
    pub(crate) pipeline: usize,
    /// Maximum bytes of a request.
    pub(crate) request_bytes: usize,
    /// Maximum entries in the outbox; more are refused to their callers.
    pub(crate) max_pending: usize,
    /// Maximum entries set aside because the relay has no room; more are dropped.
    pub(crate) max_set_aside: usize,
    /// A request without an answer for this long counts as lost.
    pub(crate) answer_timeout: Duration,
    /// Maximum wait before the first retry.
    pub(crate) base: Duration,
    /// Maximum wait before any retry.
    pub(crate) max: Duration,
}

/// The publisher's name in a request: key, length and the longest text.
const MAX_NAME_BYTES: usize = 3 + Limits::MAX_TEXT;
/// What relays have counted of a request: keys, lengths, epochs and positions.
const COUNTED_BYTES: usize = Counted::MOST * (Limits::TOKEN + 20);

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            conflate: true,
            batch: 256,
            pipeline: 8,
            request_bytes: Limits::NOTIFY_BYTES,
            max_pending: 100_000,
            max_set_aside: 100_000,
            answer_timeout: Duration::from_secs(5),
            base: Duration::from_millis(100),
            max: Duration::from_secs(5),
        }
    }
}

impl PublisherConfig {
    /// Returns the bytes of a request that are available for entries.
    pub(super) fn entry_bytes(&self) -> usize {
        let others = MAX_NAME_BYTES + COUNTED_BYTES;
        self.request_bytes.saturating_sub(others)
    }
}
