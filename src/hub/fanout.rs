//! Walks over the subscribers of queues that many listen on, apart from publishing.
//!
//! A notification of a queue with few subscribers wakes them itself. One with many is marked and
//! put here, at most once however many notifications follow, and whoever runs the hub walks it.
//! A walk clears the mark first (R5): what is notified during it marks the queue again.

use std::{collections::VecDeque, sync::Arc};

use super::{
    mailbox::WakeBatch,
    overflow::Overflow,
    record::Record,
    sync::{AtomicWaker, Mutex, lock},
};

/// Records whose subscribers are to be walked.
pub(super) struct Fanout {
    marked: Mutex<VecDeque<Arc<Record>>>,
    /// Subscriptions that walks tell besides those of the record.
    pub(super) overflow: Arc<Overflow>,
    /// Woken when a record was put here.
    pub(super) waker: AtomicWaker,
}

/// One walk, step by step, so that whoever runs it can breathe in between. Dropped before its end,
/// it leaves no mark behind: the next notification is walked again, and what this walk did not
/// tell is found by the next heartbeat (R6).
pub(crate) struct Walk {
    record: Arc<Record>,
    overflow: Arc<Overflow>,
    next: u64,
    ended: bool,
}

impl Fanout {
    pub(super) fn new() -> Self {
        Self {
            marked: Mutex::new(VecDeque::new()),
            overflow: Arc::new(Overflow::new()),
            waker: AtomicWaker::new(),
        }
    }

    /// Adds records, all at once: their walks are one batch then.
    pub(super) fn extend(&self, records: impl Iterator<Item = Arc<Record>>) {
        lock(&self.marked).extend(records);
        self.waker.wake();
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.marked).is_empty()
    }

    /// Returns how many records wait for a walk.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.marked).len()
    }

    pub(super) fn pop(&self) -> Option<Walk> {
        let record = lock(&self.marked).pop_front()?;
        Some(Walk::new(record, Arc::clone(&self.overflow)))
    }
}

impl Walk {
    fn new(record: Arc<Record>, overflow: Arc<Overflow>) -> Self {
        let (next, ended) = (0, false);
        Self {
            record,
            overflow,
            next,
            ended,
        }
    }

    /// Marks the next few subscribers; returns whether there are more. They are woken with the batch,
    /// which may hold the marks of several walks: a stream of many queues is woken once for them.
    pub(crate) fn step(&mut self, batch: &mut WakeBatch) -> bool {
        match self.record.walk(self.next, batch) {
            Some(next) => {
                self.next = next;
                true
            }
            None => {
                self.overflow.tell(&self.record, batch);
                self.ended = true;
                false
            }
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        if !self.ended || cfg!(test) {
            self.record.unmark(self.ended);
        }
        if !self.ended {
            // These have no cursor that a heartbeat could compare.
            self.overflow.tell(&self.record, &mut WakeBatch::default());
        }
    }
}
