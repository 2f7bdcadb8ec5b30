//! The interface of `hub/map.rs`, on one lock in the place of dashmap's shards.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, PoisonError},
};

use super::{queue_entry::QueueEntry, sync::RwLock};
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
        self.read().len()
    }

    pub(super) fn get(&self, address: &QueueAddress) -> Option<Arc<QueueEntry>> {
        self.read().get(address).cloned()
    }

    pub(super) fn get_or_insert(
        &self,
        address: &QueueAddress,
        make: impl FnOnce() -> Arc<QueueEntry>,
    ) -> Arc<QueueEntry> {
        let mut entries = self.write();
        Arc::clone(entries.entry(address.clone()).or_insert_with(make))
    }

    pub(super) fn remove(&self, entry: &Arc<QueueEntry>) {
        let mut entries = self.write();
        let found = entries.get(entry.address());
        if found.is_some_and(|found| Arc::ptr_eq(found, entry)) {
            entries.remove(entry.address());
        }
    }

    pub(super) fn range(&self, from: Bound<&str>, limit: usize) -> Vec<Arc<QueueEntry>> {
        let entries = self.read();
        let range = entries.range::<str, _>((from, Bound::Unbounded));
        range
            .take(limit)
            .map(|(_, entry)| Arc::clone(entry))
            .collect()
    }

    fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, BTreeMap<QueueAddress, Arc<QueueEntry>>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(
        &self,
    ) -> shuttle::sync::RwLockWriteGuard<'_, BTreeMap<QueueAddress, Arc<QueueEntry>>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}
