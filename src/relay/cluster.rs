//! One relay of a cluster: joins the hub and the link. Pure and synchronous; `now` and random
//! generators are arguments.
//!
//! The hub's own causes go into frames, the peers' frames are counted in the hub, and doubts become
//! walks over the hub. The driver has the broker's client, the clock and the task: `relay/nats`, or
//! the simulation. docs/internal/cluster-rules.md has the rules C1 to C16.
//!
//! A publisher is answered when [`ClusterNode::confirmed_position`] has reached the position that
//! the hub returned after its causes were counted (C8).

mod node;
mod timer_hand_over;
mod walks;

pub(crate) use self::{
    node::{ClusterNode, ClusterStats},
    timer_hand_over::{HandedOver, TimerHandOver, TimersReply},
};
