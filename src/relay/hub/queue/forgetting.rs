//! When a queue is forgotten: after it was idle for long enough, or when its entry gives way to a new
//! queue in a full table.
//!
//! Nothing that a subscriber or a timer needs is ever given up. A subscriber that comes back to a forgotten
//! queue gets a CATCH_UP (R3: sequences never start again in one epoch). A queue that only patterns match
//! is forgotten like any other, when nothing is pending there: otherwise a pattern would make the limit of
//! queues a limit for its lifetime. A caller that finds the dead entry makes a new one.

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::super::{
    core::Hub,
    queue::{QueueEntry, QueueState},
    sync::Ordering,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::QueueAddress,
};

/// Where the search for idle queues continues.
#[derive(Default)]
pub(crate) struct Eviction {
    last_visited: Option<QueueAddress>,
    /// The last search found too few: no search before this time.
    pub(crate) not_before: Tick,
}

/// Queues that a scan visits before it yields.
const QUEUES_PER_STEP: usize = 512;
/// Queues of one step of the search, of which the longest idle give way, and of one search: twice
/// as many as a request can name, some milliseconds at worst.
const STEP: usize = 256;
const SEARCH: usize = 8192;
/// The least time between two searches of a full table, counted from the beginning of a search. The
/// limits above bound its length.
const SEARCH_INTERVAL: Duration = Duration::from_millis(100);
/// A queue that only patterns match gives way after this idle time.
const PATTERN_IDLE: Duration = Duration::from_secs(60);

impl QueueState {
    /// Returns since when the queue has been idle, or `None` where it is in use. One that only patterns
    /// match counts as idle this much later.
    fn idle_since(&self, pattern_idle: Duration) -> Option<Tick> {
        let named = self.outside.named.len() > 0 || self.held > 0;
        // The list of increments holds the entry, so it would grow beyond the table of queues.
        let is_listed = self.announced.as_ref().is_some_and(|one| one.listed);
        let needed = self.timers.len() > 0 || is_listed || self.is_walked();
        if self.is_dead || named || needed {
            return None;
        }
        let mut groups = self.coordinator.iter().flat_map(|one| one.groups());
        let idle = groups.all(|group| group.is_idle(&self.counters));
        // An entry without listeners is kept from the time when the last one left, because a subscriber
        // may come back and resume. With other listeners it is not: rotating streams would keep every
        // queue of their pattern, and a missing entry costs only a CATCH_UP.
        idle.then(|| match self.listeners() {
            0 => self.active_at.max(self.left_at),
            _ => self.active_at + pattern_idle,
        })
    }
}

impl Hub {
    /// Forgets the queues that were idle for long enough.
    #[cfg(test)]
    pub(crate) fn forget(&self, now: Tick) {
        let mut after = None;
        while let Some(last) = self.forget_some(after.as_ref(), now) {
            after = Some(last);
        }
    }

    /// Forgets among the next few queues after the given one; returns the last of them, or `None`
    /// at the end.
    pub(crate) fn forget_some(
        &self,
        after: Option<&QueueAddress>,
        now: Tick,
    ) -> Option<QueueAddress> {
        let forget_after = self.shared.config.forget_after;
        let entries = self.entries.after(after, QUEUES_PER_STEP);
        for entry in &entries {
            // Nobody may have reconciled it since its groups got other members.
            if entry.lock_with_nodes(now).is_grouped() {
                self.reconcile(Arc::clone(entry), now, |_, _| {});
            }
            self.forget_one(entry, forget_after, Duration::ZERO, now);
        }
        entries.last().map(|entry| entry.address().clone())
    }

    /// Forgets `excess` idle queues without listeners, except for the request's own; returns how many
    /// it did not find. A search visits each queue once at most, and a bounded number of them.
    pub(in super::super) fn evict(
        &self,
        eviction: &mut Eviction,
        mut excess: usize,
        own: &HashSet<&QueueAddress>,
        now: Tick,
    ) -> usize {
        if now < eviction.not_before {
            return excess;
        }
        // One more, for the step from the last queue to the first.
        let mut queues = SEARCH.min(self.entries.len() + 1);
        while excess > 0 && queues > 0 {
            let last = eviction.last_visited.as_ref();
            let entries = self.entries.after(last, STEP.min(queues));
            queues -= entries.len().max(1);
            eviction.last_visited = entries.last().map(|entry| entry.address().clone());
            let others = entries.iter().filter(|one| !own.contains(one.address()));
            let idle = others.filter_map(|entry| {
                let mut state = entry.lock_with_nodes(now);
                if let Some(coordinator) = &mut state.coordinator {
                    coordinator.forget_kept(now);
                }
                Some((state.idle_since(PATTERN_IDLE)?, entry))
            });
            let mut idle: Vec<_> = idle.collect();
            idle.sort_by_key(|(since, _)| *since);
            for (_, entry) in idle {
                if excess > 0 && self.forget_one(entry, Duration::ZERO, PATTERN_IDLE, now) {
                    excess -= 1;
                }
            }
        }
        if excess > 0 {
            eviction.not_before = now + SEARCH_INTERVAL;
        }
        excess
    }

    /// Forgets a queue that has been idle for so long, and for `pattern_idle` longer where patterns match
    /// it; returns whether it did. R3: sequences of this name never start again in this epoch.
    fn forget_one(
        &self,
        entry: &Arc<QueueEntry>,
        idle_for: Duration,
        pattern_idle: Duration,
        now: Tick,
    ) -> bool {
        let mut guard = entry.lock_with_nodes(now);
        let state = &mut *guard;
        let since = state.idle_since(pattern_idle);
        if since.is_none_or(|since| since + idle_for > now) {
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
        let groups = state.coordinator.iter_mut();
        let groups = groups.flat_map(|one| one.groups_mut());
        groups.for_each(|group| group.unlist(entry));
        state.coordinator = None;
        // Its sentinel's time may still be in the timers' order. Without this, a dead entry would
        // come up for ever.
        let _ = state.rearm(entry);
        drop(guard);
        self.entries.remove(entry);
        self.metrics.forgotten.fetch_add(1, Ordering::Relaxed);
        true
    }
}
