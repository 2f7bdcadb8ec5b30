//! Patterns that match more queues than the limits of cursors allow, for a subscription or the
//! relay.
//!
//! Wake-ups for queues without a cursor go under the pattern's own name: the listener checks all
//! matching queues that it knows. The fan-out sends them at the end of a walk, after it has cleared
//! the queue's mark, so an event counted later causes another walk. A queue is left to the fan-out
//! for this only where such a pattern matches it. Locks: the index is a leaf, taken also under an
//! entry's lock.

use std::sync::Arc;

use super::{
    mailbox::WakeBatch,
    pattern_index::PatternIndex,
    queue_entry::QueueEntry,
    subscription::Subscription,
    sync::{AtomicU64, Ordering, RwLock, read, write},
};
use crate::{
    base::fault::planted,
    types::{QueueAddress, WakeReason},
};

/// The subscriptions that lack cursors.
pub(super) struct PatternOverflow {
    index: RwLock<PatternIndex>,
    /// Not 0 where the index has patterns; read without the lock.
    occupied: AtomicU64,
}

impl PatternOverflow {
    pub(super) fn new() -> Self {
        Self {
            index: RwLock::new(PatternIndex::default()),
            occupied: AtomicU64::new(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.occupied.load(Ordering::SeqCst) == 0
    }

    /// Returns whether a subscription without a cursor may match the queue. Called after an event
    /// was counted: a subscription that is inserted later has its first check after that event.
    pub(super) fn matches(&self, queue: &QueueAddress) -> bool {
        if self.is_empty() {
            return false;
        }
        read(&self.index).matches(queue)
    }

    /// Adds a subscription whose cursors the caller has locked; its patterns' own checks are due
    /// from then on. Returns whether it is new.
    pub(super) fn insert(&self, subscription: &Arc<Subscription>) -> bool {
        // Read-locked first: this is called for each queue without a cursor, and inserts once.
        if read(&self.index).contains(subscription) {
            return false;
        }
        let mut index = write(&self.index);
        index.insert(subscription);
        self.occupied
            .store(u64::from(!index.is_empty()), Ordering::SeqCst);
        true
    }

    pub(super) fn remove(&self, subscription: &Subscription) {
        if !self.is_empty() {
            let mut index = write(&self.index);
            index.remove(subscription);
            self.occupied
                .store(u64::from(!index.is_empty()), Ordering::SeqCst);
        }
    }

    /// Returns the subscriptions that get a wake-up under a pattern's name, unless they have a
    /// cursor for the queue.
    pub(super) fn matching(&self, entry: &QueueEntry) -> Vec<Arc<Subscription>> {
        if planted!(OverflowUntold) {
            return Vec::new();
        }
        if self.is_empty() {
            return Vec::new();
        }
        read(&self.index).matching(entry.address())
    }
}

/// Marks a pattern of the subscription that matches the queue, unless there is a cursor for the
/// queue.
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
