//! The rates of the busiest queues, while somebody asks for them: otherwise a notification pays one load.
//!
//! The table has room for 1,024 queues, in shards of 64. In a full shard, a further queue takes the
//! place of the lightest one and inherits its weight (Space-Saving; Metwally et al., 2005). So a queue
//! with more than 1/64 of its shard's recent notifications is in the table. Weights decide only which
//! queues stay; the figures are those of the queues' own counters.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::super::{
    core::Hub,
    counters::{Counters, saturate},
    queue::QueueEntry,
};
use crate::base::{clock::Tick, sync::lock};

/// The notified queues. Plain locks and atomics: no decision of the hub depends on them.
#[derive(Default)]
pub(crate) struct Activity {
    /// Rates are wanted until then, in nanoseconds; 0: they are not.
    until: AtomicU64,
    shards: [Mutex<Vec<Slot>>; SHARDS],
}

struct Slot {
    entry: Arc<QueueEntry>,
    weight: u64,
    /// Its notifications at the newest call of [`Hub::measure_rates`], and its notifications between
    /// the two newest calls.
    counted: u128,
    rate: u64,
}

const SHARDS: usize = 16;
const SLOTS: usize = 64;

impl Activity {
    pub(crate) fn is_measured(&self) -> bool {
        self.until.load(Relaxed) > 0
    }

    /// The queue's counters have grown by a notification.
    pub(crate) fn note(&self, entry: &Arc<QueueEntry>, before: &Counters, after: &Counters) {
        let added = saturate(after.notifications - before.notifications);
        let at = usize::try_from(entry.number() % SHARDS as u64).expect("less than the shards");
        let mut slots = lock(&self.shards[at]);
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
}

impl Hub {
    /// Measures rates until then.
    pub(crate) fn want_rates(&self, until: Tick) {
        self.activity.until.store(until.as_nanos(), Relaxed);
    }

    /// Ends one interval of the rates, and begins the next. Weights fade, so that a queue that is busy
    /// now finds a place.
    pub(crate) fn measure_rates(&self, now: Tick) {
        let activity = &self.activity;
        let until = activity.until.load(Relaxed);
        if until == 0 {
            return;
        }
        let is_over = now.as_nanos() >= until;
        if is_over {
            // It fails where rates were wanted again meanwhile.
            _ = activity.until.compare_exchange(until, 0, Relaxed, Relaxed);
        }
        for shard in &activity.shards {
            if is_over {
                *lock(shard) = Vec::new();
            }
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
    pub(in super::super) fn rates(&self) -> HashMap<u64, u64> {
        let mut rates = HashMap::new();
        for shard in &self.activity.shards {
            for slot in lock(shard).iter() {
                rates.insert(slot.entry.number(), slot.rate);
            }
        }
        rates
    }
}
