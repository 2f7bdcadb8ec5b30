//! The billing service of the demo: transactions, their prices, and their totals.
//!
//! Pure. A work item may be rated twice, because a queue may deliver a message twice. The totals
//! count it once.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

/// Transactions that are rated together: one message of the input queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WorkItem {
    number: usize,
    /// The units of each transaction.
    units: Vec<u32>,
}

/// The result of a work item: one message of the output queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Rated {
    number: usize,
    cents: u64,
    /// Time from put to handling.
    waited: Duration,
}

/// The sums of all results so far.
#[derive(Debug, Default, Clone)]
pub(super) struct Totals {
    seen: BTreeSet<usize>,
    pub(super) cents: u64,
    pub(super) waited: Vec<Duration>,
}

/// Number of transactions of the batch, and of one work item.
pub(super) const TRANSACTIONS: usize = 20_000;
const GROUP: usize = 50;
/// Number of work items of the batch.
pub(super) const ITEMS: usize = TRANSACTIONS / GROUP;
/// A fixed seed, so that every run has the same batch.
const SEED: u64 = 1904;

/// Returns the batch, split into work items.
pub(super) fn batch() -> Vec<WorkItem> {
    let mut chance = fastrand::Rng::with_seed(SEED);
    let mut item = |number| WorkItem {
        number,
        units: (0..GROUP).map(|_| chance.u32(1..=90)).collect(),
    };
    (0..ITEMS).map(&mut item).collect()
}

/// Returns the price of a batch in cents.
pub(super) fn sum(batch: &[WorkItem]) -> u64 {
    batch.iter().map(WorkItem::cents).sum()
}

impl WorkItem {
    /// Computes the price of all its transactions.
    pub(super) fn rate(&self, waited: Duration) -> Rated {
        Rated {
            number: self.number,
            cents: self.cents(),
            waited,
        }
    }

    /// A transaction has a base price, and a price for each unit.
    fn cents(&self) -> u64 {
        self.units
            .iter()
            .map(|units| 5 + 2 * u64::from(*units))
            .sum()
    }
}

impl Totals {
    /// Adds a result, unless it was added before.
    pub(super) fn add(&mut self, rated: &Rated) {
        if self.seen.insert(rated.number) {
            self.cents += rated.cents;
            self.waited.push(rated.waited);
        }
    }

    /// Returns the number of added work items.
    pub(super) fn items(&self) -> usize {
        self.seen.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_exact_for_repeated_items_in_any_order() {
        let batch = batch();
        assert_eq!(batch.len(), ITEMS);
        let mut totals = Totals::default();
        for item in batch.iter().rev().chain(&batch[..7]) {
            totals.add(&item.rate(Duration::from_millis(3)));
        }
        assert_eq!((totals.items(), totals.waited.len()), (ITEMS, ITEMS));
        assert_eq!(totals.cents, sum(&batch));
        assert_eq!(sum(&batch), sum(&super::batch()), "a fixed seed");
        let item = WorkItem {
            number: 1,
            units: vec![10, 1],
        };
        assert_eq!(item.cents(), 25 + 7);
    }
}
