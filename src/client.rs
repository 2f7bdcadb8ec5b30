//! The network client: publishers, subscriptions and flag watches that outlive any one connection.
//!
//! Drives the machines of `session` over tonic channels. Everything reconnects by itself; only a
//! refusal by the relay is final, and what a proxy may have said only before the relay was heard.
//! Knows nothing of the relay's insides.

mod admin;
mod config;
mod connection;
mod flag_watch;
mod flags;
mod pages;
mod pool;
mod publisher;
mod stream;
mod subscription;
mod timer;

pub use admin::{ListenerInfo, QueueInfo};
pub use config::{ClientConfig, PublisherOptions};
pub use connection::Client;
pub use flag_watch::FlagWatcher;
pub use flags::{FlagWatcherInfo, Flags, Unleashed};
pub use publisher::Publisher;
pub use subscription::Subscription;
