//! What the link asks the hub and its driver to do.

use std::sync::Arc;

use bytes::Bytes;

use crate::types::cluster::{Frame, LifeId};

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
    /// An operator should know this of another relay.
    Notice(PeerNotice),
    /// The relay must end.
    End(LinkFailure),
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

/// Settings of a peer that do not fit this relay's. Both serve on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerNotice {
    pub(crate) kind: PeerNoticeKind,
    pub(crate) life: LifeId,
    pub(crate) relay_id: Arc<str>,
}

/// What does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerNoticeKind {
    /// Two lives of one id run at the same time.
    SameRelayId,
    /// The stores have different names.
    OtherStore,
}

/// The queues whose subscribers are woken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resync {
    /// The queues with these hashes; a hash may have no queue here.
    Queues(Vec<u64>),
    All,
}

/// Why the relay must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkFailure {
    /// Another machine sends as this life: a clone of this one.
    SecondMachine,
}
