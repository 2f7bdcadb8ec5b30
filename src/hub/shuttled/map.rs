//! The calls of `hub/map.rs`, on one lock in the place of dashmap's shards.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, PoisonError},
};

use super::{record::Record, sync::RwLock};
use crate::words::QueueAddress;

pub(super) struct Map {
    records: RwLock<BTreeMap<QueueAddress, Arc<Record>>>,
}

impl Map {
    pub(super) fn new(_seed: u64) -> Self {
        Self {
            records: RwLock::new(BTreeMap::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.read().len()
    }

    pub(super) fn get(&self, address: &QueueAddress) -> Option<Arc<Record>> {
        self.read().get(address).cloned()
    }

    pub(super) fn get_or_insert(
        &self,
        address: &QueueAddress,
        make: impl FnOnce() -> Arc<Record>,
    ) -> Arc<Record> {
        let mut records = self.write();
        Arc::clone(records.entry(address.clone()).or_insert_with(make))
    }

    pub(super) fn remove(&self, record: &Arc<Record>) {
        let mut records = self.write();
        let found = records.get(record.address());
        if found.is_some_and(|found| Arc::ptr_eq(found, record)) {
            records.remove(record.address());
        }
    }

    pub(super) fn range(&self, from: Bound<&str>, limit: usize) -> Vec<Arc<Record>> {
        let records = self.read();
        let range = records.range::<str, _>((from, Bound::Unbounded));
        range
            .take(limit)
            .map(|(_, record)| Arc::clone(record))
            .collect()
    }

    fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, BTreeMap<QueueAddress, Arc<Record>>> {
        self.records.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, BTreeMap<QueueAddress, Arc<Record>>> {
        self.records.write().unwrap_or_else(PoisonError::into_inner)
    }
}
