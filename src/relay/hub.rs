//! The hub: computes which subscriber gets which wake-up. Pure and synchronous; `now` and random
//! generators are arguments.
//!
//! A queue is a counter ([`queue_entry`]), a subscriber is a cursor ([`subscription`]), a wake-up
//! is the difference. No event is buffered. A notification moves a counter, a walk marks the
//! subscribers, and a stream that is ready to send computes its entries. The hub never waits and
//! knows neither tokio nor the wire format; `relay` runs it.
//!
//! Memory at worst (`tests/memory.rs`): 450 bytes a queue, 560 a subscription, 430 to 680 more for each
//! queue that it matches, 150 a timer. A notification costs no memory, however slow its readers
//! are.
//!
//! Locks, each taken only in this order, none held across a wake: a subscription's queues to
//! attach, its cursors, a queue entry, then the timers or a mailbox's lists. A shard of the map is
//! held while its ordered index is written; the index of patterns is a leaf. A notification takes a
//! shard's lock and the entry's. It also takes the lists of streams with more than 62 queues, and
//! the overflow's while a pattern lacks cursors. The entry of a queue that an operator watches is held
//! while the log of decisions or the list of subscriptions is taken.

mod activity;
mod admission;
mod announced;
mod attach;
mod attaching;
mod backlog;
mod capacity;
mod config;
mod coordinator;
mod core;
pub(crate) mod counters;
mod cursor;
mod cursor_list;
mod cursor_pool;
mod cursors;
mod decisions;
mod fanout;
mod group;
mod handed_timers;
mod idle;
mod increments;
mod interest;
mod load;
mod lost;
mod mailbox;
mod map;
mod members;
mod no_subscribers;
mod pattern_checks;
mod pattern_holders;
mod pattern_index;
mod pattern_overflow;
mod peer_causes;
mod queue_check;
mod queue_entry;
mod queue_listeners;
mod queue_state;
mod queue_update;
mod ranking;
mod redelivery;
mod report;
pub(crate) mod resume;
mod resync;
mod served_groups;
mod shard_growth;
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

#[cfg(test)]
use self::concurrency::sync;
#[cfg(not(test))]
use crate::base::sync;

pub(crate) use self::{
    activity::{ActiveQueue, ActivityWatch},
    capacity::LimitUse,
    config::{CoordinatorConfig, HubConfig},
    core::{Hub, HubStats},
    counters::Epoch,
    cursor_pool::CursorPool,
    cursors::Filled,
    decisions::{Decision, DecisionKind, NotedDecisions},
    handed_timers::PendingTimers,
    lost::Named,
    mailbox::SubscriptionId,
    mailbox::WakeBatch,
    no_subscribers::UnservedQueue,
    queue_listeners::{ListenerSurvey, QueueListener, SurveyedListener},
    ranking::{QueueOrder, Ranking},
    resync::{ResyncScope, ResyncWalk},
    stats::{ListenerStats, QueueStats},
    stream::{StreamConfig, StreamMessage, SubscriberStream},
    wake_builder::{Target, WakeBuilder, WakeEntry, WakeSink},
};

#[cfg(test)]
pub(crate) use self::{fanout::Walk, load::LoadStats, subscription::Subscription};
