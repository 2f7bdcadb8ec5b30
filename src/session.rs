//! The client's side of the protocol as state machines: pure, stepped by drivers.
//!
//! A driver owns the connection and asks the machine what to do; the machine is told what arrived
//! and what time it is. The same machines run over the network and in the simulation. Knows
//! neither tokio nor gRPC.

mod callers;
mod entry;
mod link;
mod pending;
mod placement;
mod positions;
mod publisher;
mod set_aside;
mod subscription;
mod watch;

#[cfg(test)]
mod tests;

pub(crate) use callers::WaiterId;
pub(crate) use link::{LinkConfig, Outage, Step};
pub(crate) use placement::{ConnectionNumber, Placement, PlacementConfig, STREAM_WINDOW, STREAMS};
pub(crate) use publisher::{PublisherConfig, PublisherSession};
pub(crate) use subscription::{Action, SubscriptionSession};
pub(crate) use watch::WatchSession;
