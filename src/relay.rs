//! The relay: the hub, its runtime, its gRPC server, and the process around them.

pub mod auth;
#[allow(dead_code, reason = "its driver is not built yet")]
pub(crate) mod cluster;
pub(crate) mod hub;
#[allow(dead_code, reason = "its driver is not built yet")]
pub(crate) mod link;
#[cfg(feature = "nats")]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "the driver of a cluster is not built yet")
)]
pub(crate) mod nats;
pub(crate) mod node;
pub(crate) mod runtime;
pub(crate) mod server;

#[cfg(feature = "courier")]
pub use self::node::{QueueNode, QueueNodeConfig, QueuesConfig};
#[cfg(feature = "nats")]
pub use self::{
    nats::{NatsConfig, NatsCredentials},
    node::{ClusterAck, ClusterConfig},
};
pub use self::{
    node::{Node, NodeConfig},
    runtime::{LocalPublisher, LocalSubscription, Relay, RelayConfig},
    server::{AccessFiles, ServerLimits, ServerTls},
};
