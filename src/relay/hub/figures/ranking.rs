//! The first queues of the list in another order than by name.
//!
//! All queues are visited, some hundred in a step, and a map has the best so far. So a list costs no
//! sort of all queues, and no lock is held between two of them.

use std::{
    borrow::Borrow,
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use super::super::{core::Hub, figures::QueueStats, queue::QueueEntry};
use crate::{
    base::clock::{Tick, nanos},
    types::QueueAddress,
};

/// The order of a list of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueOrder {
    /// Most notifications in the last second first.
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
    visited: usize,
    last: Option<QueueAddress>,
    /// By the entries' numbers.
    rates: HashMap<u64, u64>,
}

/// Greater is better; of two equal ones, the one that was visited first, which is by name.
type Rank = (u64, Reverse<usize>);

/// Queues that one step visits: some hundred microseconds.
const STEP: usize = 512;
/// Rates are measured for this long after a list by rate.
const RATES_FOR: Duration = Duration::from_secs(60);

impl Ranking {
    /// Adds an entry where it is one of the best.
    fn add(&mut self, entry: Arc<QueueEntry>, now: Tick) {
        self.visited += 1;
        let rank = (self.key(&entry, now), Reverse(self.visited));
        self.best.insert(rank, entry);
        if self.best.len() > self.count {
            self.best.pop_first();
        }
    }

    fn key(&self, entry: &QueueEntry, now: Tick) -> u64 {
        if self.order == QueueOrder::Rate {
            return self.rates.get(&entry.number()).copied().unwrap_or_default();
        }
        let state = entry.lock();
        match self.order {
            QueueOrder::Rate => 0,
            QueueOrder::Backlog => state.backlog(),
            QueueOrder::Idle if state.counters.sequence == state.start => u64::MAX,
            QueueOrder::Idle => nanos(now.since(state.active_at)),
            QueueOrder::Listeners => u64::MAX - state.listeners() as u64,
        }
    }

    /// Returns the queues in their order, each with its rate.
    pub(crate) fn into_stats(self, now: Tick) -> Vec<(QueueStats, u64)> {
        let stats = self.best.values().rev().map(|entry| {
            let rate = self.rates.get(&entry.number());
            (entry.stats(now), rate.copied().unwrap_or_default())
        });
        stats.collect()
    }
}

impl Hub {
    /// Begins a search for the first `count` queues.
    pub(crate) fn rank_queues(
        &self,
        order: QueueOrder,
        filter: &str,
        count: usize,
        now: Tick,
    ) -> Ranking {
        if order == QueueOrder::Rate {
            self.want_rates(now + RATES_FOR);
        }
        Ranking {
            order,
            filter: filter.to_owned(),
            count: count.max(1),
            best: BTreeMap::new(),
            visited: 0,
            last: None,
            rates: match order {
                QueueOrder::Rate => self.rates(),
                _ => HashMap::new(),
            },
        }
    }

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
            let text: &str = entry.address().borrow();
            if text.contains(&ranking.filter) && is_visible(entry.address()) {
                ranking.add(entry, now);
            }
        }
        visited
    }
}
