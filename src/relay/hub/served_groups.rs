//! Groups and checks of a queue in a cluster: the statements of this relay's frames about them, and
//! the effects of another relay's frames (C10 to C12).

use std::{sync::Arc, time::Duration};

use super::{
    coordinator::Coordinator,
    core::Hub,
    counters::Counters,
    queue_entry::{QueueEntry, QueueState},
};
use crate::{
    base::clock::Tick,
    types::{GroupName, cluster::ClusterLimits},
};

/// A check that waited longer than this for a frame is not announced.
const CHECK_VALID_FOR: Duration = Duration::from_secs(1);
/// Checks are announced at most once in this fraction of the sentinel's interval.
const CHECKS_PER_INTERVAL: u32 = 4;

impl Coordinator {
    /// C7: each group, with or without members, must check the queue.
    pub(super) fn request_checks(&mut self, now: Tick) {
        for group in self.groups_mut() {
            group.request_check_round(now);
        }
        self.needs_reconcile = true;
    }

    /// Returns the groups whose idle members took all causes since the last call.
    pub(super) fn take_served_groups(&mut self, head: &Counters) -> Vec<GroupName> {
        let mut served = Vec::new();
        for group in self.groups_mut() {
            if group.take_served(head, served.len() < ClusterLimits::GROUPS) {
                served.push(group.name.clone());
            }
        }
        served
    }

    /// Members of another relay serve these causes.
    pub(super) fn skip_served(&mut self, served: &[GroupName], increment: &Counters) {
        for group in self.groups_mut() {
            if served.contains(&group.name) {
                group.skip(increment);
            }
        }
    }
}

impl QueueState {
    /// Counts a cause for the other relays, where a group here does not finish its work (C11).
    /// Returns whether it did.
    pub(super) fn count_passed_on(&mut self, now: Tick) -> bool {
        let passed_on = std::mem::take(&mut self.passed_on);
        if passed_on {
            self.counters.sequence += 1;
            self.note_timed();
            self.active_at = now;
        }
        passed_on
    }

    /// C12: a listener has reported a check, and the others are told of it.
    pub(super) fn note_check(&mut self, interval: Duration, now: Tick) {
        if !interval.is_zero() {
            let announced = self.announced();
            if now >= announced.checked_from {
                announced.checked = Some(now);
            }
        }
    }

    /// Returns whether the others are told of a check, which they are then.
    pub(super) fn take_check_to_announce(&mut self, interval: Duration, now: Tick) -> bool {
        let announced = self.announced();
        let checked = announced.checked.take();
        let fresh = checked.is_some_and(|at| now.since(at) <= CHECK_VALID_FOR);
        if fresh {
            announced.checked_from = now + interval / CHECKS_PER_INTERVAL;
        }
        fresh
    }

    /// A listener of another relay has checked the queue: the sentinel's interval restarts.
    pub(super) fn checked_by_peer(&mut self, now: Tick) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.checked_by_peer(now);
        }
    }
}

impl Hub {
    /// Appends the queue to the list of increments where a check is to be announced.
    pub(super) fn list_check(&self, entry: &Arc<QueueEntry>) {
        let Some(increments) = &self.increments else {
            return;
        };
        let mut state = entry.lock();
        let listed = !state.is_dead && state.has_check_to_announce() && state.set_listed();
        if listed {
            increments.append(entry);
        }
        drop(state);
        if listed {
            increments.waker.wake();
        }
    }
}
