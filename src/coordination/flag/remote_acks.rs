//! C14: acknowledgements are counted over all relays of a cluster.

use super::{
    Flags,
    acks::{AckKey, KnownAcks, ObservedFlag},
};
use crate::types::FlagName;

impl Flags {
    /// Returns the flags whose acknowledgements are counted by an observer.
    pub(crate) fn observed(&self) -> Vec<ObservedFlag> {
        self.inner.registry().observed()
    }

    /// Adds acknowledgements that another relay has.
    pub(crate) fn add_acks(&self, name: &FlagName, generation: u64, keys: &[AckKey]) {
        let wakers = self.inner.registry().add_acks(name, generation, keys);
        wakers.wake();
    }

    /// Sets the number of a flag's watchers at other relays, for the observers of this one.
    pub(crate) fn set_remote_watchers(&self, name: &FlagName, watchers: u32) {
        let wakers = self.inner.registry().set_remote_watchers(name, watchers);
        wakers.wake();
    }

    /// Returns the acknowledgements of a generation, with at most `max` keys after the given one.
    pub(crate) fn acks_of(
        &self,
        name: &FlagName,
        generation: u64,
        after: Option<AckKey>,
        max: usize,
    ) -> KnownAcks {
        self.inner.registry().acks_of(name, generation, after, max)
    }
}
