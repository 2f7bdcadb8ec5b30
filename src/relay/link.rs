//! The link: one relay's part in a cluster of relays. Pure and synchronous; `now` and random
//! generators are arguments.
//!
//! Relays send each other increments in numbered frames over a broker that may lose, repeat and
//! delay messages. A relay that may have missed a frame does not request it again: it wakes its own
//! subscribers once (a resync). The link numbers and repeats its own frames, compares the numbers
//! of the others, and returns [`Action`]s. It knows neither the hub nor the broker's client, and it
//! never waits. docs/internal/cluster-rules.md has the rules C1 to C16 with their tests.
//!
//! Terms:
//! * *life*: one run of a relay, named by its epoch; *peer*: another life.
//! * *frame* (C2): the increments of up to 512 queues, with the number 1, 2, 3, ... of its life.
//! * *confirmed* (C2): the broker has returned the own frame, byte for byte.
//! * *heartbeat* (C4): each life's message every second, with its newest frame's number and the
//!   queues of its newest frames. An own heartbeat *returns* when the broker delivers it.
//! * *gap* (C3, C5): from the first to the last frame of a peer that was missed since its last
//!   heartbeat. *Resync* (C6): a CATCH_UP on named queues, or on all.
//! * *missing* (C7): a peer that is silent and has not left. *Interruption* (C7): this relay's
//!   connection may have lost messages. It is *settled* when an own heartbeat has returned that was
//!   sent later.
//! * *isolated* (C9): no own message returns; the relay is *degraded*, and its listeners poll.
//!
//! Memory: one frame, one list of recent queues (5,000), 64 numbers of own heartbeats, and at most
//! 400 bytes for each of at most 1,024 peers.

mod action;
mod cluster_link;
mod config;
mod frames;
mod heartbeat_sender;
mod isolation;
mod peer;
mod recent_queues;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    action::{Action, LinkFailure, Output, PeerNotice, PeerNoticeKind, Resync},
    cluster_link::ClusterLink,
    config::{LinkConfig, MISSING_AFTER},
    frames::FrameDraft,
    peer::PeerStats,
};
