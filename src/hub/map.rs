//! The map from addresses to records: dashmap behind the few calls that the hub makes.
//!
//! The concurrency test puts another map in its place. No call holds a shard beyond itself, and
//! none calls back while it holds one, but for `make`, which locks nothing.

use std::sync::Arc;

use dashmap::{DashMap, Entry};
use foldhash::fast::FixedState;

use super::record::Record;
use crate::words::QueueAddress;

/// Addresses and their records.
pub(super) struct Map {
    /// Its hasher is seeded by the hub's maker: a simulated run is the same on every machine, and
    /// a served one is not for strangers to foresee.
    records: DashMap<QueueAddress, Arc<Record>, FixedState>,
}

/// Fixed, because dashmap's own choice follows the number of cores.
const SHARDS: usize = 64;

impl Map {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            records: DashMap::with_hasher_and_shard_amount(FixedState::with_seed(seed), SHARDS),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn get(&self, address: &QueueAddress) -> Option<Arc<Record>> {
        self.records.get(address).map(|record| Arc::clone(&record))
    }

    pub(super) fn get_or_insert(
        &self,
        address: &QueueAddress,
        make: impl FnOnce() -> Arc<Record>,
    ) -> Arc<Record> {
        match self.records.entry(address.clone()) {
            Entry::Occupied(found) => Arc::clone(found.get()),
            Entry::Vacant(place) => Arc::clone(&place.insert(make())),
        }
    }

    /// Removes this very record; another one of the same address stays.
    pub(super) fn remove(&self, record: &Arc<Record>) {
        self.records
            .remove_if(record.address(), |_, found| Arc::ptr_eq(found, record));
    }

    /// Returns the records that `keep` chooses; `keep` must lock nothing.
    pub(super) fn collect(&self, keep: impl Fn(&QueueAddress) -> bool) -> Vec<Arc<Record>> {
        let chosen = self.records.iter().filter(|entry| keep(entry.key()));
        chosen.map(|entry| Arc::clone(entry.value())).collect()
    }
}
