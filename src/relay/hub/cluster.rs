//! Causes that other relays of a cluster have counted (C3), resyncs (C6), and what relays tell each other
//! of their groups and checks (C10 to C12).
//!
//! A frame's entry is counted like a notification of this relay: it makes an entry, and patterns are
//! told of it. A resync counts one cause without sums: subscribers get a CATCH_UP, also a subscriber
//! between two streams, because the queue has changed. Both move what the other relays know, so
//! they are never passed on.

pub(super) mod increments;
pub(super) mod resync;

use std::{sync::Arc, time::Duration};

use super::{
    coordinator::Coordinator,
    core::Hub,
    counters::Counters,
    fanout::UpdateBatch,
    mailbox::WakeBatch,
    queue::{QueueEntry, QueueState},
    sync::Ordering,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{
        GroupName, QueueAddress, WakeReason,
        cluster::{ClusterLimits, FrameEntry},
    },
};

impl Hub {
    /// Counts the increments of another relay, and wakes the subscribers. With `in_full` groups get
    /// them also where members of that relay serve them.
    pub(crate) fn count_peer_increments(&self, entries: &[FrameEntry], in_full: bool, now: Tick) {
        let mut batch = UpdateBatch::default();
        for checked in entries.iter().filter(|entry| entry.checked) {
            let entry = self.entries.get(&checked.queue);
            let mut state = entry.as_ref().map(|entry| entry.lock());
            let coordinator = state.as_mut().and_then(|state| state.coordinator.as_mut());
            if let Some(sentinel) = coordinator.and_then(|one| one.sentinel.as_mut())
                && !planted!(LinkCheckIgnored)
            {
                sentinel.checked_by_peer(now);
            }
        }
        let causes = entries.iter().filter(|entry| entry.causes > 0);
        let mut are_made = self.is_short_of_memory();
        for increment in causes.clone() {
            let address = &increment.queue;
            let mut entry = self.entries.get(address);
            if entry.is_none() && !std::mem::replace(&mut are_made, true) {
                self.make_queues_of_peer(causes.clone().map(|entry| &entry.queue), now);
                entry = self.entries.get(address);
            }
            match entry {
                Some(entry) => self.update(entry, false, now, &mut batch, |state| {
                    state.count_peer(increment, in_full, now);
                    true
                }),
                None => {
                    self.metrics.unnamed.fetch_add(1, Ordering::Relaxed);
                    self.check_patterns_of(address, now, &mut batch.wakes);
                    self.tell_cause(address);
                }
            }
        }
    }

    /// Makes the entries of a frame's queues. Frames may fill three quarters of the table: the rest is for
    /// this relay's own clients. Idle queues give way.
    fn make_queues_of_peer<'a>(&self, queues: impl Iterator<Item = &'a QueueAddress>, now: Tick) {
        let queues: Vec<_> = queues.collect();
        let limit = self.shared.config.max_queues;
        let most = (limit - limit / 4).max(self.entries.len());
        self.make_missing(&queues, most, || queues.iter().copied().collect(), now);
    }

    /// There is no room for the queue's entry: its patterns are checked under their own names.
    fn check_patterns_of(&self, address: &QueueAddress, now: Tick, batch: &mut WakeBatch) {
        self.begin_pattern_resync();
        let nodes = self.shared.patterns.matching(address);
        for node in nodes.iter().filter(|node| node.group.is_none()) {
            for one in node.lock().iter() {
                one.request_pattern_check(&node.selector, WakeReason::CatchUp, batch);
            }
        }
        self.end_pattern_resync();
        for node in nodes.iter().filter(|node| node.group.is_some()) {
            self.request_pattern_check(node, now);
        }
    }
}

impl QueueState {
    fn count_peer(&mut self, increment: &FrameEntry, in_full: bool, now: Tick) {
        let counters = Counters::of_increment(increment);
        self.count_announced(&counters);
        if let Some(coordinator) = &mut self.coordinator
            && !in_full
        {
            // Members of the other relay serve these causes.
            let served = &increment.served_groups;
            let groups = coordinator.groups_mut();
            let served = groups.filter(|group| served.contains(&group.name));
            served.for_each(|group| group.skip(&counters));
        }
        if increment.notifications > 0 {
            self.notified = self.counters.sequence;
            self.last_event = increment.last_event.clone();
        } else {
            self.note_timed();
        }
        self.active_at = now;
    }
}

/// A check that waited longer than this for a frame is not announced.
const CHECK_VALID_FOR: Duration = Duration::from_secs(1);
/// Checks are announced at most once in this fraction of the sentinel's interval.
const CHECKS_PER_INTERVAL: u32 = 4;

impl Coordinator {
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
}

impl QueueState {
    /// Counts a cause for the other relays, where a group here does not finish its work (C11).
    /// Returns whether it did.
    pub(super) fn count_passed_on(&mut self, now: Tick) -> bool {
        let coordinator = self.coordinator.as_mut();
        let passed_on = coordinator.is_some_and(|one| one.take_passed_on());
        if passed_on {
            self.drop_unused_coordinator();
            self.counters.sequence += 1;
            self.note_timed();
            self.active_at = now;
        }
        passed_on
    }

    /// C12: a listener has reported a check, and the others are told of it.
    pub(super) fn note_check(&mut self, now: Tick) {
        let announced = self.announced();
        if now >= announced.checked_from {
            announced.checked = Some(now);
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
}

impl Hub {
    /// Appends the queue to the list of increments where a check is to be announced.
    pub(super) fn list_check(&self, entry: &Arc<QueueEntry>) {
        if !self.shared.config.cluster {
            return;
        }
        let mut state = entry.lock();
        let is_due = !state.is_dead && state.announced().checked.is_some();
        let listed = is_due && self.increments.list(entry, &mut state);
        drop(state);
        if listed {
            self.increments.waker.wake();
        }
    }
}
