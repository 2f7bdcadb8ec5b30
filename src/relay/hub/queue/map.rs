//! The map from addresses to queue entries: dashmap for look-ups, and an ordered index for pages
//! and for interrupted walks.
//!
//! Locks: a shard, then the index; nothing else is locked under either. The concurrency models do
//! not see the locks of shards, so they let one thread at a time into dashmap. A new entry is in
//! the index before it is in a shard, and so before anything is counted in it (R4: register first,
//! then take the snapshot): a pattern's walk over the index misses none that counts.

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use dashmap::{DashMap, Entry};
use foldhash::fast::FixedState;

use super::super::{
    queue::QueueEntry,
    sync::{RwLock, read, write},
};
use crate::types::QueueAddress;

pub(crate) struct QueueMap {
    /// The hub's owner seeds its hasher. A simulated run is the same on every machine, and a
    /// stranger cannot predict the hashes of a relay.
    entries: DashMap<QueueAddress, Arc<QueueEntry>, FixedState>,
    order: RwLock<BTreeMap<QueueAddress, Arc<QueueEntry>>>,
    /// Counted here, because dashmap would lock every shard for it.
    len: AtomicUsize,
}

/// Fixed, because dashmap's own choice follows the number of cores.
const SHARDS: usize = 256;

impl QueueMap {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            entries: DashMap::with_hasher_and_shard_amount(FixedState::with_seed(seed), SHARDS),
            order: RwLock::default(),
            len: AtomicUsize::new(0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
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
        self.len.fetch_add(1, Ordering::Relaxed);
        drop(vacant.insert(Arc::clone(&entry)));
        entry
    }

    /// Removes this entry, but no other entry of the same address.
    pub(crate) fn remove(&self, entry: &Arc<QueueEntry>) {
        let same = |_: &QueueAddress, found: &Arc<QueueEntry>| Arc::ptr_eq(found, entry);
        {
            #[cfg(test)]
            let _alone = super::super::sync::alone(&self.entries);
            if self.entries.remove_if(entry.address(), same).is_none() {
                return;
            }
        }
        self.len.fetch_sub(1, Ordering::Relaxed);
        let mut order = write(&self.order);
        // There may be another entry of this address by now.
        let found = order.get(entry.address());
        if found.is_some_and(|found| Arc::ptr_eq(found, entry)) {
            order.remove(entry.address());
        }
    }

    /// Returns up to `limit` entries whose address contains `filter`, among the next `visits` from
    /// `from` on, and the last visited address unless all were visited.
    pub(crate) fn find(
        &self,
        from: Bound<&str>,
        filter: &str,
        (visits, limit): (usize, usize),
    ) -> (Vec<Arc<QueueEntry>>, Option<QueueAddress>) {
        let order = read(&self.order);
        let mut found = Vec::new();
        let range = order.range::<str, _>((from, Bound::Unbounded));
        for (visited, (address, entry)) in (1..).zip(range) {
            let text: &str = address.borrow();
            if text.contains(filter) {
                found.push(Arc::clone(entry));
            }
            if visited == visits || found.len() == limit {
                return (found, Some(address.clone()));
            }
        }
        (found, None)
    }

    /// Returns up to `limit` entries from `from` on, by address.
    pub(crate) fn range(&self, from: Bound<&str>, limit: usize) -> Vec<Arc<QueueEntry>> {
        let order = read(&self.order);
        let range = order.range::<str, _>((from, Bound::Unbounded));
        range
            .take(limit)
            .map(|(_, entry)| Arc::clone(entry))
            .collect()
    }
}
