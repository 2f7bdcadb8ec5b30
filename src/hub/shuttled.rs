//! The hub under every interleaving that matters: its files, compiled a second time with shuttle's
//! locks, atomics and threads.
//!
//! In each model a few threads notify, walk, subscribe, take, forget and come back; each event bears
//! a bit of its own, so that what a subscriber is told shows whether one was lost or told twice.
//! There is no heartbeat to heal anything: a stream looks again only when it was woken. Each rule's
//! planted fault must be found by the same models.
#![allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "the models use a part of the files that are compiled a second time"
)]

#[path = "attach.rs"]
mod attach;
#[path = "claim.rs"]
mod claim;
#[path = "company.rs"]
mod company;
#[path = "core.rs"]
mod core;
#[path = "cursors.rs"]
mod cursors;
#[path = "fanout.rs"]
mod fanout;
#[path = "feed.rs"]
mod feed;
#[path = "group.rs"]
mod group;
#[path = "hear.rs"]
mod hear;
#[path = "links.rs"]
mod links;
#[path = "looks.rs"]
mod looks;
#[path = "place.rs"]
mod place;
#[path = "record.rs"]
mod record;
#[path = "room.rs"]
mod room;
#[path = "roster.rs"]
mod roster;
#[path = "sentinel.rs"]
mod sentinel;
#[path = "subscription.rs"]
mod subscription;
#[path = "tend.rs"]
mod tend;
#[path = "timers.rs"]
mod timers;

mod checks;
mod listener;
mod map;
mod models;
mod sync;
