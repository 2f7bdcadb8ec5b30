//! Wakes queue workers the instant there is work, so that no worker polls.
//!
//! The code map, from the lowest layer up; a module imports only from lower ones (a test keeps it
//! so), and `docs/architecture.md` says more of each:
//!
//! | layer | modules |
//! |---|---|
//! | base | `error`, `backoff`, `clock`, [`duration`], `secret`, `task`, `sync`, `fault`, `eviction`, `log_limiter` |
//! | words | `words`: addresses, trigger events, reports, flags, and the traits that hide the network |
//! | tools | `wire` (protobuf and gRPC statuses), `sqlite`, [`azure`] (accounts, signing) |
//! | cores, pure | `hub` (who is owed a wake-up), `session` (the client's machines), [`scaling`] (how many dequeue tasks), `tenure` (who may believe in a lease), `sim` |
//! | stores | [`store`] (blobs), `relay` (the hub on tokio) |
//! | on stores | [`flag`], [`lease`], [`queue`], [`unique_id`] |
//! | drivers | `client`, [`listener`], [`release`], `sweep` |
//! | edges | `server` (gRPC), `console` (the admin port) |
//! | assembly | `node`, `testing` |
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
#[allow(dead_code, reason = "the integration tests use more of it")]
mod azurite;
#[cfg(all(test, feature = "cloud"))]
#[path = "../tests/it/support/moto.rs"]
#[allow(dead_code, reason = "the integration tests use more of it")]
mod moto;
#[cfg(all(test, feature = "azure"))]
#[path = "../tests/it/support/proxy.rs"]
#[allow(dead_code, reason = "the integration tests use more of it")]
mod proxy;

/// The guides, whose blocks are documentation tests.
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
