//! The interface of `hub/map.rs`, on one lock in the place of dashmap's shards.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use super::{
    queue_entry::QueueEntry,
    sync::{RwLock, read, write},
};
use crate::types::QueueAddress;

pub(super) struct QueueMap {
    entries: RwLock<BTreeMap<QueueAddress, Arc<QueueEntry>>>,
}

impl QueueMap {
    pub(super) fn new(_seed: u64) -> Self {
        Self {
            entries: RwLock::new(BTreeMap::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        read(&self.entries).len()
    }

    pub(super) fn get(&self, address: &QueueAddress) -> Option<Arc<QueueEntry>> {
        read(&self.entries).get(address).cloned()
    }

    pub(super) fn get_or_insert(
        &self,
        address: &QueueAddress,
        make: impl FnOnce() -> Arc<QueueEntry>,
    ) -> Arc<QueueEntry> {
        let mut entries = write(&self.entries);
        Arc::clone(entries.entry(address.clone()).or_insert_with(make))
    }

    pub(super) fn remove(&self, entry: &Arc<QueueEntry>) {
        let mut entries = write(&self.entries);
        let found = entries.get(entry.address());
        if found.is_some_and(|found| Arc::ptr_eq(found, entry)) {
            entries.remove(entry.address());
        }
    }

    pub(super) fn range(&self, from: Bound<&str>, limit: usize) -> Vec<Arc<QueueEntry>> {
        let entries = read(&self.entries);
        let range = entries.range::<str, _>((from, Bound::Unbounded));
        range
            .take(limit)
            .map(|(_, entry)| Arc::clone(entry))
            .collect()
    }
}
