//! Causes that other relays of a cluster have counted (C3), resyncs (C6), and what relays tell each other
//! of their groups and checks (C10 to C12).
//!
//! A frame's entry is counted like a notification of this relay: it makes an entry, and patterns are
//! told of it. A resync counts one cause without sums: subscribers get a CATCH_UP, also a subscriber
//! between two streams, because the queue has changed. Both move what the other relays know, so
//! they are never passed on.

pub(super) mod increments;
pub(super) mod resync;

use super::{
    core::Hub, counters::Counters, queue::QueueState, subscription::WakeBatch, sync::Ordering,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{QueueAddress, WakeReason, cluster::FrameEntry},
};

impl Hub {
    /// Counts the increments of another relay, and wakes the subscribers. With `in_full` groups get
    /// them also where members of that relay serve them.
    pub(crate) fn count_peer_increments(&self, entries: &[FrameEntry], in_full: bool, now: Tick) {
        let mut batch = WakeBatch::default();
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
                // Frames may fill three quarters of the table: the rest is for this relay's own clients.
                let limit = self.shared.config.max_queues;
                let most = (limit - limit / 4).max(self.entries.len());
                let queues: Vec<_> = causes.clone().map(|entry| &entry.queue).collect();
                self.make_missing(&queues, most, false, now);
                entry = self.entries.get(address);
            }
            match entry {
                Some(entry) => self.update(entry, false, now, &mut batch, |_, state| {
                    state.count_peer(increment, in_full, now);
                }),
                None => {
                    self.metrics.unnamed.fetch_add(1, Ordering::Relaxed);
                    self.check_patterns_of(address, now, &mut batch);
                    self.tell_cause(address);
                }
            }
        }
    }

    /// There is no room for the queue's entry: its patterns are checked under their own names.
    fn check_patterns_of(&self, address: &QueueAddress, now: Tick, batch: &mut WakeBatch) {
        self.begin_pattern_resync();
        for node in self.shared.patterns.matching(address) {
            if node.group.is_some() {
                node.request_check(now, batch);
                continue;
            }
            for one in node.lock().iter() {
                one.request_pattern_check(&node.selector, WakeReason::CatchUp, batch);
            }
        }
        self.end_pattern_resync();
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
        }
        self.active_at = now;
    }
}
