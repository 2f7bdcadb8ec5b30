//! The increments of own causes that the other relays of a cluster must learn (C1).
//!
//! An entry keeps `announced`, the part of its counters that the other relays know. Its increments
//! are the difference. An own cause appends the entry to one list, unless it is in there; causes of
//! other relays move both sides, so they are never passed on. The list's lock is a leaf, taken under
//! an entry's lock: so a notifier that finds its entry listed also finds it in the length of the
//! list. A relay without a cluster has no list.

use std::{collections::VecDeque, sync::Arc};

use super::{
    core::Hub,
    counters::Counters,
    queue_entry::{QueueEntry, QueueState},
    sync::{AtomicWaker, Mutex, lock},
};
use crate::{
    base::fault::planted,
    types::cluster::{ClusterLimits, FrameEntry},
};

/// What the other relays know of a queue.
#[derive(Debug)]
pub(super) struct Announced {
    counters: Counters,
    /// The entry is in the list.
    listed: bool,
}

/// The queues with increments, in the order of their first unannounced cause.
pub(super) struct IncrementList {
    list: Mutex<List>,
    /// Woken when a queue was appended.
    pub(super) waker: AtomicWaker,
}

#[derive(Default)]
struct List {
    entries: VecDeque<Arc<QueueEntry>>,
    /// The number of queues appended so far.
    appended: u64,
}

impl IncrementList {
    pub(super) fn new() -> Self {
        Self {
            list: Mutex::default(),
            waker: AtomicWaker::new(),
        }
    }

    fn append(&self, entry: &Arc<QueueEntry>) {
        let mut list = lock(&self.list);
        list.entries.push_back(Arc::clone(entry));
        list.appended += 1;
    }

    fn pop(&self) -> Option<Arc<QueueEntry>> {
        lock(&self.list).entries.pop_front()
    }
}

impl Hub {
    /// Returns a position in the list of increments: all causes that were counted before this call
    /// are announced when [`Hub::announced_position`] has reached it.
    pub(crate) fn increments_position(&self) -> u64 {
        let increments = self.increments.as_ref();
        increments.map_or(0, |increments| lock(&increments.list).appended)
    }

    /// Returns the position up to which queues were taken by [`Hub::next_increment`].
    pub(crate) fn announced_position(&self) -> u64 {
        let increments = self.increments.as_ref();
        increments.map_or(0, |increments| {
            let list = lock(&increments.list);
            list.appended - list.entries.len() as u64
        })
    }

    /// Returns whether a queue has increments.
    pub(crate) fn has_increments(&self) -> bool {
        let increments = self.increments.as_ref();
        increments.is_some_and(|increments| !lock(&increments.list).entries.is_empty())
    }

    /// Returns the waker of the task that sends frames. It is woken when a queue has increments.
    pub(crate) fn increments_waker(&self) -> Option<&AtomicWaker> {
        self.increments.as_ref().map(|increments| &increments.waker)
    }

    /// Takes the increments of the next queue, which must go into a frame.
    pub(crate) fn next_increment(&self) -> Option<FrameEntry> {
        let entry = self.increments.as_ref()?.pop()?;
        let fault = self.config.fault;
        let mut state = entry.lock();
        // R5: the mark is cleared before the counters are read.
        let late = planted!(fault, LinkMarkClearedLate);
        if !late {
            state.set_unlisted();
        }
        let increment = state.take_increment(&entry);
        if late {
            drop(state);
            entry.lock().set_unlisted();
        }
        Some(increment)
    }

    /// Appends the queue to the list of increments after an own cause; returns whether it did.
    pub(super) fn list_increment(&self, entry: &Arc<QueueEntry>, state: &mut QueueState) -> bool {
        let Some(increments) = &self.increments else {
            return false;
        };
        let lists = state.list_increment();
        if lists {
            increments.append(entry);
        }
        lists
    }
}

impl QueueState {
    /// Marks the queue as listed where it has increments and was not listed.
    fn list_increment(&mut self) -> bool {
        let sequence = self.counters.sequence;
        let announced = self.announced();
        sequence > announced.counters.sequence && !std::mem::replace(&mut announced.listed, true)
    }

    fn set_unlisted(&mut self) {
        self.announced().listed = false;
    }

    /// The increments since the last call, for a frame.
    fn take_increment(&mut self, entry: &QueueEntry) -> FrameEntry {
        let counters = self.counters;
        let before = std::mem::replace(&mut self.announced().counters, counters);
        let delta = counters.delta_since(&before);
        let last_event = &self.last_event;
        FrameEntry {
            queue: entry.address().clone(),
            causes: (counters.sequence - before.sequence).min(ClusterLimits::CAUSES),
            notifications: delta.notifications,
            payload_size: delta.payload,
            messages: delta.messages,
            publisher: Arc::clone(&last_event.publisher),
            published_at: last_event.published_at,
            traceparent: Arc::clone(&last_event.traceparent),
            served_groups: Vec::new(),
            checked: false,
        }
    }

    /// Moves the counters by causes that the other relays know already.
    pub(super) fn count_announced(&mut self, increment: &Counters) {
        let announced = self.announced();
        announced.counters.sequence += increment.sequence;
        announced.counters.add_totals(increment);
        self.counters.sequence += increment.sequence;
        self.counters.add_totals(increment);
    }

    /// An entry begins without causes, so the others know all of it.
    fn announced(&mut self) -> &mut Announced {
        let start = self.start;
        self.announced.get_or_insert_with(|| {
            Box::new(Announced {
                counters: Counters::starting_at(start),
                listed: false,
            })
        })
    }
}
