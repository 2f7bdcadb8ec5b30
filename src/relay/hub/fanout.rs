//! Walks over the subscribers of queues with many, separate from publishing.
//!
//! A notification of a queue with few subscribers wakes them itself. A queue with many is marked
//! and added here, at most once for any number of notifications, and the relay's task walks it. R5:
//! a walk clears the mark first, then reads: a notification during the walk marks the queue again.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::AtomicU64 as Count},
};

use super::{
    counters::Counters,
    pattern::PatternNode,
    queue::{QueueEntry, WalkPlace},
    subscription::WakeBatch,
    sync::{AtomicWaker, Mutex, Ordering, lock},
};
use crate::base::clock::Tick;

/// Queue entries whose subscribers are to be walked.
#[derive(Default)]
pub(crate) struct Fanout {
    /// Each with the time at which the first event of the walk was accepted, if it has one.
    due: Mutex<VecDeque<(Arc<QueueEntry>, Option<Tick>)>>,
    /// Woken when a walk was added.
    pub(crate) waker: AtomicWaker,
    /// Walks added so far.
    pub(super) added: Count,
}

/// One walk, step by step, so that its task can yield between the steps. Its drop does what is left.
pub(crate) struct Walk {
    entry: Arc<QueueEntry>,
    accepted_at: Option<Tick>,
    /// `None`: it has ended.
    place: Option<WalkPlace>,
    /// The position after which it owes events, and the nodes that it visits; `None` where it has members
    /// to choose only.
    events: Option<(Counters, Vec<Arc<PatternNode>>)>,
}

/// The fixed cost of a step, in subscribers: a lock, and an entry's cache lines.
const STEP: usize = 8;

impl Fanout {
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.due).is_empty()
    }

    /// Returns how many walks wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.due).len()
    }

    /// Adds a walk. Its events are those since the newest count, which was accepted then.
    pub(super) fn add(&self, entry: Arc<QueueEntry>, accepted_at: Option<Tick>) {
        self.added.fetch_add(1, Ordering::Relaxed);
        lock(&self.due).push_back((entry, accepted_at));
        self.waker.wake();
    }

    /// Begins the next walk.
    pub(crate) fn pop(&self) -> Option<Walk> {
        let (entry, accepted_at) = lock(&self.due).pop_front()?;
        Some(Walk {
            events: entry.begin_walk(),
            entry,
            accepted_at,
            place: Some(WalkPlace::default()),
        })
    }
}

impl Walk {
    /// Owes the queue to the next few subscribers; returns whether there are more. They are woken with
    /// the batch, which may have those of several walks: a stream of many queues is woken once for
    /// them.
    pub(crate) fn step(&mut self, batch: &mut WakeBatch) -> bool {
        let Some(place) = self.place else {
            return false;
        };
        batch.work += STEP;
        // The newest notification's time would hide how long the first one has waited for the walk.
        batch.accepted_at = self.accepted_at;
        self.place = self.entry.walk(place, self.events.as_ref(), batch);
        self.place.is_some()
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        let mut batch = WakeBatch::default();
        while self.step(&mut batch) {}
    }
}
