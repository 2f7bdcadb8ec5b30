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
#![cfg_attr(
    not(feature = "cli"),
    allow(
        dead_code,
        unused_imports,
        unused_variables,
        reason = "the wings share modules, and one wing alone does not use all of them"
    )
)]

#[cfg(feature = "store")]
mod backend;
mod base;
mod client;
#[cfg(feature = "console")]
mod console;
mod coordination;
#[cfg(feature = "courier")]
pub mod courier;
mod error;
#[cfg(all(
    any(test, fuzzing),
    feature = "cloud",
    feature = "courier",
    feature = "policy-file",
    feature = "relay",
    feature = "sweep"
))]
#[path = "../dev/fuzz/targets/targets.rs"]
pub mod fuzz_targets;
#[cfg(feature = "listener")]
pub mod listener;
#[cfg(feature = "listener")]
pub mod queue;
#[cfg(feature = "relay")]
mod relay;
#[cfg(test)]
mod sim;
#[cfg(feature = "store")]
pub mod store;
#[cfg(any(feature = "listener", feature = "relay"))]
pub mod testing;
mod types;
mod wire;

#[cfg(all(test, feature = "azure"))]
#[path = "../tests/it/support/azurite.rs"]
#[allow(dead_code, reason = "only the integration tests use all of it")]
mod azurite;
#[cfg(all(test, feature = "cloud"))]
#[path = "../tests/it/support/moto.rs"]
#[allow(dead_code, reason = "only the integration tests use all of it")]
mod moto;
#[cfg(all(test, feature = "nats"))]
#[path = "../tests/it/support/nats.rs"]
#[allow(dead_code, reason = "only the integration tests use all of it")]
mod nats_server;
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
    #[doc = include_str!("../docs/languages.md")]
    mod languages {}
}

#[cfg(all(feature = "azure", feature = "store"))]
pub use backend::azure;
pub use base::duration;
pub use client::*;
pub use coordination::release;
#[cfg(feature = "sweep")]
pub use coordination::sweep;
#[cfg(feature = "coordination")]
pub use coordination::{flag, lease, unique_id};
pub use error::{Error, ErrorKind, Result};
#[cfg(all(feature = "console", feature = "listener"))]
pub use listener::ListenerConsole;
#[cfg(feature = "listener")]
pub use listener::scaling;
#[cfg(feature = "relay")]
pub use relay::auth;
#[cfg(feature = "relay")]
pub use relay::{
    AccessFiles, ClusterAck, LocalPublisher, LocalSubscription, Node, NodeConfig, Relay,
    RelayConfig, ServerLimits, ServerTls,
};
#[cfg(all(feature = "nats", feature = "relay"))]
pub use relay::{ClusterConfig, NatsConfig, NatsCredentials};
#[cfg(all(feature = "courier", feature = "relay"))]
pub use relay::{QueueNode, QueueNodeConfig, QueuesConfig};
#[cfg(all(feature = "console", feature = "sweep"))]
pub use sweep::SweepConsole;
pub use types::*;
