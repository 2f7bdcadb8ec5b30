//! The increments of own causes, which the other relays of a cluster must learn (C1).
//!
//! An entry keeps `announced`, the part of its counters that the other relays know. Its increments
//! are the difference. An own cause appends the entry to one list, unless it is in there; causes of
//! other relays move both sides, so they are never passed on. A relay without a cluster lists nothing.
//!
//! The list's lock is a leaf, taken under an entry's lock: a notifier that finds its entry listed
//! also finds it in the length of the list.

use std::{collections::VecDeque, sync::Arc};

use super::super::{
    core::Hub,
    counters::Counters,
    queue::{QueueEntry, QueueState},
    sync::{AtomicU64, AtomicWaker, Mutex, Ordering, lock},
};
use crate::{
    base::fault::planted,
    types::cluster::{ClusterLimits, FrameEntry},
};

impl Hub {
    /// Takes the increments of the next queue, which must go into a frame.
    pub(crate) fn next_increment(&self) -> Option<FrameEntry> {
        loop {
            let entry = lock(&self.increments.list).entries.pop_front()?;
            let mut state = entry.lock();
            // R5: the mark is cleared before the counters are read.
            if !planted!(LinkMarkClearedLate) {
                state.announced().listed = false;
            }
            let increment = state.take_increment(&entry);
            drop(state);
            if planted!(LinkMarkClearedLate) {
                entry.lock().announced().listed = false;
            }
            if increment.causes > 0 || increment.checked {
                return Some(increment);
            }
        }
    }
}

impl QueueState {
    /// The increments since the last call, for a frame.
    fn take_increment(&mut self, entry: &QueueEntry) -> FrameEntry {
        let counters = self.counters;
        let checked = std::mem::take(&mut self.announced().checked);
        // C10: the groups whose idle members took all causes since the last call.
        let mut served_groups = Vec::new();
        let has_causes = self.own_causes() > 0;
        let coordinator = self.coordinator.iter_mut().filter(|_| has_causes);
        for group in coordinator.flat_map(|one| one.groups_mut()) {
            if group.take_served(&counters, served_groups.len() < ClusterLimits::GROUPS) {
                served_groups.push(group.name.clone());
            }
        }
        let before = std::mem::replace(&mut self.announced().counters, counters);
        let delta = counters.delta_since(&before);
        FrameEntry {
            queue: entry.address().clone(),
            causes: (counters.sequence - before.sequence).min(ClusterLimits::CAUSES),
            notifications: delta.notifications,
            payload_size: delta.payload,
            messages: delta.messages,
            last_event: self.last_event.clone(),
            served_groups,
            checked,
        }
    }

    /// Moves the counters by causes that the other relays know already.
    pub(crate) fn count_announced(&mut self, increment: &Counters) {
        let announced = self.announced();
        announced.counters.sequence += increment.sequence;
        announced.counters.add_totals(increment);
        self.counters.sequence += increment.sequence;
        self.counters.add_totals(increment);
        self.add_to_backlog(increment.messages);
    }

    /// An entry begins without causes, so the others know all of it.
    pub(crate) fn announced(&mut self) -> &mut Announced {
        self.announced.get_or_insert_with(|| {
            Box::new(Announced {
                counters: Counters::starting_at(self.start),
                ..Announced::default()
            })
        })
    }
}

/// What the other relays know of a queue.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    pub(crate) counters: Counters,
    /// The sequence of the newest resync.
    pub(crate) resynced: u64,
    /// C12: a listener here has checked the queue, and the others are to be told of it.
    pub(crate) checked: bool,
    /// The entry is in the list.
    pub(crate) listed: bool,
}

/// The queues with increments, in the order of their first unannounced cause.
#[derive(Default)]
pub(crate) struct IncrementList {
    list: Mutex<List>,
    /// Woken when a queue was appended.
    pub(crate) waker: AtomicWaker,
    /// C11: the times that a queue's work was passed on to the other relays.
    pub(crate) passed_on: AtomicU64,
}

#[derive(Default)]
struct List {
    entries: VecDeque<Arc<QueueEntry>>,
    /// The number of queues appended so far.
    appended: u64,
}

impl IncrementList {
    /// Appends a queue whose lock the caller holds, unless it is in the list; returns whether it did.
    pub(in super::super) fn list(&self, entry: &Arc<QueueEntry>, state: &mut QueueState) -> bool {
        let is_new = !std::mem::replace(&mut state.announced().listed, true);
        if is_new {
            let mut list = lock(&self.list);
            list.entries.push_back(Arc::clone(entry));
            list.appended += 1;
        }
        is_new
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.list).entries.is_empty()
    }

    pub(crate) fn passed_on(&self) -> u64 {
        self.passed_on.load(Ordering::Relaxed)
    }

    /// Returns the number of entries appended so far: all causes that were counted before this call are
    /// announced when [`IncrementList::taken`] has reached it.
    pub(crate) fn appended(&self) -> u64 {
        lock(&self.list).appended
    }

    /// Returns the number of entries taken so far.
    pub(crate) fn taken(&self) -> u64 {
        let list = lock(&self.list);
        list.appended - list.entries.len() as u64
    }
}
