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

mod cluster_link;
mod frames;
mod own_heartbeats;
mod peer;
mod recent_queues;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

pub(crate) use self::{cluster_link::ClusterLink, frames::FrameDraft, peer::PeerStats};
use crate::types::cluster::{Frame, LifeId};

/// Settings of a link.
#[derive(Debug, Clone)]
pub(crate) struct LinkConfig {
    pub(crate) life: LifeId,
    pub(crate) relay_id: Arc<str>,
    pub(crate) version: Arc<str>,
}

/// A step for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// Publish to all relays. May be dropped: the link publishes again. Where the client has not taken
    /// it, the driver says so.
    Publish(Bytes),
    /// Replace the client's connection, if it is open.
    Replace,
    /// C5, C9, C14: flags were written through another relay, or may have been: refresh them.
    ReadFlags,
    /// Log it: a setting of another relay does not fit this one's. Both continue.
    Warn(String),
    /// The relay must end: another machine sends as this life.
    End,
    /// C15: the relay has left, and may end. No further output follows. Where its causes were not
    /// confirmed in time, the other relays are not `told`: they check their groups when they miss
    /// this relay.
    Left { told: bool },
}

/// A step for the hub or the driver. The order of the actions matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Output(Output),
    /// Count a peer's increments, and read the flags in it.
    Apply {
        life: LifeId,
        frame: Frame,
        /// An earlier frame of this peer was missed. So groups are given the entries in full, even
        /// those that the sender's members served: the missed causes are not served.
        in_full: bool,
    },
    /// A frame may be missed: wake the subscribers, and read the watched flags.
    Resync(Resync),
    /// The peer is missing: each group checks its queue once.
    CheckGroups(LifeId),
    /// Frames up to this number are confirmed: answer the publishers of their causes.
    Confirmed(u64),
    /// The state `degraded` has changed: tell all streams.
    Degraded(bool),
}

/// The queues whose subscribers are woken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resync {
    /// The queues with these hashes; a hash may have no queue here.
    Queues(Vec<u64>),
    All,
}

/// Another machine sends as this life: a clone of this one.
#[derive(Debug)]
struct SecondMachine;

/// An own message that has not returned after this time is an interruption, and a frame is
/// published again.
const RETURN_WITHIN: Duration = Duration::from_millis(250);
/// Without an own message for this long a relay is isolated: three heartbeats and their jitter.
const ISOLATED_AFTER: Duration = Duration::from_millis(3_500);
/// Without an own message for this long the connection is replaced, also one that looks well: packets to
/// the server may be lost on their way while those of the server arrive.
const REPLACE_AFTER: Duration = Duration::from_secs(6);
/// A new connection has this long.
const REPLACE_AGAIN: Duration = Duration::from_secs(10);
/// A heartbeat that the client did not take is due again after this time.
const UNSENT_AGAIN: Duration = Duration::from_millis(50);
/// A relay that starts is ready after two own heartbeats, or after this time.
const READY_AFTER: Duration = Duration::from_secs(3);
/// A queue is named in heartbeats for this long after its newest frame was confirmed: a receiver
/// that missed messages for up to 3.5 s finds all queues.
const RECENT_FOR: Duration = Duration::from_secs(5);
/// A frame with this many notifications of one queue is followed by a pause, in which the next ones
/// are conflated.
const BURST: u64 = 16;
const BURST_PAUSE: Duration = Duration::from_micros(400);
/// A peer is missing after this many own heartbeats without a message of it.
const PATIENCE: u64 = 4;
/// Nor is it missing before this time: three heartbeats and their jitter, so two may be lost.
pub(crate) const MISSING_AFTER: Duration = Duration::from_millis(3_500);
/// A peer that is silent for this many own heartbeats (ten minutes) is forgotten.
const FORGET_AFTER: u64 = 600;
/// The most peers. 100 relays are the bound of this design; the rest is for lives that ended within
/// the last ten minutes. More appear only in forged messages.
const MAX_PEERS: usize = 1_024;
