//! A client's configuration, with the reason of each default.

use std::time::Duration;

use super::{ClientTls, Credential};

/// How a client connects and retries.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Time limit of an attempt to connect.
    pub connect_timeout: Duration,
    /// Time limit of a single request. Streams have none.
    pub request_timeout: Duration,
    /// After this silence the client sends an HTTP/2 PING on the connection. Below the 60 s after
    /// which load balancers cut idle connections.
    pub keepalive: Duration,
    /// Maximum wait before a stream's first reconnection. Clients notice a relay's restart within 3
    /// s, and its listeners do not reconnect all at once.
    pub reconnect_base: Duration,
    /// Maximum wait before any reconnection.
    pub reconnect_max: Duration,
    /// The TLS of `https://` URLs. The files are read when the client is created.
    pub tls: ClientTls,
    /// What the client shows to be known to the relay. It is sent over `https://`, and over `http://`
    /// to this machine; see [`ClientConfig::insecure`]. Default: none.
    pub credential: Credential,
    /// Send the credential over `http://` to other machines, in a network that encrypts by itself.
    pub insecure: bool,
}

/// How a publisher sends.
#[derive(Debug, Clone)]
pub struct PublisherOptions {
    /// The publisher's name, which wake-ups carry; at most 128 bytes.
    pub name: String,
    /// Conflate pending notifications of the same queue and time, so that an unreachable relay
    /// costs memory for queues, not for events.
    pub conflate: bool,
    /// Maximum notifications of one request; 1..=1024.
    pub batch: usize,
    /// Maximum requests in flight; 1..=1000.
    pub pipeline: usize,
    /// Maximum pending entries (one per queue, with conflation); more are refused. The same number
    /// of entries is kept in addition for queues that the relay has no room for; more of those are
    /// dropped.
    pub max_pending: usize,
    /// Time limit of `notify`. Its notifications are still sent after that.
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
            tls: ClientTls::default(),
            credential: Credential::default(),
            insecure: false,
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
