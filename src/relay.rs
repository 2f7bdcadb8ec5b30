//! The relay: the hub, its runtime, its gRPC server, and the process around them.

pub(crate) mod hub;
pub(crate) mod node;
pub(crate) mod runtime;
mod server;

pub use self::{
    node::{Node, NodeConfig},
    runtime::{LocalPublisher, LocalSubscription, Relay, RelayConfig},
};
