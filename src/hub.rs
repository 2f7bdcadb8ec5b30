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

mod attach;
mod capacity;
mod claim;
mod company;
mod core;
mod cursor;
mod cursor_list;
mod cursors;
mod fanout;
mod feed;
mod group;
mod hear;
mod mailbox;
mod map;
mod overflow;
mod pattern_index;
mod pattern_probes;
mod pinned;
mod place;
mod record;
mod resume;
mod room;
mod roster;
mod sentinel;
mod shards;
mod subscribe;
mod subscribers;
mod subscription;
mod tend;
mod timers;
mod unheard;
mod view;
mod wake_builder;

#[cfg(test)]
mod shuttled;
#[cfg(test)]
mod tests;

use super::sync;

pub(crate) use self::{
    company::Pace,
    core::{Hub, HubConfig, HubStats},
    cursors::Filled,
    feed::{Feed, FeedConfig, Next},
    mailbox::WakeBatch,
    place::Epoch,
    subscription::SubscriptionId,
    unheard::NearestName,
    view::{ListenerView, QueueView},
    wake_builder::{Entry, Target, WakeBuilder, WakeSink},
};

#[cfg(test)]
pub(crate) use self::{fanout::Walk, subscription::Subscription};
