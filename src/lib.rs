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
//! their layers are described in `docs/internal/architecture.md`.
//!
#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(test),
    warn(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        clippy::print_stderr,
        clippy::print_stdout,
        clippy::unwrap_used,
    )
)]

// The files of tests/it/support that this crate's tests include name it so.
#[cfg(test)]
extern crate self as reveille;

#[cfg(feature = "store")]
mod backend;
#[cfg_attr(
    not(all(feature = "cloud", feature = "listener", feature = "relay")),
    allow(dead_code, unused_imports, reason = "a wing uses a part of it")
)]
mod base;
#[expect(clippy::disallowed_types, reason = "speaks gRPC")]
mod client;
#[cfg(all(
    feature = "console",
    any(feature = "listener", feature = "relay", feature = "sweep")
))]
#[cfg_attr(
    not(feature = "relay"),
    allow(dead_code, unused_imports, reason = "only a relay has callers")
)]
mod console;
mod coordination;
#[cfg(feature = "courier")]
#[cfg_attr(
    not(feature = "relay"),
    allow(dead_code, unused_imports, reason = "the host runs beside a relay")
)]
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
#[cfg_attr(
    not(feature = "nats"),
    allow(dead_code, unused_imports, reason = "only a cluster uses all of it")
)]
mod relay;
#[cfg(test)]
mod sim;
#[cfg(feature = "store")]
pub mod store;
#[cfg(any(feature = "listener", feature = "relay"))]
pub mod testing;
mod types;
#[expect(clippy::disallowed_types, reason = "speaks gRPC")]
#[cfg_attr(
    not(all(feature = "nats", feature = "relay")),
    allow(dead_code, unused_imports, reason = "a side uses a part of it")
)]
mod wire;

#[cfg(all(test, feature = "azure"))]
#[path = "../tests/it/support/azurite.rs"]
#[allow(dead_code, reason = "only the integration tests use all of it")]
mod azurite;
#[cfg(test)]
#[path = "../tests/it/support/log.rs"]
#[allow(dead_code, reason = "only some features' tests read a log")]
mod log;
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
#[cfg(feature = "console")]
pub use console::Console;
pub use coordination::release;
#[cfg(feature = "sweep")]
pub use coordination::sweep;
#[cfg(feature = "coordination")]
pub use coordination::{flag, lease, unique_id};
pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "listener")]
pub use listener::{agent, scaling};
#[cfg(feature = "relay")]
pub use relay::auth;
#[cfg(feature = "relay")]
pub use relay::{
    AccessFiles, ClusterAck, ConsoleMode, LocalPublisher, LocalSubscription, Node, NodeConfig,
    Relay, RelayConfig, ServerLimits, ServerTls,
};
#[cfg(all(feature = "nats", feature = "relay"))]
pub use relay::{ClusterConfig, NatsConfig, NatsCredentials};
#[cfg(all(feature = "courier", feature = "relay"))]
pub use relay::{QueueNode, QueueNodeConfig, QueuesConfig};
pub use types::*;
