//! The map from addresses to queue entries: dashmap for look-ups, and an ordered index for pages
//! and for interrupted walks.
//!
//! Locks: a shard, then the index; nothing else is locked under either. The concurrency models do
//! not see the locks of shards, so they let one thread at a time into dashmap. A new entry is in
//! the index before it is in a shard, and so before anything is counted in it (R4: register first,
//! then take the snapshot): a pattern's walk over the index misses none that counts.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

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
