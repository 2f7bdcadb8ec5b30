//! The hub: who is owed a wake-up. Pure and synchronous; `now` and chance are passed in.
//!
//! A queue is a counter ([`record`]), a subscriber is a cursor ([`subscription`]), a wake-up is the
//! difference. No event is ever buffered: a notification moves a counter, a walk marks those who
//! listen, and a stream that is ready to send computes what it is owed. Waits for nothing and
//! knows neither tokio nor the wire; `relay` runs it.
//!
//! Memory, by `tests/memory.rs`, at worst: 450 bytes a queue, 310 a subscription, 370 more for each
//! queue that it matches, 150 a timer; nothing for a notification, however slow its readers are.
//!
//! Locks, each taken only in this order, none held across a wake: a subscription's cursors, then
//! a record, then the timers. The list of patterns and the map's shards are leaves: nothing is locked
//! under them. On the way of a notification only a shard's and the record's are taken.

mod attach;
mod claim;
mod company;
mod core;
mod cursors;
mod fanout;
mod feed;
mod group;
mod hear;
mod links;
mod looks;
mod map;
mod place;
mod record;
mod room;
mod roster;
mod sentinel;
mod subscription;
mod tend;
mod timers;
mod unheard;
mod view;

#[cfg(test)]
mod shuttled;
#[cfg(test)]
mod tests;

use super::sync;

pub(crate) use self::{
    company::Pace,
    core::{Hub, HubConfig, HubStats},
    feed::{Feed, FeedConfig, Next},
    place::Epoch,
    subscription::SubscriptionId,
    view::{ListenerView, QueueView},
};

#[cfg(test)]
pub(crate) use self::{fanout::Walk, subscription::Subscription};
