//! What the other relays of a cluster know of a queue, and the list of queues with more (C1).
//!
//! The list's lock is a leaf, taken under an entry's lock: a notifier that finds its entry listed
//! also finds it in the length of the list. Plain data; `increments` has the rules.

use std::{collections::VecDeque, sync::Arc};

use super::{
    counters::Counters,
    sync::{AtomicU64, AtomicWaker, Mutex, lock},
};
use crate::base::clock::Tick;

/// What the other relays know of a queue.
#[derive(Debug)]
pub(super) struct Announced {
    pub(super) counters: Counters,
    /// The sequence of the newest timed wake-up; later causes may be resyncs. Without a cluster there
    /// are none.
    pub(super) timed: u64,
    /// When a listener here checked the queue, where the others are to be told of it.
    pub(super) checked: Option<Tick>,
    /// The others are told of no check before this time.
    pub(super) checked_from: Tick,
    /// The entry is in the list.
    pub(super) listed: bool,
}

/// The queues with increments, in the order of their first unannounced cause.
pub(super) struct IncrementList<E> {
    list: Mutex<List<E>>,
    /// Woken when a queue was appended.
    pub(super) waker: AtomicWaker,
    /// C11: the times that a queue's work was passed on to the other relays.
    pub(super) passed_on: AtomicU64,
}

struct List<E> {
    entries: VecDeque<Arc<E>>,
    /// The number of queues appended so far.
    appended: u64,
}

impl<E> IncrementList<E> {
    pub(super) fn new() -> Self {
        Self {
            list: Mutex::new(List {
                entries: VecDeque::new(),
                appended: 0,
            }),
            waker: AtomicWaker::new(),
            passed_on: AtomicU64::new(0),
        }
    }

    pub(super) fn append(&self, entry: &Arc<E>) {
        let mut list = lock(&self.list);
        list.entries.push_back(Arc::clone(entry));
        list.appended += 1;
    }

    pub(super) fn pop(&self) -> Option<Arc<E>> {
        lock(&self.list).entries.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.list).entries.is_empty()
    }

    /// Returns the number of entries appended so far.
    pub(super) fn appended(&self) -> u64 {
        lock(&self.list).appended
    }

    /// Returns the number of entries taken so far.
    pub(super) fn taken(&self) -> u64 {
        let list = lock(&self.list);
        list.appended - list.entries.len() as u64
    }
}
