//! The network client: publishers, subscriptions and flag watches that outlive single connections.
//!
//! Drives the machines of `session` over tonic channels. All of them reconnect by themselves. Only
//! a refusal by the relay is final. A refusal that a proxy may have sent is final only before the
//! relay's first message. Does not know how the relay works inside.

mod admin;
mod config;
mod connection;
mod connector;
mod credential;
mod flags;
mod pages;
mod pool;
mod publisher;
mod reconnecting_stream;
mod relays;
mod resolver;
#[cfg(feature = "tls")]
mod secure;
pub(crate) mod session;
mod subscription;

pub use admin::{
    ConsoleAddress, Decision, DecisionKind, Explanation, Finding, FindingKind, FlagWatcherInfo,
    History, HistorySample, LatencyBuckets, ListenerInfo, ListenerQuery, QueueInfo, QueueOrder,
    QueueQuery, RelayInfo, RelayLevels, RelayState, RelayStats, RelayTotals, Savings, Stats,
};
pub use config::{ClientConfig, ClientIdentity, ClientTls, PublisherOptions};
pub use connection::Client;
#[cfg(all(feature = "courier", feature = "relay"))]
pub(crate) use connector::Connector;
pub use credential::Credential;
pub use flags::{FlagWatcher, Flags, Unleashed};
pub use pages::Listed;
pub use publisher::Publisher;
pub use subscription::Subscription;
