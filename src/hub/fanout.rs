//! Walks over the subscribers of queues that many listen on, apart from publishing.
//!
//! A notification of a queue with few subscribers wakes them itself. One with many is marked and
//! put here, at most once however many notifications follow, and whoever runs the hub walks it.
//! A walk clears the mark first (R5): what is notified during it marks the queue again.

use std::{collections::VecDeque, sync::Arc};

use super::{
    record::Record,
    sync::{AtomicWaker, Mutex, lock},
};

/// Records whose subscribers are to be walked.
pub(super) struct Fanout {
    marked: Mutex<VecDeque<Arc<Record>>>,
    /// Woken when a record was put here.
    pub(super) waker: AtomicWaker,
}

/// One walk, step by step, so that whoever runs it can breathe in between. Dropped before its end,
/// it leaves no mark behind: the next notification is walked again, and what this walk did not
/// tell is found by the next heartbeat (R6).
pub(crate) struct Walk {
    record: Arc<Record>,
    next: usize,
    ended: bool,
}

impl Fanout {
    pub(super) fn new() -> Self {
        Self {
            marked: Mutex::new(VecDeque::new()),
            waker: AtomicWaker::new(),
        }
    }

    pub(super) fn push(&self, record: Arc<Record>) {
        lock(&self.marked).push_back(record);
        self.waker.wake();
    }

    /// Returns how many records wait for a walk.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.marked).len()
    }

    pub(super) fn pop(&self) -> Option<Walk> {
        lock(&self.marked).pop_front().map(Walk::new)
    }
}

impl Walk {
    pub(super) fn new(record: Arc<Record>) -> Self {
        let (next, ended) = (0, false);
        Self {
            record,
            next,
            ended,
        }
    }

    /// Wakes the next few subscribers; returns whether there are more.
    pub(crate) fn step(&mut self) -> bool {
        match self.record.walk(self.next) {
            Some(next) => {
                self.next = next;
                true
            }
            None => {
                self.ended = true;
                false
            }
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        if !self.ended {
            self.record.unmark();
        }
    }
}
