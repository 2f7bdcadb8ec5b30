//! Patterns that match more queues than a subscription, or the whole relay, may have cursors for.
//!
//! Such a subscription is told of the queues that it has no cursor for under the pattern's own name:
//! check every queue you know that matches. The fan-out tells it at the end of a walk, after the walk
//! has cleared the queue's mark: an event counted later is walked again. Locks: the table is a leaf.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    mailbox::WakeBatch,
    record::Record,
    subscription::{Subscription, SubscriptionId},
    sync::{AtomicU64, Mutex, Ordering, lock},
};
use crate::{fault::planted, words::WakeReason};

/// The subscriptions that lack cursors.
pub(super) struct Overflow {
    table: Mutex<BTreeMap<SubscriptionId, Arc<Subscription>>>,
    /// How many there are, for a look without the lock.
    count: AtomicU64,
}

impl Overflow {
    pub(super) fn new() -> Self {
        Self {
            table: Mutex::new(BTreeMap::new()),
            count: AtomicU64::new(0),
        }
    }

    /// Returns whether there is none. Asked after an event was counted: a subscription that enters
    /// later has its first check after that event.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Adds a subscription; its patterns' own checks are due from then on. Returns whether it is new.
    pub(super) fn insert(&self, subscription: &Arc<Subscription>) -> bool {
        let mut table = lock(&self.table);
        let new = table
            .insert(subscription.id, Arc::clone(subscription))
            .is_none();
        self.count.store(table.len() as u64, Ordering::SeqCst);
        new
    }

    pub(super) fn remove(&self, id: SubscriptionId) {
        if !self.is_empty() {
            let mut table = lock(&self.table);
            table.remove(&id);
            self.count.store(table.len() as u64, Ordering::SeqCst);
        }
    }

    /// Tells those that match the queue and have no cursor for it.
    pub(super) fn tell(&self, record: &Record, batch: &mut WakeBatch) {
        if self.is_empty() || planted!(record.pace.fault, OverflowUntold) {
            return;
        }
        let all: Vec<_> = lock(&self.table).values().cloned().collect();
        for subscription in all {
            let address = record.address();
            let mut patterns = subscription.patterns();
            let Some(pattern) = patterns.find(|pattern| pattern.matches(address)) else {
                continue;
            };
            let mut cursors = subscription.lock();
            if cursors.list.find(address).is_none() {
                cursors.check_pattern(&subscription.selectors, pattern, WakeReason::CatchUp);
                drop(cursors);
                batch.mark_selectors(&subscription.mailbox);
            }
        }
    }
}
