//! Checks under a pattern's own name: the first check of a new group, and the sentinel's check
//! where a matching queue has no entry.
//!
//! The listeners with the same selector and group are asked in turn. No report covers a check that
//! found nothing, so silence proves nothing. Another listener is asked at once only where the asked
//! one's stream ends first, otherwise after an interval. The table's lock is a leaf. A probe visits
//! a bounded number of the listeners, independent of the numbers of listeners and patterns.

use std::{ops::Bound, sync::Arc};

use super::{
    core::Hub,
    mailbox::WakeBatch,
    probe_table::{Asked, Choice, Key, Probe, keys},
    subscription::Subscription,
    sync::lock,
};
use crate::{
    base::{backoff::about, clock::Tick},
    types::{QueueAddress, Selector, WakeReason},
};

/// Probes that one call fires, and queues that it visits for each.
const PROBES_PER_CALL: usize = 256;
const ENTRIES_PER_PROBE: usize = 16;
/// Listeners that one call visits, give or take those of one probe: some hundred microseconds.
const VISITS_PER_CALL: usize = 1024;

impl Hub {
    /// A pattern's listener joined: one of a new group checks.
    pub(super) fn join_probes(&self, subscription: &Arc<Subscription>, now: Tick) {
        let sentinel = !self.config.coordinator.sentinel_interval.is_zero();
        if subscription.group.is_none() && !sentinel {
            return;
        }
        // The position of a new group is uncertain. So is that of a group that comes back: queues
        // may have come and been forgotten while it had no member.
        let first = subscription.group.as_ref().map(|_| WakeReason::CatchUp);
        let mut table = lock(&self.probes.table);
        for key in keys(subscription) {
            table.make(&key, self.config.seed);
            table.change(&key, |probe| {
                if probe.listeners.is_empty() {
                    probe.pending = probe.pending.max(first);
                    let next = self.next_probe(probe, now);
                    let due = probe.left_due.take().unwrap_or(next);
                    probe.due = due.clamp(now, next);
                }
                probe.insert(subscription);
                // The listener has given up the stream that was asked.
                probe.ask_another(now, |asked| asked.listener == subscription.listener_id);
                if probe.pending.is_some() {
                    probe.due = now;
                }
            });
        }
        drop(table);
        // Read now that the probes exist: `attach_once` found none of them before.
        if subscription.lock().lacks_cursors {
            self.probes.note_missing_cursors(subscription);
        }
        self.timers.waker.wake();
    }

    /// A pattern's listener left; its unreported check goes to another listener.
    pub(super) fn leave_probes(&self, subscription: &Subscription, now: Tick) {
        let mut table = lock(&self.probes.table);
        let mut left = false;
        for key in keys(subscription) {
            let known = table.change(&key, |probe| {
                probe.remove(subscription);
                probe.ask_another(now, |asked| asked.stream == subscription.id);
                if probe.listeners.is_empty() {
                    probe.left_due = Some(probe.due);
                    probe.due = now + self.config.coordinator.group_keep;
                }
            });
            left |= known.is_some();
        }
        drop(table);
        if left {
            self.timers.waker.wake();
        }
    }

    /// A listener reported a queue: the sentinel's interval restarts, unless queues without an
    /// entry need a check. One report does not prove that the listener polled all queues of a
    /// CATCH_UP.
    pub(super) fn probe_reported(
        &self,
        subscription: &Subscription,
        queue: &QueueAddress,
        now: Tick,
    ) {
        let mut table = lock(&self.probes.table);
        table.reported(subscription);
        for key in keys(subscription).filter(|(selector, _)| selector.matches(queue)) {
            table.change(&key, |probe| {
                probe
                    .asked
                    .take_if(|asked| asked.reason != WakeReason::CatchUp);
                if probe.pending.is_none() && !probe.forgotten {
                    probe.due = self.next_probe(probe, now);
                }
            });
        }
    }

    /// One listener of the pattern must check it under its own name.
    pub(super) fn request_probe(&self, key: &Key, now: Tick) {
        let mut table = lock(&self.probes.table);
        table.change(key, |probe| probe.request(now));
        drop(table);
        self.timers.waker.wake();
    }

    /// The same for the groups' patterns after the given one, `limit` patterns at most; returns the
    /// last one visited, or `None` at the end.
    pub(super) fn request_probes(
        &self,
        after: Option<&Key>,
        limit: usize,
        now: Tick,
    ) -> Option<Key> {
        let mut table = lock(&self.probes.table);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = table.probes.range((from, Bound::Unbounded));
        let keys: Vec<Key> = range.take(limit).map(|(key, _)| key.clone()).collect();
        for key in keys.iter().filter(|(_, group)| group.is_some()) {
            table.change(key, |probe| probe.request(now));
        }
        drop(table);
        self.timers.waker.wake();
        keys.into_iter().next_back()
    }

    /// Asks listeners for the due checks, a slice of them at most; the rest stays due.
    pub(super) fn fire_probes(&self, now: Tick) {
        if self.probes.next().is_none_or(|due| due > now) {
            return;
        }
        let due: Vec<Key> = {
            let table = lock(&self.probes.table);
            let due = table
                .due
                .iter()
                .take(PROBES_PER_CALL)
                .take_while(|(due, _)| *due <= now);
            due.map(|(_, key)| key.clone()).collect()
        };
        let mut batch = WakeBatch::default();
        let mut examined = 0;
        for key in due {
            examined += self.probe(&key, now, &mut batch);
            if examined >= VISITS_PER_CALL {
                break;
            }
        }
        batch.wake();
    }

    /// Asks a listener where the check is due; returns how many were visited.
    fn probe(&self, key: &Key, now: Tick, batch: &mut WakeBatch) -> usize {
        let has_entry = self.has_entry(&key.0);
        let mut table = lock(&self.probes.table);
        let Some(probe) = table.probes.get_mut(key) else {
            return 0;
        };
        if probe.listeners.is_empty() {
            table.remove(key);
            return 0;
        }
        let pending = probe.pending;
        let known = has_entry && !probe.forgotten;
        let Choice { chosen, examined } = match known && pending.is_none() {
            true => Choice::default(),
            false => probe.choose(pending.is_some(), now),
        };
        table.examined += examined;
        let reason = pending.unwrap_or(WakeReason::Sentinel);
        table.change(key, |probe| {
            probe.due = now + self.config.coordinator.claim_timeout;
            if let Some(chosen) = &chosen {
                probe.asked = Some(Asked {
                    stream: chosen.id,
                    listener: chosen.listener_id.clone(),
                    reason,
                });
            }
            if chosen.is_some() || known {
                probe.pending = None;
                probe.due = self.next_probe(probe, now);
            }
        });
        drop(table);
        if let Some(chosen) = chosen {
            chosen
                .lock()
                .request_pattern_check(&chosen.selectors, &key.0, reason);
            batch.mark_selectors(&chosen.mailbox);
        }
        examined
    }

    /// Returns whether a matching queue has an entry. Of many queues with the same beginning only
    /// some are visited; a needless check does no harm.
    fn has_entry(&self, pattern: &Selector) -> bool {
        let from = Bound::Included(pattern.beginning());
        let entries = self.entries.range(from, ENTRIES_PER_PROBE);
        entries.iter().any(|entry| pattern.matches(entry.address()))
    }

    fn next_probe(&self, probe: &mut Probe, now: Tick) -> Tick {
        match self.config.coordinator.sentinel_interval {
            interval if interval.is_zero() => Tick::NEVER,
            interval => now + about(interval, &mut probe.rng),
        }
    }
}
