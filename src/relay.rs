//! The relay: the hub, its runtime, its gRPC server, and the process around them.

pub mod auth;
pub(crate) mod cluster;
#[expect(clippy::disallowed_types, reason = "hands calls to the gRPC services")]
pub(crate) mod console;
pub(crate) mod hub;
pub(crate) mod link;
#[cfg(feature = "nats")]
pub(crate) mod nats;
pub(crate) mod node;
pub(crate) mod runtime;
#[expect(clippy::disallowed_types, reason = "speaks gRPC")]
pub(crate) mod server;

#[cfg(feature = "courier")]
pub use self::node::{QueueNode, QueueNodeConfig, QueuesConfig};
pub use self::{
    console::ConsoleMode,
    node::{Node, NodeConfig},
    runtime::{ClusterAck, LocalPublisher, LocalSubscription, Relay, RelayConfig},
    server::{AccessFiles, ServerLimits, ServerTls},
};
#[cfg(feature = "nats")]
pub use self::{
    nats::{NatsConfig, NatsCredentials},
    node::ClusterConfig,
};
