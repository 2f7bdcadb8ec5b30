//! Causes that other relays of a cluster have counted (C3), resyncs (C6), and what relays tell each other
//! of their groups and checks (C10 to C12).
//!
//! A frame's entry is counted like a notification of this relay: it makes an entry, and patterns are
//! told of it. A resync counts one cause without sums: subscribers get a CATCH_UP, also a subscriber
//! between two streams, because the queue has changed. Both move what the other relays know, so
//! they are never passed on.

pub(super) mod increments;
pub(super) mod resync;

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{
    coordinator::Coordinator,
    core::Hub,
    counters::Counters,
    fanout::UpdateBatch,
    mailbox::WakeBatch,
    queue::{QueueEntry, QueueState},
    sync::{Ordering, lock},
};
use crate::{
    base::clock::Tick,
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
            if let Some(entry) = self.entries.get(&checked.queue) {
                entry.lock().checked_by_peer(now);
            }
        }
        let causes = entries.iter().filter(|entry| entry.causes > 0);
        let mut room = None;
        for increment in causes.clone() {
            let address = &increment.queue;
            let entry = self.entries.get(address).or_else(|| {
                let queues = causes.clone().map(|entry| &entry.queue);
                let room = room.get_or_insert_with(|| self.room_for_peer(queues, now));
                let Some(left) = room.checked_sub(1) else {
                    // It may have been made meanwhile.
                    return self.entries.get(address);
                };
                *room = left;
                Some(self.make_entry(address, now))
            });
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

    /// Returns for how many of a frame's queues that are not known there is room. Frames may fill three
    /// quarters of the table: the rest is for this relay's own clients. Idle queues give way.
    fn room_for_peer<'a>(
        &self,
        queues: impl Iterator<Item = &'a QueueAddress>,
        now: Tick,
    ) -> usize {
        if self.is_short_of_memory() {
            return 0;
        }
        let queues: HashSet<_> = queues.collect();
        let is_new = |queue: &&&QueueAddress| self.entries.get(queue).is_none();
        let new = queues.iter().filter(is_new).count();
        let mut eviction = lock(&self.eviction);
        let most = self.shared.config.max_queues - self.shared.config.max_queues / 4;
        let excess = (self.entries.len() + new).saturating_sub(most);
        let missing = match excess {
            0 => 0,
            _ => self.evict(&mut eviction, excess.min(new), &queues, now),
        };
        new - missing
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
            coordinator.skip_served(&increment.served_groups, &counters);
        }
        if increment.notifications > 0 {
            self.notified = self.counters.sequence;
            self.last_event = increment.last_event.clone();
        } else {
            self.note_timed();
        }
        self.active_at = now;
    }

    /// Counts one cause without sums. It does not postpone forgetting: a connection that is often
    /// interrupted would otherwise keep all queues.
    pub(super) fn count_resync(&mut self) {
        self.count_announced(&Counters::starting_at(1));
    }
}

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
