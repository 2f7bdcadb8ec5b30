//! The first queues of the list in another order than by name.
//!
//! All queues are visited, some hundred in a step, and a map has the best so far. So a list costs no
//! sort of all queues, and no lock is held between two of them. For rates they are visited twice.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc, time::Duration};

use super::super::{core::Hub, counters::saturate, figures::QueueStats, queue::QueueEntry};
use crate::{
    base::clock::{Tick, nanos},
    types::QueueAddress,
};

/// The order of a list of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueOrder {
    /// Most notifications since the visit before first.
    Rate,
    /// Largest backlog first.
    Backlog,
    /// Longest without a notification first.
    Idle,
    /// Fewest listeners first.
    Listeners,
}

/// A search for the first queues in an order, among those whose address contains the filter.
pub(crate) struct Ranking {
    order: QueueOrder,
    filter: String,
    count: usize,
    /// By rank, the worst one first.
    best: BTreeMap<Rank, Arc<QueueEntry>>,
    last: Option<QueueAddress>,
    /// The notifications at the first visit, by the entries' numbers; for rates.
    counted: BTreeMap<u64, u128>,
}

/// Greater is better; of two equal ones, the first by name.
type Rank = (u64, Reverse<QueueAddress>);

/// Queues that one step visits: some hundred microseconds.
const STEP: usize = 512;
/// A queue without a notification for this long at the first visit has no rate, and costs a list by rate no
/// memory.
const RECENT: Duration = Duration::from_secs(10);

impl Ranking {
    /// Begins a search for the first `count` queues.
    pub(crate) fn new(order: QueueOrder, filter: &str, count: usize) -> Self {
        Self {
            order,
            filter: filter.to_owned(),
            count: count.max(1),
            best: BTreeMap::new(),
            last: None,
            counted: BTreeMap::new(),
        }
    }

    /// Begins again, for the rates since the visits so far.
    pub(crate) fn restart(&mut self) {
        self.best.clear();
        self.last = None;
    }

    fn key(&mut self, entry: &QueueEntry, now: Tick) -> u64 {
        let state = entry.lock();
        match self.order {
            QueueOrder::Rate if now.since(state.active_at) > RECENT => 0,
            QueueOrder::Rate => {
                let counted = state.counters.notifications;
                let before = *self.counted.entry(entry.number()).or_insert(counted);
                saturate(counted.saturating_sub(before))
            }
            QueueOrder::Backlog => state.backlog(),
            QueueOrder::Idle if state.counters.sequence == state.start => u64::MAX,
            QueueOrder::Idle => nanos(now.since(state.active_at)),
            QueueOrder::Listeners => u64::MAX - state.listeners() as u64,
        }
    }

    /// Returns the queues in their order, each with its rank.
    pub(crate) fn into_stats(self, now: Tick) -> Vec<(QueueStats, u64)> {
        let best = self.best.iter().rev();
        best.map(|((rank, _), entry)| (entry.stats(now), *rank))
            .collect()
    }
}

impl Hub {
    /// Visits the next queues, and takes those that `is_visible`; returns how many there were, 0 at the
    /// end.
    pub(crate) fn rank_some(
        &self,
        ranking: &mut Ranking,
        is_visible: impl Fn(&QueueAddress) -> bool,
        now: Tick,
    ) -> usize {
        let entries = self.entries.after(ranking.last.as_ref(), STEP);
        let (visited, last) = (entries.len(), entries.last());
        ranking.last = last.map(|entry| entry.address().clone());
        for entry in entries {
            let address = entry.address();
            if address.as_str().contains(&ranking.filter) && is_visible(address) {
                let rank = (ranking.key(&entry, now), Reverse(address.clone()));
                ranking.best.insert(rank, entry);
                if ranking.best.len() > ranking.count {
                    ranking.best.pop_first();
                }
            }
        }
        visited
    }
}
