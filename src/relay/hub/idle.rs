//! Whether an entry is idle, and how it is marked dead.
//!
//! A queue that only patterns match is forgotten like any other, when nothing is pending there (R3: an
//! up-to-date pattern keeps no idle entry). Otherwise a pattern would make the limit of queues a limit
//! for its lifetime. A caller that finds the dead entry makes a new one.

use std::{sync::Arc, time::Duration};

use super::{
    core::Hub,
    queue_entry::{QueueEntry, QueueState},
    sync::Ordering,
};
use crate::base::{clock::Tick, fault::planted};

impl QueueState {
    /// Returns since when the queue has been idle and whether patterns match it, or `None` where it is
    /// in use.
    fn idle(&mut self, now: Tick) -> Option<(Tick, bool)> {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.forget_expired(now);
        }
        let named = self.outside.named.len() > 0 || self.held > 0;
        let needed = self.has_timers() || self.is_listed() || self.is_walked();
        if self.is_dead || named || needed {
            return None;
        }
        let head = self.head();
        let coordinator = self.coordinator.as_ref().filter(|_| self.grouped);
        let idle = coordinator.is_none_or(|one| one.is_idle(&head));
        idle.then(|| (self.idle_since(), self.listeners() > 0))
    }
}

impl QueueEntry {
    /// Returns since when the queue has been idle and whether patterns match it, or `None` where it is
    /// in use.
    pub(super) fn idle_since(&self, now: Tick) -> Option<(Tick, bool)> {
        self.lock_with_nodes(now).idle(now)
    }
}

impl Hub {
    /// Forgets a queue that has been idle since then, and for `pattern_idle` longer where patterns match
    /// it; returns whether it did. R3: sequences of this name never start again in this epoch.
    pub(super) fn forget_one(
        &self,
        entry: &Arc<QueueEntry>,
        (idle_since, now): (Tick, Tick),
        pattern_idle: Duration,
    ) -> bool {
        let mut guard = entry.lock_with_nodes(now);
        let state = &mut *guard;
        let Some((since, by_pattern)) = state.idle(now) else {
            return false;
        };
        let wait = if by_pattern {
            pattern_idle
        } else {
            Duration::ZERO
        };
        if since + wait > idle_since {
            return false;
        }
        let changed_at = state.changed_at;
        self.forgotten_at.fetch_max(changed_at, Ordering::AcqRel);
        if !planted!(FloorForgotten) {
            let floor = state.counters.sequence + 1;
            self.floor.fetch_max(floor, Ordering::AcqRel);
        }
        if !planted!(DeadNotMarked) {
            state.is_dead = true;
        }
        let groups = state.coordinator.iter().flat_map(|one| one.groups());
        let of_groups = groups.flat_map(|group| &group.members.all.nodes);
        let nodes = state.outside.nodes.iter().chain(of_groups);
        nodes.for_each(|node| node.set_needed());
        (state.coordinator, state.grouped) = (None, false);
        // Its sentinel's time may still be in the timers' order. Without this, a dead entry would
        // come up for ever.
        let _ = state.rearm(entry, &self.timers);
        drop(guard);
        self.entries.remove(entry);
        self.metrics.forgotten.fetch_add(1, Ordering::Relaxed);
        true
    }
}
