//! The client's side of the protocol as state machines: pure, stepped by drivers.
//!
//! A driver owns the connection. It passes arrived messages and the time to the machine, and
//! executes the step that the machine returns. The same machines run over the network and in the
//! simulation. Knows neither tokio nor gRPC.

mod outbox;
mod publisher;
mod reconnect;
mod subscription;

#[cfg(test)]
mod tests;

pub(crate) use publisher::{PublisherConfig, PublisherSession};
pub(crate) use reconnect::{Reconnect, ReconnectConfig, ReconnectStep, leaves_relay};
pub(crate) use subscription::SubscriptionSession;
