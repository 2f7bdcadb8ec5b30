//! C14: while acknowledgements of a flag are counted here, those that other relays have are added.
//!
//! Knows neither the broker nor the time: the driver begins a round twice a second, and its
//! [`AskAcks`] sends the queries.

use std::{collections::HashMap, ops::Bound};

use async_trait::async_trait;

use super::{Flags, acks::AckKey, registry::WatchRegistry, wakers::Wakers};
use crate::{
    base::fault::planted,
    types::{FlagName, cluster::LifeId},
};

/// A query for the acknowledgements that another relay has of one generation of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AckQuery {
    pub(crate) name: FlagName,
    pub(crate) generation: u64,
    /// Keys after this one, at most `max_keys`; 0 asks for the numbers only.
    pub(crate) after: Option<AckKey>,
    pub(crate) max_keys: u32,
}

/// The acknowledgements that a relay knows of one generation of a flag.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownAcks {
    pub(crate) acknowledged: u32,
    /// Streams that watch the flag here, without the observers.
    pub(crate) watchers: u32,
    pub(crate) keys: Vec<AckKey>,
}

/// Sends queries to the other relays. A relay that does not answer in time is left out.
#[async_trait]
pub(crate) trait AskAcks: Send + Sync {
    async fn ask_all(&self, query: AckQuery) -> Vec<(LifeId, KnownAcks)>;
    async fn ask(&self, life: LifeId, query: AckQuery) -> Option<KnownAcks>;
}

/// The acknowledgements at the other relays that were read.
#[derive(Debug)]
pub(crate) struct RemoteAcks {
    /// The flags of which all keys of a relay were read, and their number.
    read: HashMap<(LifeId, ObservedFlag), u32>,
    page: u32,
}

/// A flag whose acknowledgements an observer counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ObservedFlag {
    name: FlagName,
    /// The number of its entry.
    entry: u64,
    /// The newest one.
    generation: u64,
}

impl RemoteAcks {
    /// Reads at most `page` keys by one query.
    pub(crate) fn new(page: u32) -> Self {
        Self {
            read: HashMap::new(),
            page,
        }
    }

    /// Adds the acknowledgements and the watchers of the other relays to the flags whose
    /// acknowledgements are counted here.
    ///
    /// # Cancel safety
    /// Safe: the next round reads incomplete ones again.
    pub(crate) async fn add_to(&mut self, flags: &Flags, others: &dyn AskAcks) {
        let observed = flags.inner.registry().observed();
        self.read.retain(|(_, flag), _| observed.contains(flag));
        for flag in observed {
            self.add_flag(flags, others, &flag).await;
        }
    }

    async fn add_flag(&mut self, flags: &Flags, others: &dyn AskAcks, flag: &ObservedFlag) {
        let numbers = flag.query(None, 0);
        let mut watchers = 0_u32;
        for (life, known) in others.ask_all(numbers).await {
            watchers = watchers.saturating_add(known.watchers);
            let (key, number) = ((life, flag.clone()), known.acknowledged);
            let read = self.read.get(&key);
            let is_known = match planted!(FlagAcksReadOnce) {
                true => read.is_some(),
                false => read == Some(&number),
            };
            if number > 0 && !is_known && self.add_pages(flags, others, &key).await {
                self.read.insert(key, number);
            }
        }
        let mut registry = flags.inner.registry();
        let wakers = registry.set_remote_watchers(&flag.name, watchers);
        drop(registry);
        wakers.wake();
    }

    /// Adds all acknowledgements of one relay. Returns whether all pages were read.
    async fn add_pages(
        &self,
        flags: &Flags,
        others: &dyn AskAcks,
        (life, flag): &(LifeId, ObservedFlag),
    ) -> bool {
        let mut after = None;
        loop {
            let Some(page) = others.ask(*life, flag.query(after, self.page)).await else {
                return false;
            };
            for key in &page.keys {
                let counted = flags
                    .inner
                    .registry()
                    .ack(&flag.name, flag.generation, *key);
                match counted {
                    Ok(wakers) => wakers.wake(),
                    // Beyond a limit the others are not counted either.
                    Err(_) => break,
                }
            }
            match page.keys.last() {
                Some(last) if Some(*last) > after && page.keys.len() >= self.page as usize => {
                    after = Some(*last);
                }
                _ => return true,
            }
        }
    }
}

impl ObservedFlag {
    fn query(&self, after: Option<AckKey>, max_keys: u32) -> AckQuery {
        AckQuery {
            name: self.name.clone(),
            generation: self.generation,
            after,
            max_keys,
        }
    }
}

impl Flags {
    /// Returns the acknowledgements of a generation, with at most `max` keys after the given one.
    pub(crate) fn acks_of(
        &self,
        name: &FlagName,
        generation: u64,
        after: Option<AckKey>,
        max: usize,
    ) -> KnownAcks {
        let registry = self.inner.registry();
        let Some(entry) = registry.entries.get(name) else {
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

impl WatchRegistry {
    /// Returns the flags with observers.
    fn observed(&self) -> Vec<ObservedFlag> {
        self.entries
            .iter()
            .filter(|(_, entry)| entry.has_observers())
            .filter_map(|(name, entry)| {
                Some(ObservedFlag {
                    name: name.clone(),
                    entry: entry.number,
                    generation: entry.generation()?,
                })
            })
            .collect()
    }

    /// Sets the number of watchers that other relays have.
    fn set_remote_watchers(&mut self, name: &FlagName, watchers: u32) -> Wakers {
        let mut wakers = Wakers::default();
        if let Some(entry) = self.entries.get_mut(name)
            && std::mem::replace(&mut entry.remote_watchers, watchers) != watchers
        {
            self.mark_acks(name, &mut wakers);
        }
        wakers
    }
}
