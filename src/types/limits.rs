//! The protocol's limits: sizes, counts and durations.
//!
//! One table, so that client, relay and command line enforce the same limits.

use std::time::Duration;

/// The protocol's limits, as constants.
#[derive(Debug)]
pub struct Limits;

impl Limits {
    /// Bytes of a name: account, queue, flag, listener id, group.
    pub const NAME: usize = 128;
    /// Bytes of the texts `publisher`, `set_by` and `cleared_by`.
    pub const MAX_TEXT: usize = 128;
    /// Bytes of a W3C `traceparent`; the current version has 55.
    pub const TRACEPARENT: usize = 128;
    /// Bytes of an unleash's `reason`.
    pub const REASON: usize = 1024;
    /// Bytes of an opaque value of a relay, such as a resume number.
    pub const TOKEN: usize = 64;
    /// Events of one notify request.
    pub const EVENTS: usize = 1024;
    /// Selectors of one subscription. Each costs the relay a cursor, even without a matching queue.
    pub const SELECTORS: usize = 4096;
    /// Patterns among them. Each is compared with every new queue.
    pub const PATTERNS: usize = 256;
    /// Entries of one Wake. R1: a Wake is bounded, because a stock client refuses a larger message
    /// each time that it is sent.
    pub const WAKE_ENTRIES: usize = 256;
    /// Encoded bytes of one Wake (R1: a Wake is bounded).
    pub const WAKE_BYTES: usize = 32 * 1024;
    /// The longest delay, visibility time-out and `visible_in`.
    pub const DELAY: Duration = Duration::from_secs(14 * 24 * 3600);
    /// The longest time to live of a flag.
    pub const TTL: Duration = Duration::from_secs(3650 * 24 * 3600);
    /// Default visibility time-out of a subscriber.
    pub const DEFAULT_VISIBILITY_TIMEOUT: Duration = Duration::from_secs(30);
    /// Default heartbeat of a subscriber.
    pub const HEARTBEAT: Duration = Duration::from_secs(10);
    /// The shortest heartbeat.
    pub const HEARTBEAT_MIN: Duration = Duration::from_secs(1);
    /// The longest heartbeat. Load balancers cut idle connections after 60 s.
    pub const HEARTBEAT_MAX: Duration = Duration::from_secs(60);
    /// The longest wait that a client accepts from a relay's Goodbye or RetryInfo. It equals the
    /// longest heartbeat, so that a wrong value costs no more than the loss of one relay.
    pub const MAX_RECONNECT_AFTER: Duration = Duration::from_secs(60);
    /// Default entries of a page.
    pub const PAGE: usize = 100;
    /// Maximum entries of a page.
    pub const PAGE_MAX: usize = 1000;
    /// Bytes of a subscribe request.
    pub const SUBSCRIBE_BYTES: usize = 1024 * 1024;
    /// Bytes of a notify request.
    pub const NOTIFY_BYTES: usize = 1024 * 1024;
    /// Bytes of a frame of a hand-over between machines.
    pub const HAND_OVER_BYTES: usize = 512 * 1024;
    /// Bytes of any other request.
    pub const REQUEST_BYTES: usize = 64 * 1024;
}
