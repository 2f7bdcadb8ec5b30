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
mod explain;
mod flags;
mod mirror;
mod pages;
mod pool;
mod publisher;
mod reconnecting_stream;
mod relays;
mod resolver;
#[cfg(feature = "tls")]
mod secure;
pub(crate) mod session;
mod stats;
mod subscription;

pub use admin::{
    ConsoleAddress, ListenerInfo, ListenerQuery, QueueInfo, QueueOrder, QueueQuery, RelayInfo,
    RelayState,
};
pub use config::{ClientConfig, ClientIdentity, ClientTls, PublisherOptions};
pub use connection::Client;
#[cfg(all(feature = "courier", feature = "relay"))]
pub(crate) use connector::Connector;
pub use credential::Credential;
#[cfg(all(feature = "courier", feature = "relay"))]
pub(crate) use credential::RelayChannel;
pub use explain::{Decision, DecisionKind, Explanation, Finding, FindingKind};
pub use flags::{FlagWatcher, FlagWatcherInfo, Flags, Unleashed};
pub use pages::Listed;
pub use publisher::Publisher;
pub use stats::{LatencyBuckets, RelayLevels, RelayStats, RelayTotals, Savings, Stats, StatsWatch};
pub use subscription::Subscription;
