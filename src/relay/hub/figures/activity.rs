//! The busiest queues, while somebody asks for them: otherwise a notification pays one load.
//!
//! The table has room for 1,024 queues, in shards of 64. In a full shard, a further queue takes the
//! place of the lightest one and inherits its weight (Space-Saving; Metwally et al., 2005). So a queue
//! with more than 1/64 of its shard's recent notifications is in the table. Weights decide only which
//! queues stay; the figures are those of the queues' own counters.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use super::super::{
    core::Hub,
    counters::{Counters, saturate},
    queue::QueueEntry,
};
use crate::{
    base::{clock::Tick, sync::lock},
    types::QueueAddress,
};

/// The notified queues. Plain locks and atomics: no decision of the hub depends on them.
#[derive(Default)]
pub(crate) struct Activity {
    is_measured: AtomicBool,
    readers: Mutex<Readers>,
    shards: [Mutex<Vec<Slot>>; SHARDS],
}

/// Who reads the table.
#[derive(Debug, Default)]
struct Readers {
    watches: usize,
    /// Rates are wanted until then.
    rates_until: Tick,
    /// The newest time that a caller stated.
    now: Tick,
}

struct Slot {
    entry: Arc<QueueEntry>,
    weight: u64,
    /// The queue's counters before it came into the table.
    since: Counters,
    /// Its notifications at the newest call of [`Hub::measure_rates`], and its notifications between
    /// the two newest calls.
    counted: u128,
    rate: u64,
}

/// A queue of the table.
#[derive(Debug, Clone)]
pub(crate) struct ActiveQueue {
    /// Distinguishes two entries of one address.
    pub(crate) number: u64,
    pub(crate) address: QueueAddress,
    /// Its totals now, and when it came into the table.
    pub(crate) totals: (u128, u128),
    pub(crate) since: (u128, u128),
    pub(crate) backlog: u64,
    pub(crate) listeners: usize,
}

/// Keeps the table filled until its drop.
pub(crate) struct ActivityWatch(Arc<Activity>);

const SHARDS: usize = 16;
const SLOTS: usize = 64;

impl Activity {
    pub(crate) fn is_measured(&self) -> bool {
        self.is_measured.load(Relaxed)
    }

    /// The queue's counters have grown by a notification.
    pub(crate) fn note(&self, entry: &Arc<QueueEntry>, before: &Counters, after: &Counters) {
        let added = saturate(after.notifications - before.notifications);
        let mut slots = self.shard(entry.number());
        if let Some(known) = slots
            .iter_mut()
            .find(|slot| Arc::ptr_eq(&slot.entry, entry))
        {
            known.weight = known.weight.saturating_add(added);
            return;
        }
        let mut slot = Slot {
            entry: Arc::clone(entry),
            weight: added,
            since: *before,
            counted: before.notifications,
            rate: 0,
        };
        if slots.len() < SLOTS {
            return slots.push(slot);
        }
        if let Some(lightest) = slots.iter_mut().min_by_key(|slot| slot.weight) {
            slot.weight = slot.weight.saturating_add(lightest.weight);
            *lightest = slot;
        }
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, Vec<Slot>> {
        let at = usize::try_from(number % SHARDS as u64).expect("less than the shards");
        lock(&self.shards[at])
    }

    fn update_readers(&self, now: Tick, update: impl FnOnce(&mut Readers)) {
        let mut readers = lock(&self.readers);
        update(&mut readers);
        readers.now = readers.now.max(now);
        let is_measured = readers.watches > 0 || readers.now < readers.rates_until;
        if self.is_measured.swap(is_measured, Relaxed) && !is_measured {
            self.shards
                .iter()
                .for_each(|shard| *lock(shard) = Vec::new());
        }
    }

    fn entries(&self) -> Vec<(Arc<QueueEntry>, Counters)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let slots = lock(shard);
            all.extend(
                slots
                    .iter()
                    .map(|slot| (Arc::clone(&slot.entry), slot.since)),
            );
        }
        all
    }
}

impl Hub {
    /// Keeps the table filled until the drop of the watch.
    pub(crate) fn watch_activity(&self, now: Tick) -> ActivityWatch {
        self.activity
            .update_readers(now, |readers| readers.watches += 1);
        ActivityWatch(Arc::clone(&self.activity))
    }

    /// Measures rates until then.
    pub(crate) fn want_rates(&self, until: Tick, now: Tick) {
        self.activity
            .update_readers(now, |readers| readers.rates_until = until);
    }

    /// Ends one interval of the rates, and begins the next. Weights fade, so that a queue that is busy
    /// now finds a place.
    pub(crate) fn measure_rates(&self, now: Tick) {
        if !self.activity.is_measured() {
            return;
        }
        self.activity.update_readers(now, |_| {});
        for shard in &self.activity.shards {
            // An entry's lock is never taken under that of a shard.
            let entries: Vec<_> = lock(shard)
                .iter()
                .map(|slot| Arc::clone(&slot.entry))
                .collect();
            for entry in entries {
                let counted = entry.lock().counters.notifications;
                let mut slots = lock(shard);
                let known = slots
                    .iter_mut()
                    .find(|slot| Arc::ptr_eq(&slot.entry, &entry));
                if let Some(slot) = known {
                    slot.rate = saturate(counted.saturating_sub(slot.counted));
                    (slot.counted, slot.weight) = (counted, slot.weight / 2);
                }
            }
        }
    }

    /// Returns the rates by the entries' numbers.
    pub(in super::super) fn rates(&self) -> std::collections::HashMap<u64, u64> {
        let mut rates = std::collections::HashMap::new();
        for shard in &self.activity.shards {
            rates.extend(
                lock(shard)
                    .iter()
                    .map(|slot| (slot.entry.number(), slot.rate)),
            );
        }
        rates
    }

    /// Returns the queues of the table with their counters.
    pub(crate) fn active_queues(&self) -> Vec<ActiveQueue> {
        let totals = |counters: &Counters| (counters.notifications, counters.messages);
        let read = |(entry, since): (Arc<QueueEntry>, Counters)| {
            let state = entry.lock();
            ActiveQueue {
                number: entry.number(),
                address: entry.address().clone(),
                totals: totals(&state.counters),
                since: totals(&since),
                backlog: state.backlog(),
                listeners: state.listeners(),
            }
        };
        self.activity.entries().into_iter().map(read).collect()
    }
}

impl Drop for ActivityWatch {
    fn drop(&mut self) {
        self.0
            .update_readers(Tick::default(), |readers| readers.watches -= 1);
    }
}

impl std::fmt::Debug for ActivityWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ActivityWatch")
    }
}
