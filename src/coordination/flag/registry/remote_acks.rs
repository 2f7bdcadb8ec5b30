//! Acknowledgements that other relays of the cluster have (C14).

use std::ops::Bound;

use super::{
    super::acks::{AckKey, KnownAcks, ObservedFlag},
    FlagEntry, Wakers, WatchRegistry,
};
use crate::types::FlagName;

impl WatchRegistry {
    /// Returns the flags with observers.
    pub(in crate::coordination::flag) fn observed(&self) -> Vec<ObservedFlag> {
        let observed = self.entries.iter();
        let observed = observed.filter(|(_, entry)| entry.has_observers());
        let of = |(name, entry): (&FlagName, &FlagEntry)| {
            Some(ObservedFlag {
                name: name.clone(),
                entry: entry.number(),
                generation: entry.generation()?,
            })
        };
        observed.filter_map(of).collect()
    }

    /// Adds acknowledgements that another relay has. One beyond a limit is not counted.
    pub(in crate::coordination::flag) fn add_acks(
        &mut self,
        name: &FlagName,
        generation: u64,
        keys: &[AckKey],
    ) -> Wakers {
        let mut all = Wakers::default();
        for key in keys {
            match self.add_ack(name, generation, *key) {
                Ok(wakers) => all.append(wakers),
                Err(_) => break,
            }
        }
        all
    }

    /// Sets the number of watchers that other relays have.
    pub(in crate::coordination::flag) fn set_remote_watchers(
        &mut self,
        name: &FlagName,
        watchers: u32,
    ) -> Wakers {
        let mut wakers = Wakers::default();
        let entry = self.entries.get_mut(name);
        if entry.is_some_and(|entry| entry.set_remote_watchers(watchers)) {
            self.mark_acks(name, &mut wakers);
        }
        wakers
    }

    /// Returns the acknowledgements of a generation, with at most `max` keys after the given one.
    pub(in crate::coordination::flag) fn acks_of(
        &self,
        name: &FlagName,
        generation: u64,
        after: Option<AckKey>,
        max: usize,
    ) -> KnownAcks {
        let Some(entry) = self.entries.get(name) else {
            return KnownAcks::default();
        };
        let watchers = entry.watching();
        if entry.generation() != Some(generation) {
            return KnownAcks {
                watchers,
                ..KnownAcks::default()
            };
        }
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = entry.acked.range((from, Bound::Unbounded)).take(max);
        KnownAcks {
            acknowledged: u32::try_from(entry.acked.len()).unwrap_or(u32::MAX),
            watchers,
            keys: keys.copied().collect(),
        }
    }
}
