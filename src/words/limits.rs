//! The limits of docs/protocol.md: sizes, counts and spans that a request must keep.
//!
//! One table, so that client, relay and command line refuse alike.

use std::time::Duration;

/// The protocol's limits, as constants.
#[derive(Debug)]
pub struct Limits;

impl Limits {
    /// Bytes of a name: account, queue, flag, listener id, group.
    pub const NAME: usize = 128;
    /// Bytes of the free texts `publisher` and `set_by`.
    pub const TEXT: usize = 128;
    /// Bytes of a W3C `traceparent`; the standard's own form has 55.
    pub const TRACEPARENT: usize = 128;
    /// Bytes of an unleash's `reason`.
    pub const REASON: usize = 1024;
    /// Bytes of a token.
    pub const TOKEN: usize = 64;
    /// Events of one notify request.
    pub const EVENTS: usize = 1024;
    /// Selectors of one subscription. Each costs the relay a cursor, even where no queue matches.
    pub const SELECTORS: usize = 4096;
    /// Patterns among them. Each costs every new queue's first notification a look.
    pub const PATTERNS: usize = 256;
    /// Positions that a client sends: its newest ones.
    pub const POSITIONS: usize = 4096;
    /// Entries of one Wake. R1: a Wake is bounded, because a stock client refuses a larger message
    /// each time that it is sent.
    pub const WAKE_ENTRIES: usize = 256;
    /// Encoded bytes of one Wake (R1: a Wake is bounded).
    pub const WAKE_BYTES: usize = 32 * 1024;
    /// The longest delay, visibility time-out and `visible_in`.
    pub const DELAY: Duration = Duration::from_secs(14 * 24 * 3600);
    /// The longest time to live of a flag.
    pub const TTL: Duration = Duration::from_secs(3650 * 24 * 3600);
    /// The visibility time-out of a subscriber that states none.
    pub const VISIBILITY: Duration = Duration::from_secs(30);
    /// The heartbeat of a subscriber that states none.
    pub const HEARTBEAT: Duration = Duration::from_secs(10);
    /// The shortest heartbeat.
    pub const HEARTBEAT_MIN: Duration = Duration::from_secs(1);
    /// The longest heartbeat: below the 60 s after which balancers cut idle connections.
    pub const HEARTBEAT_MAX: Duration = Duration::from_secs(60);
    /// A relay cannot send a client away for longer than this, by a Goodbye or a RetryInfo: as
    /// long as the longest heartbeat, so that one wrong word costs no more than one lost relay.
    pub const AWAY: Duration = Duration::from_secs(60);
    /// Entries of a page, where the request states none.
    pub const PAGE: usize = 100;
    /// Entries of a page at most.
    pub const PAGE_MAX: usize = 1000;
    /// Bytes of a subscribe request.
    pub const SUBSCRIBE_BYTES: usize = 1024 * 1024;
    /// Bytes of a notify request.
    pub const NOTIFY_BYTES: usize = 512 * 1024;
    /// Bytes of any other request.
    pub const REQUEST_BYTES: usize = 64 * 1024;
}
