//! Walks over the subscribers of queues with many, separate from publishing.
//!
//! A notification of a queue with few subscribers wakes them itself. A queue with many is marked
//! and added here, at most once for any number of notifications, and the relay's task walks it. R5:
//! a walk clears the mark first, then reads: a notification during the walk marks the queue again.

use std::{collections::VecDeque, sync::Arc, vec::IntoIter};

use super::{
    config::SUBSCRIBERS_PER_STEP,
    mailbox::WakeBatch,
    pattern_overflow::{self, PatternOverflow},
    queue_entry::QueueEntry,
    subscription::Subscription,
    sync::{AtomicU64, AtomicWaker, Mutex, lock},
};
use crate::base::clock::Tick;

/// Queue entries whose subscribers are to be walked.
pub(super) struct Fanout {
    due: Mutex<VecDeque<DueWalk>>,
    /// Subscriptions without a cursor for a queue, which walks mark as well.
    pub(super) overflow: PatternOverflow,
    /// Read when a walk ends, and raised by streams (see `resume`).
    pub(super) revision: AtomicU64,
    /// Woken when a walk was added.
    pub(super) waker: AtomicWaker,
}

/// A walk that has not begun.
pub(super) struct DueWalk {
    pub(super) entry: Arc<QueueEntry>,
    /// When the first event of the walk was accepted; the default: it has none.
    pub(super) accepted_at: Tick,
}

/// One walk, step by step, so that its task can yield between the steps. Its drop does what is left.
pub(crate) struct Walk {
    entry: Arc<QueueEntry>,
    accepted_at: Tick,
    fanout: Arc<Fanout>,
    next: u64,
    /// The subscriptions without a cursor, when the entry's own subscribers are marked.
    without_cursor: Option<IntoIter<Arc<Subscription>>>,
    ended: bool,
}

/// Queues that a batch leaves to the fan-out, all at once. Drop leaves them as well, so that a
/// panic does not lose a queue's walks.
#[derive(Default)]
pub(super) struct PendingWalks {
    fanout: Option<Arc<Fanout>>,
    due: Vec<DueWalk>,
}

/// The effects of changed queues: streams to wake, and walks for the fan-out. Dropping the batch
/// wakes the streams and leaves the walks.
#[derive(Default)]
pub(super) struct UpdateBatch {
    pub(super) wakes: WakeBatch,
    pub(super) walks: PendingWalks,
}

/// The fixed cost of a step, in marks: two locks, and an entry's cache lines.
const STEP: usize = 8;

impl Fanout {
    pub(super) fn new() -> Self {
        Self {
            due: Mutex::new(VecDeque::new()),
            overflow: PatternOverflow::new(),
            revision: AtomicU64::new(1),
            waker: AtomicWaker::new(),
        }
    }

    /// Adds walks, all at once, so that they are one batch.
    pub(super) fn extend(&self, walks: impl Iterator<Item = DueWalk>) {
        lock(&self.due).extend(walks);
        self.waker.wake();
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.due).is_empty()
    }

    /// Returns how many walks wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.due).len()
    }

    pub(super) fn pop(self: &Arc<Self>) -> Option<Walk> {
        let due = lock(&self.due).pop_front()?;
        Some(Walk::new(due, Arc::clone(self)))
    }
}

impl Walk {
    fn new(due: DueWalk, fanout: Arc<Fanout>) -> Self {
        Self {
            entry: due.entry,
            accepted_at: due.accepted_at,
            fanout,
            next: 0,
            without_cursor: None,
            ended: false,
        }
    }

    /// Marks the next few subscribers; returns whether there are more. They are woken with the
    /// batch, which may have the marks of several walks: a stream of many queues is woken once for
    /// them.
    pub(crate) fn step(&mut self, batch: &mut WakeBatch) -> bool {
        batch.add_work(STEP);
        // The newest notification's time would hide how long the first one has waited for the walk.
        batch.accepted_at = self.accepted_at;
        if self.without_cursor.is_none() {
            if let Some(next) = self.entry.walk(self.next, batch) {
                self.next = next;
                return true;
            }
            // Read after the mark is cleared: a subscription that is inserted later has its first
            // check after all events of this walk.
            self.without_cursor = Some(self.fanout.overflow.matching(&self.entry).into_iter());
            return true;
        }
        self.ended = !self.mark_without_cursor(SUBSCRIBERS_PER_STEP, batch);
        if self.ended {
            self.entry.end_walk(&self.fanout.revision);
        }
        !self.ended
    }

    /// Marks the next few subscriptions without a cursor; returns whether there are more.
    fn mark_without_cursor(&mut self, count: usize, batch: &mut WakeBatch) -> bool {
        let Some(without_cursor) = &mut self.without_cursor else {
            return false;
        };
        for subscription in without_cursor.by_ref().take(count) {
            batch.add_work(1);
            pattern_overflow::mark_pattern(&subscription, self.entry.address(), batch);
        }
        without_cursor.len() > 0
    }
}

impl PendingWalks {
    pub(super) fn push(&mut self, fanout: &Arc<Fanout>, walk: DueWalk) {
        self.fanout.get_or_insert_with(|| Arc::clone(fanout));
        self.due.push(walk);
    }

    /// Leaves them to the fan-out; returns how many. No lock may be held.
    pub(super) fn submit(&mut self) -> usize {
        let count = self.due.len();
        if let Some(fanout) = self.fanout.take() {
            fanout.extend(self.due.drain(..));
        }
        count
    }
}

impl Drop for PendingWalks {
    fn drop(&mut self) {
        self.submit();
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        let mut batch = WakeBatch::default();
        while !self.ended && self.step(&mut batch) {}
    }
}
