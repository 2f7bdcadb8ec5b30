//! The hub's queue entries: the map from addresses to them, and the one path on which an entry changes:
//! counts, timers, and what subscribers are owed then.
//!
//! The map is a dashmap for look-ups, and an ordered index for pages and for interrupted walks. Locks: a
//! shard, then the index; nothing else is locked under either. The concurrency models do not see the locks
//! of shards, so they let one thread at a time into dashmap. A new entry is in the index before it is in a
//! shard, and so before anything is counted in it (R4: register first, then take the snapshot): a pattern's
//! walk over the index misses none that counts.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use dashmap::{DashMap, Entry};
use foldhash::fast::FixedState;

use super::super::{
    core::Hub,
    queue::{QueueEntry, QueueState},
    subscription::WakeBatch,
    sync::{Ordering, RwLock, read, write},
    timers::{Timer, timer_offset},
};
use crate::{
    base::clock::Tick,
    error::Result,
    types::{Accepted, Notification, QueueAddress},
};

pub(crate) struct QueueMap {
    /// The hub's owner seeds its hasher. A simulated run is the same on every machine, and a
    /// stranger cannot predict the hashes of a relay.
    entries: DashMap<QueueAddress, Arc<QueueEntry>, FixedState>,
    order: RwLock<BTreeMap<QueueAddress, Arc<QueueEntry>>>,
}

/// Fixed, because dashmap's own choice follows the number of cores.
const SHARDS: usize = 256;

impl QueueMap {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            entries: DashMap::with_hasher_and_shard_amount(FixedState::with_seed(seed), SHARDS),
            order: RwLock::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        // The map would lock every shard for it.
        read(&self.order).len()
    }

    pub(crate) fn get(&self, address: &QueueAddress) -> Option<Arc<QueueEntry>> {
        #[cfg(test)]
        let _alone = super::super::sync::alone(&self.entries);
        self.entries.get(address).map(|entry| Arc::clone(&entry))
    }

    pub(crate) fn get_or_insert(
        &self,
        address: &QueueAddress,
        make: impl FnOnce() -> Arc<QueueEntry>,
    ) -> Arc<QueueEntry> {
        #[cfg(test)]
        let _alone = super::super::sync::alone(&self.entries);
        let vacant = match self.entries.entry(address.clone()) {
            Entry::Occupied(found) => return Arc::clone(found.get()),
            Entry::Vacant(vacant) => vacant,
        };
        let entry = make();
        write(&self.order).insert(address.clone(), Arc::clone(&entry));
        drop(vacant.insert(Arc::clone(&entry)));
        entry
    }

    /// Removes this entry, but no other entry of the same address.
    pub(crate) fn remove(&self, entry: &Arc<QueueEntry>) {
        #[cfg(test)]
        let _alone = super::super::sync::alone(&self.entries);
        self.entries.remove_if(entry.address(), |_, found| {
            let is_same = Arc::ptr_eq(found, entry);
            if is_same {
                write(&self.order).remove(entry.address());
            }
            is_same
        });
    }

    /// Returns up to `limit` entries after this address, or from the first one on.
    pub(crate) fn after(&self, last: Option<&QueueAddress>, limit: usize) -> Vec<Arc<QueueEntry>> {
        let from = last.map_or(Bound::Unbounded, |last| Bound::Excluded(last.as_str()));
        self.range(from, limit)
    }

    /// Returns up to `limit` entries from `from` on, by address.
    pub(crate) fn range(&self, from: Bound<&str>, limit: usize) -> Vec<Arc<QueueEntry>> {
        let order = read(&self.order);
        let range = order.range::<str, _>((from, Bound::Unbounded));
        let some = range.take(limit);
        some.map(|(_, entry)| Arc::clone(entry)).collect()
    }
}

impl Hub {
    /// Counts consecutive notifications of one queue that are not refused, and owes it to its subscribers
    /// once.
    pub(in super::super) fn count_run(
        &self,
        entry: Arc<QueueEntry>,
        publisher: &Arc<str>,
        run: &[Notification],
        results: &mut [Result<Accepted>],
        now: Tick,
        batch: &mut WakeBatch,
    ) {
        self.update(entry, false, now, batch, |entry, state| {
            let listeners = u32::try_from(state.listeners()).unwrap_or(u32::MAX);
            if listeners == 0 {
                self.note_unserved(state, &run[0].queue);
            }
            for (notification, result) in run.iter().zip(results) {
                let Ok(accepted) = result else {
                    continue;
                };
                if notification.delay.is_zero() {
                    state.count(publisher, notification, now);
                } else {
                    let timer = Timer::for_notification(publisher, notification);
                    self.add_wake(entry, state, notification.delay, timer, now);
                }
                *accepted = Accepted {
                    sequence: state.counters.sequence,
                    listeners,
                };
            }
        });
    }

    /// Wakes the queue after `delay`, or at once. Nothing is refused here, because no caller would
    /// repeat it. At the limit of such timers, a queue merges them to a few instead.
    pub(in super::super) fn wake_after(
        &self,
        entry: Arc<QueueEntry>,
        delay: Duration,
        timer: Timer,
        now: Tick,
    ) {
        let mut batch = WakeBatch::default();
        self.update(entry, false, now, &mut batch, |entry, state| {
            self.add_wake(entry, state, delay, timer, now);
        });
    }

    /// Counts a wake-up that is due now, or sets its timer.
    pub(in super::super) fn add_wake(
        &self,
        entry: &QueueEntry,
        state: &mut QueueState,
        delay: Duration,
        timer: Timer,
        now: Tick,
    ) {
        if delay.is_zero() {
            return state.count_timed(timer, now);
        }
        let at = (now, timer_offset(entry.address()));
        let full = self.reported_timers_are_full();
        self.change_timers(state, |state| state.timers.add(at, delay, timer, full));
    }

    /// Changes a live entry of this queue under its lock, and owes it to its subscribers where `change`
    /// has counted. All changes of a counter, all new timers, and all listeners that come, report or leave
    /// go through here. With `reconcile` it runs the due work of the coordinator also where the queue has
    /// no group.
    pub(in super::super) fn update(
        &self,
        mut entry: Arc<QueueEntry>,
        reconcile: bool,
        now: Tick,
        batch: &mut WakeBatch,
        change: impl FnOnce(&Arc<QueueEntry>, &mut QueueState),
    ) {
        let mut guard = entry.lock_with_nodes(now);
        while guard.is_dead {
            drop(guard);
            self.entries.remove(&entry);
            entry = self.make_entry(entry.address(), now);
            guard = entry.lock_with_nodes(now);
        }
        let state = &mut *guard;
        let (before, own_causes) = (state.counters, state.own_causes());
        change(&entry, state);
        let is_counted = state.counters.sequence != before.sequence;
        state.guard(&entry, now);
        batch.accepted_at = is_counted.then_some(now);
        // Before a check is assigned: who is asked then is owed the count already.
        let mut walks = is_counted && state.owe_count(&entry, &before, batch);
        let more = (reconcile || state.is_grouped()) && state.reconcile(&entry, now, batch);
        if is_counted && state.noted.is_some() {
            state.note_count(own_causes, now);
        }
        let coordinator = state.coordinator.as_mut();
        let is_passed_on = coordinator.is_some_and(|one| one.take_passed_on());
        let is_checked = state.announced.as_ref().is_some_and(|one| one.checked);
        let has_news = self.shared.config.cluster && (is_checked || state.own_causes() > 0);
        let listed = has_news && self.increments.list(&entry, state);
        // The fan-out assigns the rest.
        walks |= more && state.request_walk();
        if is_counted {
            state.settle(&self.shared.revision);
        }
        let first = state.rearm(&entry);
        drop(guard);
        if walks {
            self.fanout
                .add(Arc::clone(&entry), is_counted.then_some(now));
        }
        if first {
            self.timers().waker.wake();
        }
        if is_counted {
            self.tell_cause(entry.address());
        }
        if listed {
            self.increments.waker.wake();
        }
        if is_passed_on {
            // C11: a group here does not finish its work: a cause for the other relays.
            self.increments.passed_on.fetch_add(1, Ordering::Relaxed);
            self.wake_after(entry, Duration::ZERO, Timer::default(), now);
        }
    }

    /// Applies `change`, then runs the due work of the queue's groups and its sentinel. A forgotten queue
    /// has none.
    pub(in super::super) fn reconcile(
        &self,
        entry: Arc<QueueEntry>,
        now: Tick,
        change: impl FnOnce(&Arc<QueueEntry>, &mut QueueState),
    ) {
        if entry.lock().is_dead {
            return;
        }
        self.update(entry, true, now, &mut WakeBatch::default(), change);
    }

    /// Changes a queue's timers, and the totals by its numbers before and after.
    pub(in super::super) fn change_timers<T>(
        &self,
        state: &mut QueueState,
        change: impl FnOnce(&mut QueueState) -> T,
    ) -> T {
        let before = state.timers.counts();
        let changed = change(state);
        let after = state.timers.counts();
        // Wraps below zero, as the totals do not.
        let growth = |before: usize, after: usize| (after as u64).wrapping_sub(before as u64);
        let (set, reported) = (growth(before.0, after.0), growth(before.1, after.1));
        self.timers_set.fetch_add(set, Ordering::Relaxed);
        self.timers_reported.fetch_add(reported, Ordering::Relaxed);
        changed
    }
}
