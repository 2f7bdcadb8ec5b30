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
    mailbox::WakeBatch,
    pattern::PatternNode,
    queue::{QueueEntry, WalkPlace},
    sync::{AtomicU64, AtomicWaker, Mutex, Ordering, lock},
};
use crate::base::clock::Tick;

/// Queue entries whose subscribers are to be walked.
pub(crate) struct Fanout {
    due: Mutex<VecDeque<DueWalk>>,
    /// Read when a walk ends, and raised by streams (see `resume`).
    pub(super) revision: AtomicU64,
    /// Woken when a walk was added.
    pub(crate) waker: AtomicWaker,
    /// Walks added so far.
    pub(super) added: Count,
}

/// A walk that waits.
pub(super) struct DueWalk {
    pub(super) entry: Arc<QueueEntry>,
    /// When the first event of the walk was accepted, if it has one.
    pub(super) accepted_at: Option<Tick>,
}

/// One walk, step by step, so that its task can yield between the steps. Its drop does what is left.
pub(crate) struct Walk {
    due: DueWalk,
    fanout: Arc<Fanout>,
    /// `None`: it has ended.
    place: Option<WalkPlace>,
    /// The position after which it owes events, and the nodes that it visits; `None` where it has members
    /// to choose only.
    events: Option<(Counters, Vec<Arc<PatternNode>>)>,
}

/// The effects of changed queues: streams to wake, and walks for the fan-out. Drop leaves the walks to
/// the fan-out, all at once, and wakes the streams, also in a panic. No lock may be held.
#[derive(Default)]
pub(super) struct UpdateBatch {
    pub(super) wakes: WakeBatch,
    walks: Vec<DueWalk>,
    /// Set with the first walk.
    fanout: Option<Arc<Fanout>>,
}

/// The fixed cost of a step, in subscribers: a lock, and an entry's cache lines.
const STEP: usize = 8;

impl Fanout {
    pub(super) fn new() -> Self {
        Self {
            due: Mutex::new(VecDeque::new()),
            revision: AtomicU64::new(1),
            waker: AtomicWaker::new(),
            added: Count::new(0),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.due).is_empty()
    }

    /// Returns how many walks wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.due).len()
    }

    /// Begins the next walk.
    pub(crate) fn pop(self: &Arc<Self>) -> Option<Walk> {
        let due = lock(&self.due).pop_front()?;
        Some(Walk {
            events: due.entry.begin_walk(),
            due,
            fanout: Arc::clone(self),
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
        batch.accepted_at = self.due.accepted_at;
        let entry = &self.due.entry;
        self.place = entry.walk(place, self.events.as_ref(), batch);
        if self.place.is_none() {
            entry.end_walk(&self.fanout.revision);
        }
        self.place.is_some()
    }
}

impl UpdateBatch {
    /// Adds a walk for the events since the newest count.
    pub(super) fn add_walk(&mut self, fanout: &Arc<Fanout>, entry: Arc<QueueEntry>) {
        let accepted_at = self.wakes.accepted_at;
        self.walks.push(DueWalk { entry, accepted_at });
        self.fanout.get_or_insert_with(|| Arc::clone(fanout));
    }
}

impl Drop for UpdateBatch {
    fn drop(&mut self) {
        if let Some(fanout) = &self.fanout {
            let walks = self.walks.len() as u64;
            fanout.added.fetch_add(walks, Ordering::Relaxed);
            lock(&fanout.due).extend(self.walks.drain(..));
            fanout.waker.wake();
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        let mut batch = WakeBatch::default();
        while self.step(&mut batch) {}
    }
}
