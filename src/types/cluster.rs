//! What the relays of a cluster tell each other of their queues, as plain data.
//!
//! `wire` checks and converts it; `relay::link` decides when it is sent and what it means. The limits are
//! those of docs/internal/cluster-rules.md.

use std::{fmt, time::Duration};

use super::{GroupName, LastEvent, QueueAddress};

/// The limits of a message between relays.
#[derive(Debug)]
pub(crate) struct ClusterLimits;

/// One run of a relay: the 128 random bits of its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LifeId(pub(crate) u128);

/// What a life counted since its last frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) number: u64,
    pub(crate) entries: Vec<FrameEntry>,
    /// Flags were written through the sender.
    pub(crate) flags_written: bool,
}

/// The increments of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FrameEntry {
    pub(crate) queue: QueueAddress,
    /// The increment of the queue's sequence: notifications and timed wake-ups.
    pub(crate) causes: u64,
    pub(crate) notifications: u64,
    pub(crate) payload_size: u64,
    pub(crate) messages: u64,
    pub(crate) last_event: LastEvent,
    /// Groups whose idle members at the sender took all of the causes.
    pub(crate) served_groups: Vec<GroupName>,
    /// A listener of the sender has checked the queue for the sentinel.
    pub(crate) checked: bool,
}

/// A timed wake-up that a relay hands over to another one before it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HandedTimer {
    pub(crate) due_in: Duration,
    /// What it counts when it is due.
    pub(crate) increment: FrameEntry,
}

impl ClusterLimits {
    /// Bytes of a message. The default of a NATS server is 1 MiB.
    pub(crate) const MESSAGE_BYTES: usize = 64 * 1024;
    /// Entries of a frame.
    pub(crate) const ENTRIES: usize = 512;
    /// Bytes of a frame's entries; the rest is for its number and life.
    pub(crate) const FRAME_BYTES: usize = 60 * 1024;
    /// Causes of an entry: the sums of 2^32 entries fit 64 bits.
    pub(crate) const CAUSES: u64 = 1 << 32;
    /// Groups of an entry: the largest entry has 5 KiB.
    pub(crate) const GROUPS: usize = 32;
    /// Queues of a heartbeat: 12 bytes each, so that the heartbeat fits a message.
    pub(crate) const RECENT_QUEUES: usize = 5_000;
}

/// Returns the hash that names a queue in heartbeats.
pub(crate) fn queue_hash(queue: &QueueAddress) -> u64 {
    crate::base::fnv::fnv1a(queue.as_str().bytes())
}

impl fmt::Display for LifeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
