//! Patterns that match more queues than a subscription, or the whole relay, may have cursors for.
//!
//! Such a subscription is told of the queues that it has no cursor for under the pattern's own name:
//! check every queue you know that matches. The fan-out tells it at the end of a walk, after the walk
//! has cleared the queue's mark: an event counted later is walked again. A queue is left to the
//! fan-out for this only where one of these patterns matches it. Locks: the index is a leaf, taken
//! also under a record's lock.

use std::sync::{Arc, PoisonError};

use super::{
    mailbox::WakeBatch,
    pattern_index::PatternIndex,
    queue_entry::QueueEntry,
    subscription::Subscription,
    sync::{AtomicU64, Ordering, RwLock},
};
use crate::{
    fault::planted,
    words::{QueueAddress, WakeReason},
};

/// The subscriptions that lack cursors.
pub(super) struct Overflow {
    index: RwLock<PatternIndex>,
    /// Not 0 where there are any, for a look without the lock.
    occupied: AtomicU64,
}

impl Overflow {
    pub(super) fn new() -> Self {
        Self {
            index: RwLock::new(PatternIndex::default()),
            occupied: AtomicU64::new(0),
        }
    }

    /// Returns whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.occupied.load(Ordering::SeqCst) == 0
    }

    /// Returns whether one may have to be told of the queue. Asked after an event was counted: a
    /// subscription that enters later has its first check after that event.
    pub(super) fn matches(&self, queue: &QueueAddress) -> bool {
        if self.is_empty() {
            return false;
        }
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        index.matches(queue)
    }

    /// Adds a subscription whose cursors the caller has locked; its patterns' own checks are due from
    /// then on. Returns whether it is new.
    pub(super) fn insert(&self, subscription: &Arc<Subscription>) -> bool {
        // Asked for each queue that has no cursor, and new once.
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        if index.contains(subscription) {
            return false;
        }
        drop(index);
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index.insert(subscription);
        self.occupied
            .store(u64::from(!index.is_empty()), Ordering::SeqCst);
        true
    }

    pub(super) fn remove(&self, subscription: &Subscription) {
        if !self.is_empty() {
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            index.remove(subscription);
            self.occupied
                .store(u64::from(!index.is_empty()), Ordering::SeqCst);
        }
    }

    /// Returns the subscriptions that have to be told of the queue unless they have a cursor for it.
    pub(super) fn matching(&self, entry: &QueueEntry) -> Vec<Arc<Subscription>> {
        if self.is_empty() || planted!(entry.config.fault, OverflowUntold) {
            return Vec::new();
        }
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        index.matching(entry.address())
    }
}

/// Tells a subscription of the queue, under the name of a pattern that matches it, unless it has a
/// cursor for it.
pub(super) fn mark_pattern(
    subscription: &Subscription,
    queue: &QueueAddress,
    batch: &mut WakeBatch,
) {
    let mut patterns = subscription.patterns();
    let Some(pattern) = patterns.find(|pattern| pattern.matches(queue)) else {
        return;
    };
    let mut cursors = subscription.lock();
    if cursors.list.find(queue).is_none() {
        cursors.request_pattern_check(&subscription.selectors, pattern, WakeReason::CatchUp);
        drop(cursors);
        batch.mark_selectors(&subscription.mailbox);
    }
}
