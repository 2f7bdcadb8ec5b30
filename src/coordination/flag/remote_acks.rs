//! C14: while acknowledgements of a flag are counted here, those that other relays have are added.
//!
//! Knows neither the broker nor the time: the driver begins a round twice a second, and its
//! [`AskAcks`] sends the queries.

use std::ops::Bound;

use async_trait::async_trait;

use super::{AckKey, Flags, entry::count};
use crate::{
    base::fault::planted,
    error::Result,
    types::{FlagName, cluster::LifeId},
    wire::link::{AcknowledgementsRequest, AcknowledgementsResponse},
};

/// Sends queries to the other relays. A relay that does not answer in time is left out.
#[async_trait]
pub(crate) trait AskAcks: Send + Sync {
    async fn ask_all(
        &self,
        query: AcknowledgementsRequest,
    ) -> Vec<(LifeId, AcknowledgementsResponse)>;

    async fn ask(
        &self,
        life: LifeId,
        query: AcknowledgementsRequest,
    ) -> Option<AcknowledgementsResponse>;
}

/// A flag whose acknowledgements an observer counts.
struct ObservedFlag {
    name: FlagName,
    /// The number of its entry.
    entry: u64,
    generation: u64,
}

impl Flags {
    /// Adds the acknowledgements and the watchers of the other relays to the flags whose
    /// acknowledgements are counted here. Reads at most `page` keys by one query.
    ///
    /// # Cancel safety
    /// Safe: the next round reads incomplete ones again.
    pub(crate) async fn add_remote_acks(&self, others: &dyn AskAcks, page: u32) {
        let observed: Vec<_> = self.inner.registry(|registry| {
            let entries = registry.entries.iter();
            entries
                .filter(|(_, entry)| entry.has_observers())
                .filter_map(|(name, entry)| {
                    Some(ObservedFlag {
                        name: name.clone(),
                        entry: entry.number,
                        generation: entry.generation()?,
                    })
                })
                .collect()
        });
        for flag in observed {
            self.add_acks_of(&flag, others, page).await;
        }
    }

    async fn add_acks_of(&self, flag: &ObservedFlag, others: &dyn AskAcks, page: u32) {
        let name = &flag.name;
        let numbers = AcknowledgementsRequest {
            flag: name.to_string(),
            generation: flag.generation,
            after: None,
            max_keys: 0,
        };
        let mut watchers = 0_u32;
        for (life, known) in others.ask_all(numbers.clone()).await {
            watchers = watchers.saturating_add(known.watchers);
            let read = self.inner.registry(|registry| {
                let entry = registry.entries.get(name)?;
                entry.remote_acks.get(&life.0).copied()
            });
            let is_known = match planted!(FlagAcksReadOnce) {
                true => read.is_some(),
                false => read.unwrap_or(0) == known.acknowledged,
            };
            let query = AcknowledgementsRequest {
                max_keys: page,
                ..numbers.clone()
            };
            if !is_known && self.add_pages(name, others, life, query).await {
                self.inner.registry(|registry| {
                    // A newer set has other acknowledgements, and a new entry none of them.
                    if let Some(entry) = registry.entries.get_mut(name)
                        && entry.number == flag.entry
                        && entry.generation() == Some(flag.generation)
                    {
                        entry.remote_acks.insert(life.0, known.acknowledged);
                    }
                });
            }
        }
        self.inner.registry(|registry| {
            if let Some(entry) = registry.entries.get_mut(name) {
                registry.acks_changed |= entry.remote_watchers != watchers;
                entry.remote_watchers = watchers;
            }
        });
    }

    /// Adds all acknowledgements of one relay. Returns whether all pages were read.
    async fn add_pages(
        &self,
        name: &FlagName,
        others: &dyn AskAcks,
        life: LifeId,
        mut query: AcknowledgementsRequest,
    ) -> bool {
        loop {
            let Some(page) = others.ask(life, query.clone()).await else {
                return false;
            };
            self.inner.registry(|registry| {
                for key in &page.keys {
                    // Beyond a limit the others are not counted either.
                    if registry.ack(name, query.generation, AckKey(*key)).is_err() {
                        break;
                    }
                }
            });
            match page.keys.last() {
                Some(last)
                    if Some(*last) > query.after && page.keys.len() >= query.max_keys as usize =>
                {
                    query.after = Some(*last);
                }
                _ => return true,
            }
        }
    }

    /// Returns the acknowledgements of a generation that are known here, with at most `max` keys, and
    /// the number of streams that watch the flag.
    ///
    /// # Errors
    /// `Invalid` for a malformed name.
    pub(crate) fn acks_of(
        &self,
        query: &AcknowledgementsRequest,
        max: usize,
    ) -> Result<AcknowledgementsResponse> {
        let name = FlagName::new(&query.flag)?;
        Ok(self.inner.registry(|registry| {
            let mut known = AcknowledgementsResponse::default();
            let Some(entry) = registry.entries.get(&name) else {
                return known;
            };
            known.watchers = entry.watching();
            if entry.generation() == Some(query.generation) {
                let after = query.after.map(AckKey);
                let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                let keys = entry.acked.range((from, Bound::Unbounded)).take(max);
                known.acknowledged = count(entry.acked.len());
                known.keys = keys.map(|key| key.0).collect();
            }
            known
        }))
    }
}
