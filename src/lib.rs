//! Wakes queue workers as soon as there is work, so that they need not poll.
//!
//! A publisher notifies a queue's address after it has put messages. The relay wakes the
//! subscribers of that address. Wake-ups carry no payload: the messages stay in the queue.
//!
//! Where to begin:
//!
//! | task | start with |
//! |---|---|
//! | publish and subscribe over the network | [`Client`] |
//! | process a queue with automatic scaling | `listener::Listener` and `queue::WorkQueue` |
//! | run a relay in the same process | `Relay`, or `Node` with its gRPC server |
//! | durable flags, and nodes that wait for one | `flag`, [`release`] |
//! | leader election | `lease::Lease` |
//! | unique ids for many nodes | `unique_id` |
//! | blobs with a time to live | `sweep` |
//! | tests without a fleet | `testing` |
//!
//! All calls return [`Error`], whose [`ErrorKind`] tells the caller what to do. The modules and
//! their layers are described in `docs/architecture.md`.
//!
#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)
)]

#[cfg(feature = "azure")]
pub mod azure;
mod backoff;
mod client;
mod clock;
#[cfg(feature = "server")]
mod console;
pub mod duration;
mod error;
#[cfg(feature = "server")]
mod eviction;
mod fault;
#[cfg(feature = "server")]
pub mod flag;
#[cfg(feature = "server")]
mod fnv;
#[cfg(feature = "server")]
mod histogram;
#[cfg(feature = "azure")]
mod https;
#[cfg(feature = "server")]
mod hub;
#[cfg(feature = "server")]
pub mod lease;
#[cfg(feature = "server")]
pub mod listener;
mod log_limiter;
#[cfg(feature = "server")]
mod node;
#[cfg(feature = "server")]
pub mod queue;
#[cfg(feature = "server")]
mod relay;
pub mod release;
#[cfg(feature = "server")]
pub mod scaling;
#[cfg(feature = "azure")]
mod secret;
#[cfg(feature = "server")]
mod server;
mod session;
#[cfg(test)]
mod sim;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "cloud")]
pub mod sweep;
#[cfg(feature = "server")]
mod sync;
mod task;
#[cfg(feature = "server")]
mod tenure;
#[cfg(feature = "server")]
pub mod testing;
#[cfg(feature = "server")]
pub mod unique_id;
mod wire;
mod words;

#[cfg(all(test, feature = "azure"))]
#[path = "../tests/it/support/azurite.rs"]
#[allow(dead_code, reason = "only the integration tests use all of it")]
mod azurite;
#[cfg(all(test, feature = "cloud"))]
#[path = "../tests/it/support/moto.rs"]
#[allow(dead_code, reason = "only the integration tests use all of it")]
mod moto;
#[cfg(all(test, feature = "azure"))]
#[path = "../tests/it/support/proxy.rs"]
#[allow(dead_code, reason = "only the integration tests use all of it")]
mod proxy;

/// The guides; their code blocks run as documentation tests.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../docs/polling.md")]
    mod polling {}
    #[doc = include_str!("../docs/outbox.md")]
    mod outbox {}
    #[doc = include_str!("../docs/flags.md")]
    mod flags {}
}

pub use client::*;
pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "cloud")]
pub use node::SweepConsole;
#[cfg(feature = "server")]
pub use node::{ListenerConsole, Node, NodeConfig};
#[cfg(feature = "server")]
pub use relay::{LocalPublisher, LocalSubscription, Relay, RelayConfig};
pub use words::*;
