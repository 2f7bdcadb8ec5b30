//! The flags that are set in the store, as far as this relay knows. Their number is limited.
//!
//! Local writes are noted at their begin and end, other writers' changes at each list of the store.
//! Holds only names: at most the limit plus the local writes in progress. Plain data.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    error::{Error, ErrorKind, Result},
    types::FlagName,
};

/// The flags that are set, and the limit of their number.
#[derive(Debug)]
pub(super) struct SetFlags {
    max: usize,
    /// Each flag with the registry's sequence number at its newest local write.
    by_name: BTreeMap<FlagName, u64>,
}

impl SetFlags {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            by_name: BTreeMap::new(),
        }
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    pub(super) fn is_full(&self) -> bool {
        self.by_name.len() >= self.max
    }

    /// Reserves room for a flag that is about to be set, unless it is set already. Returns whether
    /// it is new.
    ///
    /// # Errors
    /// `Exhausted`, naming the limit.
    pub(super) fn reserve(&mut self, name: &FlagName, now: u64) -> Result<bool> {
        if self.is_full() && !self.by_name.contains_key(name) {
            let message = format!(
                "flag `{name}` was not set: the limit is {} set flags; clear a flag that is not needed",
                self.max
            );
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(self.by_name.insert(name.clone(), now).is_none())
    }

    /// Notes a flag that was found set. Beyond the limit only the number matters.
    pub(super) fn found(&mut self, name: &FlagName) {
        if !self.is_full() {
            self.by_name.entry(name.clone()).or_insert(0);
        }
    }

    pub(super) fn remove(&mut self, name: &FlagName) {
        self.by_name.remove(name);
    }

    /// Takes a complete list of the store that began at this sequence number. Flags that were
    /// written here since then stay, because the list may lack them.
    pub(super) fn replace(&mut self, listed: &BTreeSet<FlagName>, began: u64) {
        self.by_name
            .retain(|name, written| *written > began || listed.contains(name));
        for name in listed {
            self.found(name);
        }
    }
}
