//! The hub under every interleaving that matters: its files, compiled a second time with shuttle's
//! locks, atomics and threads.
//!
//! In each model a few threads notify, walk, subscribe, take, forget and resubscribe. Each event
//! has its own bit, so a listener's sum shows whether an event was lost or sent twice. In `models/`
//! listeners read the messages of a small world, report, hang and leave: groups, the sentinel,
//! reports, the end of a subscription, patterns over their limits. There is no heartbeat that would
//! heal a lost wake: a stream is polled only when it was woken. The same models must find each
//! rule's planted fault.
#![allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "the models use a part of the files that are compiled a second time"
)]

#[path = "admission.rs"]
mod admission;
#[path = "announced.rs"]
mod announced;
#[path = "attach.rs"]
mod attach;
#[path = "attaching.rs"]
mod attaching;
#[path = "capacity.rs"]
mod capacity;
#[path = "config.rs"]
mod config;
#[path = "coordinator.rs"]
mod coordinator;
#[path = "core.rs"]
mod core;
#[path = "counters.rs"]
mod counters;
#[path = "cursor.rs"]
mod cursor;
#[path = "cursor_list.rs"]
mod cursor_list;
#[path = "cursor_pool.rs"]
mod cursor_pool;
#[path = "cursors.rs"]
mod cursors;
#[path = "fanout.rs"]
mod fanout;
#[path = "group.rs"]
mod group;
#[path = "idle.rs"]
mod idle;
#[path = "increments.rs"]
mod increments;
#[path = "interest.rs"]
mod interest;
#[path = "mailbox.rs"]
mod mailbox;
#[path = "members.rs"]
mod members;
#[path = "no_subscribers.rs"]
mod no_subscribers;
#[path = "pattern_checks.rs"]
mod pattern_checks;
#[path = "pattern_holders.rs"]
mod pattern_holders;
#[path = "pattern_index.rs"]
mod pattern_index;
#[path = "pattern_overflow.rs"]
mod pattern_overflow;
#[path = "peer_causes.rs"]
mod peer_causes;
#[path = "probe_table.rs"]
mod probe_table;
#[path = "queue_check.rs"]
mod queue_check;
#[path = "queue_entry.rs"]
mod queue_entry;
#[path = "queue_state.rs"]
mod queue_state;
#[path = "queue_update.rs"]
mod queue_update;
#[path = "redelivery.rs"]
mod redelivery;
#[path = "report.rs"]
mod report;
#[path = "resume.rs"]
mod resume;
#[path = "resync.rs"]
mod resync;
#[path = "served_groups.rs"]
mod served_groups;
#[path = "shard_growth.rs"]
mod shard_growth;
#[path = "stream.rs"]
mod stream;
#[path = "subscribe.rs"]
mod subscribe;
#[path = "subscribers.rs"]
mod subscribers;
#[path = "subscription.rs"]
mod subscription;
#[path = "timers.rs"]
mod timers;
#[path = "wake_builder.rs"]
mod wake_builder;

mod checks;
mod listener;
mod map;
mod models;
mod sync;
mod worker;
mod world;
