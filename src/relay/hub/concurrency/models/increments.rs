//! C1: the increments of own causes, while the task that sends frames takes them.
//!
//! Must not be lost: a cause that no frame has, so that the other relays are not told of it.

use std::sync::Arc;

use shuttle::thread;

use super::{
    super::{
        checks::{finds, holds_in},
        config::HubConfig,
        core::Hub,
    },
    join, spawn_notify,
};
use crate::base::fault::Fault;

/// Schedules of each kind for a model that must hold.
const SCHEDULES: usize = 1000;

/// Takes the increments that are listed now; returns their causes.
fn take_all(hub: &Hub) -> u64 {
    let increments = std::iter::from_fn(|| hub.next_increment());
    increments.map(|increment| increment.causes).sum()
}

/// Two publishers of one queue, and the task that sends frames.
fn notify_and_announce(fault: Fault) -> Result<(), String> {
    fault.plant();
    let hub = Arc::new(Hub::new(HubConfig {
        cluster: true,
        ..HubConfig::default()
    }));
    let publishers = [spawn_notify(&hub, "q", &[0]), spawn_notify(&hub, "q", &[1])];
    let task = {
        let hub = Arc::clone(&hub);
        thread::spawn(move || {
            let first = take_all(&hub);
            thread::yield_now();
            first + take_all(&hub)
        })
    };
    publishers.into_iter().for_each(join);
    match join(task) + take_all(&hub) {
        2 => Ok(()),
        causes => Err(format!("{causes} of 2 causes are in frames")),
    }
}

#[test]
fn each_cause_is_in_one_frame() {
    holds_in(SCHEDULES, notify_and_announce);
}

#[test]
fn a_mark_that_is_cleared_after_the_counters_are_read_is_found() {
    finds(notify_and_announce, Fault::LinkMarkClearedLate);
}
