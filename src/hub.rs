//! The hub: who is owed a wake-up. Pure and synchronous; `now` and chance are passed in.
//!
//! A queue is a counter ([`record`]), a subscriber is a cursor ([`subscription`]), a wake-up is the
//! difference. No event is ever buffered: a notification moves a counter, a walk marks those who
//! listen, and a stream that is ready to send computes what it is owed. Waits for nothing and
//! knows neither tokio nor the wire; `relay` runs it.
//!
//! Memory, by `tests/memory.rs`, at worst: 450 bytes a queue, 520 a subscription, 420 more for each
//! queue that it matches, 150 a timer; nothing for a notification, however slow its readers are.
//!
//! Locks, each taken only in this order, none held across a wake: what a subscription has still to
//! attach, its cursors, a record, then the timers or a mailbox's lists. A shard of the map is held
//! while its ordered index is written; the index of patterns is a leaf. On the way of a notification
//! only a shard's and the record's are taken, the lists of streams with more than 62 queues, and the
//! overflow's while a pattern lacks cursors.

mod admission;
mod attach;
mod capacity;
mod coordinator;
mod core;
mod counters;
mod cursor;
mod cursor_list;
mod cursors;
mod fanout;
mod group;
mod holders;
mod mailbox;
mod map;
mod members;
mod no_subscribers;
mod overflow;
mod pattern_index;
mod pattern_probes;
mod queue_entry;
mod queue_state;
mod redelivery;
mod report;
mod resume;
mod sentinel;
mod shards;
mod stats;
mod stream;
mod subscribe;
mod subscribers;
mod subscription;
mod timers;
mod wake_builder;

#[cfg(test)]
mod concurrency;
#[cfg(test)]
mod tests;

use super::sync;

pub(crate) use self::{
    coordinator::CoordinatorConfig,
    core::{Hub, HubConfig, HubStats},
    counters::Epoch,
    cursors::Filled,
    mailbox::WakeBatch,
    no_subscribers::NearestName,
    stats::{ListenerStats, QueueStats},
    stream::{StreamAction, StreamConfig, SubscriberStream},
    subscription::SubscriptionId,
    wake_builder::{Target, WakeBuilder, WakeEntry, WakeSink},
};

#[cfg(test)]
pub(crate) use self::{fanout::Walk, subscription::Subscription};
