//! The hub: computes which subscriber gets which wake-up. Pure and synchronous; `now` and random
//! generators are arguments.
//!
//! A queue is a counter ([`queue`]), a subscriber is a position in it ([`subscription`]), a
//! wake-up is the difference. No event is buffered. A notification moves a counter and owes the queue
//! to its subscribers, and a stream that is ready to send computes its entries. A subscriber that is
//! owed nothing has no state. The hub never waits and knows neither tokio nor the wire format; `relay`
//! runs it.
//!
//! Memory at worst (`tests/memory.rs`): 500 bytes a queue, 640 a subscription, 8 more for each queue
//! that it names, 340 for each where it is owed something or handles messages, 150 a timer. A
//! notification costs no more, however slow its readers are.
//!
//! Locks, each taken only in this order, none held across a wake: the search for idle queues or a pattern's
//! check, a queue entry, the index of patterns, a node's list, an inbox, then one of the others
//! (`concurrency/sync.rs` checks this in tests). A stream that takes locks its inbox first, and then only
//! tries the entries' locks. A shard of the map is held while its ordered index is
//! written. A notification takes a shard's lock, the entry's, and the inboxes of those that were owed
//! nothing. An inbox is held while its part of the load is counted.

mod cluster;
mod config;
mod core;
mod fanout;
mod figures;
mod group;
mod pattern;
mod queue;
mod subscription;

#[cfg(test)]
mod concurrency;
#[cfg(test)]
mod tests;

#[cfg(test)]
use self::concurrency::sync;
#[cfg(not(test))]
use crate::base::sync;

#[cfg(any(test, fuzzing))]
pub(crate) use self::subscription::resume;
pub(crate) use self::{
    capacity::LimitUse,
    config::HubConfig,
    core::{Hub, HubStats},
    counters::Epoch,
    cursor::CursorPool,
    decisions::{Decision, DecisionKind},
    figures::{ListenerStats, QueueStats},
    inbox::Filled,
    queue_listeners::{ListenerSurvey, QueueListener, SurveyedListener},
    ranking::{QueueOrder, Ranking},
    resync::{ResyncScope, ResyncWalk},
    stream::{StreamConfig, StreamMessage, SubscriberStream},
    subscription::{SubscriptionId, WakeBatch},
    timers::PendingTimers,
    wake_builder::{Target, WakeBuilder, WakeEntry, WakeSink},
};
use self::{
    cluster::{increments, resync},
    figures::{decisions, load, lost, queue_listeners, ranking},
    group::{coordinator, members, redelivery},
    pattern::checks as pattern_checks,
    queue::{capacity, check as queue_check, counters, entries, forgetting, listeners, timers},
    subscription::{cursor, inbox, stream, subscribe, wake_builder},
};

#[cfg(test)]
pub(crate) use self::{fanout::Walk, subscription::Subscription};
