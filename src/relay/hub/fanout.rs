//! Walks over the subscribers of queues with many, separate from publishing.
//!
//! A notification of a queue with few subscribers wakes them itself. A queue with many is marked
//! and added here, at most once for any number of notifications, and the relay's task walks it. R5:
//! a walk clears the mark first, then reads: a notification during the walk marks the queue again.

use std::{collections::VecDeque, sync::Arc};

use super::{
    counters::Counters,
    mailbox::WakeBatch,
    pattern::PatternNode,
    queue::{QueueEntry, WalkPlace},
    sync::{AtomicU64, AtomicWaker, Mutex, lock},
};
use crate::base::clock::Tick;

/// Queue entries whose subscribers are to be walked.
pub(super) struct Fanout {
    due: Mutex<VecDeque<DueWalk>>,
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
    place: WalkPlace,
    /// Set when it begins: the position after which it owes events, and the nodes that it visits.
    #[expect(
        clippy::option_option,
        reason = "a walk may have members to choose only"
    )]
    events: Option<Option<(Counters, Vec<Arc<PatternNode>>)>>,
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

/// The fixed cost of a step, in subscribers: a lock, and an entry's cache lines.
const STEP: usize = 8;

impl Fanout {
    pub(super) fn new() -> Self {
        Self {
            due: Mutex::new(VecDeque::new()),
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
            place: WalkPlace::default(),
            events: None,
            ended: false,
        }
    }

    /// Owes the queue to the next few subscribers; returns whether there are more. They are woken with
    /// the batch, which may have those of several walks: a stream of many queues is woken once for
    /// them.
    pub(crate) fn step(&mut self, batch: &mut WakeBatch) -> bool {
        batch.add_work(STEP);
        // The newest notification's time would hide how long the first one has waited for the walk.
        batch.accepted_at = self.accepted_at;
        let entry = &self.entry;
        let events = self.events.get_or_insert_with(|| entry.begin_walk());
        if let Some(place) = entry.walk(self.place, events.as_ref(), batch) {
            self.place = place;
            return true;
        }
        entry.end_walk(&self.fanout.revision);
        self.ended = true;
        false
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
