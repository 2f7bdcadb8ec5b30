//! C14: while acknowledgements of a flag are counted here, those that other relays have are added.
//!
//! Knows neither the broker nor the time: the driver begins a round twice a second, and its
//! [`AskAcks`] sends the queries.

use std::collections::HashMap;

use async_trait::async_trait;

use super::{AckKey, Flags, KnownAcks, acks::ObservedFlag};
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
        let observed = flags.observed();
        self.read.retain(|(_, flag), _| observed.contains(flag));
        for flag in observed {
            self.add_flag(flags, others, &flag).await;
        }
    }

    async fn add_flag(&mut self, flags: &Flags, others: &dyn AskAcks, flag: &ObservedFlag) {
        let numbers = AckQuery {
            name: flag.name.clone(),
            generation: flag.generation,
            after: None,
            max_keys: 0,
        };
        let mut watchers = 0_u32;
        for (life, known) in others.ask_all(numbers).await {
            watchers = watchers.saturating_add(known.watchers);
            let (key, number) = ((life, flag.clone()), known.acknowledged);
            let read = self.read.get(&key);
            let is_known = match planted!(FlagAcksReadOnce) {
                true => read.is_some(),
                false => read == Some(&number),
            };
            if number == 0 || is_known {
                continue;
            }
            if self.add_pages(flags, others, &key).await {
                self.read.insert(key, number);
            }
        }
        flags.set_remote_watchers(&flag.name, watchers);
    }

    /// Adds all acknowledgements of one relay. Returns whether all pages were read.
    async fn add_pages(
        &self,
        flags: &Flags,
        others: &dyn AskAcks,
        (life, flag): &(LifeId, ObservedFlag),
    ) -> bool {
        let (name, generation) = (&flag.name, flag.generation);
        let mut after = None;
        loop {
            let query = AckQuery {
                name: name.clone(),
                generation,
                after,
                max_keys: self.page,
            };
            let Some(page) = others.ask(*life, query).await else {
                return false;
            };
            flags.add_acks(name, generation, &page.keys);
            match page.keys.last() {
                Some(last) if Some(*last) > after && page.keys.len() >= self.page as usize => {
                    after = Some(*last);
                }
                _ => return true,
            }
        }
    }
}
