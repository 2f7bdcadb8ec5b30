//! The settings of a hub, and what the hub and its queues share.

use std::{
    sync::atomic::{AtomicBool, AtomicU64 as PlainU64},
    time::Duration,
};

use super::{
    counters::Epoch, cursor::CursorPool, pattern::Patterns, queue::QueueEntry, sync::AtomicU64,
    timers::TimerOrder,
};

/// Settings of a hub.
#[derive(Debug, Clone)]
pub(crate) struct HubConfig {
    /// Identifies this run of the relay.
    pub(crate) epoch: Epoch,
    /// Seeds the map's hasher and the spread of the sentinels' checks.
    pub(crate) seed: u64,
    /// A queue without subscribers, timers and notifications for this long is forgotten.
    pub(crate) forget_after: Duration,
    /// The most queues in memory. At about 450 bytes each, a million of them take 450 MB.
    pub(crate) max_queues: usize,
    /// The most cursors of all subscriptions, and of one stream. A pattern that matches more queues
    /// gets wake-ups for the rest under its own name. At worst a cursor takes 370 bytes, so two
    /// million of them take 740 MB.
    pub(crate) max_cursors: usize,
    pub(crate) max_cursors_per_stream: usize,
    /// The most delayed wake-ups of publishers; listeners may report as many again. At 150 bytes
    /// each, a million of them take 150 MB.
    pub(crate) max_timers: usize,
    /// A notification wakes up to this many subscribers itself; above that, the fan-out does.
    pub(crate) inline: usize,
    /// The interval between two checks of a queue without reports; zero: the sentinel is off.
    pub(crate) sentinel_interval: Duration,
    /// A wake-up to one listener goes to another after this time without a report of it.
    pub(crate) claim_timeout: Duration,
    /// R14: BUSY is a lease of this length.
    pub(crate) busy_lease: Duration,
    /// A group without members is retained for this long.
    pub(crate) group_keep: Duration,
    /// The most groups of one queue: each costs every notification of the queue a step.
    pub(crate) max_groups_per_queue: usize,
    /// The most groups of all queues, at 2 KiB each at worst. Up to half of them may be without
    /// members; beyond that such a group is not retained.
    pub(crate) max_groups: usize,
    /// How often a listener that polls would read a queue, to compute what sleeping saves.
    pub(crate) assumed_poll: Duration,
    /// Own causes are collected for other relays.
    pub(crate) cluster: bool,
}

/// What the hub and its queues share.
pub(crate) struct Shared {
    pub(super) config: HubConfig,
    pub(super) patterns: Patterns,
    /// The cursors of all subscriptions.
    pub(super) cursors: CursorPool,
    /// The process is short of memory. No order with other state matters.
    pub(super) is_short_of_memory: AtomicBool,
    /// Read when a queue has changed, and raised by streams (see `resume`).
    pub(super) revision: AtomicU64,
    /// The queues with something to do later.
    pub(super) timers: TimerOrder<QueueEntry>,
    /// The groups of all queues.
    pub(super) groups: AtomicU64,
    /// The messages of all groups that no member has taken yet.
    pub(super) unassigned: PlainU64,
}

/// Subscribers that a walk marks in one step, and the most that a notification marks itself.
pub(super) const SUBSCRIBERS_PER_STEP: usize = 64;

impl Default for HubConfig {
    fn default() -> Self {
        Self {
            epoch: Epoch(0),
            seed: 0,
            forget_after: Duration::from_secs(3600),
            max_queues: 1_000_000,
            max_cursors: 2_000_000,
            max_cursors_per_stream: 1_000_000,
            max_timers: 1_000_000,
            inline: SUBSCRIBERS_PER_STEP,
            sentinel_interval: Duration::ZERO,
            claim_timeout: Duration::from_secs(1),
            busy_lease: Duration::from_secs(30),
            group_keep: Duration::from_secs(600),
            max_groups_per_queue: 256,
            max_groups: 200_000,
            // A loop that waits for a second between two reads is the usual one.
            assumed_poll: Duration::from_secs(1),
            cluster: false,
        }
    }
}

impl Shared {
    pub(super) fn new(config: HubConfig) -> Self {
        Self {
            patterns: Patterns::new(),
            cursors: CursorPool::new(config.max_cursors as u64),
            is_short_of_memory: AtomicBool::new(false),
            revision: AtomicU64::new(1),
            timers: TimerOrder::new(),
            groups: AtomicU64::new(0),
            unassigned: PlainU64::default(),
            config,
        }
    }
}
