//! Writes of other relays of the cluster, which share the store (C14).

use super::WatchRegistry;
#[cfg(all(feature = "relay", feature = "nats"))]
use crate::types::cluster::FlagSet;
use crate::{base::fault::planted, types::FlagName};

impl WatchRegistry {
    /// Takes the generation of a set through another relay, so that the next one here is greater.
    /// Returns whether the flag is watched, and the set is newer than the one known here.
    #[cfg(all(feature = "relay", feature = "nats"))]
    pub(in crate::coordination::flag) fn hear(
        &mut self,
        name: &FlagName,
        set: Option<&FlagSet>,
    ) -> Option<bool> {
        if let Some(set) = set {
            self.note_number(set.generation);
        }
        let entry = self.entries.get(name).filter(|entry| entry.is_watched())?;
        Some(set.is_some_and(|set| entry.is_before(set)))
    }

    /// Notes that other relays write the same store, and announce it.
    #[cfg(all(feature = "relay", feature = "nats"))]
    pub(in crate::coordination::flag) fn set_shared(&mut self) {
        self.shared = true;
    }

    /// Returns whether a read counted, or another relay's write was heard, since a write of this
    /// relay began: the order of the two in the store is unknown.
    pub(in crate::coordination::flag) fn is_unordered(&self, name: &FlagName, began: u64) -> bool {
        let shared = self.shared && !planted!(self.fault, FlagWriteUnordered);
        let entry = self.entries.get(name).filter(|_| shared);
        entry.is_some_and(|entry| entry.is_updated_since(began))
    }
}
