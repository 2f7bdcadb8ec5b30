//! The billing service of the demo: transactions, their prices, and their totals.
//!
//! Pure. A work item may be rated twice, because a queue may deliver a message twice. The totals
//! count it once.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

/// A customer's use of a service.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Transaction {
    id: u64,
    customer: u32,
    service: Service,
    units: u32,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Service {
    Call,
    Message,
    Data,
}

/// Transactions that are rated together: one message of the input queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WorkItem {
    number: usize,
    transactions: Vec<Transaction>,
}

/// The result of a work item: one message of the output queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Rated {
    number: usize,
    transactions: u64,
    cents: u64,
    /// Time from put to handling.
    waited_us: u64,
}

/// The sums of all results so far.
#[derive(Debug, Default, Clone)]
pub(super) struct Totals {
    seen: BTreeSet<usize>,
    pub(super) transactions: u64,
    pub(super) cents: u64,
    pub(super) waited: Vec<Duration>,
}

/// Number of transactions of the batch, and of one work item.
pub(super) const TRANSACTIONS: u64 = 20_000;
const GROUP: usize = 50;
/// Number of work items of the batch.
#[expect(clippy::cast_possible_truncation, reason = "20,000 fit anywhere")]
pub(super) const ITEMS: usize = TRANSACTIONS as usize / GROUP;
/// A fixed seed, so that every run has the same batch.
const SEED: u64 = 1904;

/// Returns the batch, split into work items.
pub(super) fn batch() -> Vec<WorkItem> {
    let mut chance = fastrand::Rng::with_seed(SEED);
    let all: Vec<_> = (1..=TRANSACTIONS)
        .map(|id| Transaction {
            id,
            customer: chance.u32(1..=5_000),
            service: [Service::Call, Service::Message, Service::Data][chance.usize(..3)],
            units: chance.u32(1..=90),
        })
        .collect();
    let groups = all.chunks(GROUP).enumerate();
    groups
        .map(|(number, transactions)| WorkItem {
            number,
            transactions: transactions.to_vec(),
        })
        .collect()
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
            transactions: self.transactions.len() as u64,
            cents: self.cents(),
            waited_us: u64::try_from(waited.as_micros()).unwrap_or(u64::MAX),
        }
    }

    fn cents(&self) -> u64 {
        self.transactions.iter().map(Transaction::cents).sum()
    }
}

impl Transaction {
    fn cents(&self) -> u64 {
        let units = u64::from(self.units);
        match self.service {
            // A call has a base price.
            Service::Call => 5 + 2 * units,
            Service::Message => units,
            // The first ten units are free.
            Service::Data => 3 * units.saturating_sub(10),
        }
    }
}

impl Totals {
    /// Adds a result, unless it was added before.
    pub(super) fn add(&mut self, rated: &Rated) {
        if self.seen.insert(rated.number) {
            self.transactions += rated.transactions;
            self.cents += rated.cents;
            self.waited.push(Duration::from_micros(rated.waited_us));
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
        assert_eq!(totals.transactions, TRANSACTIONS);
        assert_eq!(totals.cents, sum(&batch));
        assert_eq!(sum(&batch), sum(&super::batch()), "a fixed seed");
    }

    #[test]
    fn services_have_their_prices() {
        for (service, units, cents) in [
            (Service::Call, 10, 25),
            (Service::Message, 7, 7),
            (Service::Data, 10, 0),
            (Service::Data, 12, 6),
        ] {
            let transaction = Transaction {
                id: 1,
                customer: 1,
                service,
                units,
            };
            assert_eq!(transaction.cents(), cents, "{transaction:?}");
        }
    }
}
