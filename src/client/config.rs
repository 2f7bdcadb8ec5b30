//! How a client behaves: every default carries its reason.

use std::time::Duration;

/// How a client connects and retries.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// An attempt to connect that takes longer has failed.
    pub connect_timeout: Duration,
    /// A single request without an answer for this long has failed. Streams have no such end.
    pub request_timeout: Duration,
    /// After this silence the connection itself is asked for a sign of life (HTTP/2 PING); below
    /// the 60 s after which balancers cut idle connections.
    pub keepalive: Duration,
    /// The first reconnection of a stream waits up to this long, so that a relay's restart is seen
    /// within 3 s and its listeners do not come back all at once.
    pub reconnect_base: Duration,
    /// No reconnection waits longer.
    pub reconnect_max: Duration,
}

/// How a publisher sends.
#[derive(Debug, Clone)]
pub struct PublisherOptions {
    /// Who publishes: handed on with wake-ups; at most 128 bytes.
    pub name: String,
    /// Conflate what waits for the same queue and time, so that an unreachable relay costs memory
    /// for queues, not for events.
    pub conflate: bool,
    /// Notifications of one request at most; 1..=1024.
    pub batch: usize,
    /// Requests on their way at one time; 1..=4096.
    pub pipeline: usize,
    /// Entries that may wait (a queue each, with conflation); more are refused. As many are kept
    /// besides which the relay has no room for; more of those are dropped.
    pub max_pending: usize,
    /// `notify` gives up after this long; what it notified is still sent.
    pub deadline: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(20),
            reconnect_base: Duration::from_secs(1),
            reconnect_max: Duration::from_secs(10),
        }
    }
}

impl Default for PublisherOptions {
    fn default() -> Self {
        Self {
            name: String::new(),
            conflate: true,
            batch: 256,
            pipeline: 8,
            max_pending: 100_000,
            deadline: Duration::from_secs(30),
        }
    }
}
