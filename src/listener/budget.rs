//! The slots for dequeue tasks that the listeners of a process share.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::base::sync::lock;

/// Limits the dequeue tasks that work at one time, over all listeners that share it. Clones share
/// one budget. [`ListenerConfig::max_tasks`](super::ListenerConfig::max_tasks) is the limit of each
/// queue.
///
/// Tasks get free slots in the order in which they asked. A task of a queue that holds more slots
/// than a waiting queue gives its slot back between two batches. Sleeping tasks hold no slot.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    slots: usize,
    free: Arc<Semaphore>,
    next_queue: AtomicU64,
    /// Only queues that hold a slot or wait for one.
    queues: Mutex<HashMap<u64, Share>>,
}

/// The tasks of one queue that hold a slot, and those that wait for one.
#[derive(Debug, Default, PartialEq, Eq)]
struct Share {
    held: usize,
    waiting: usize,
}

/// A slot, or a request for one while there is no permit. Dropping it gives back or withdraws.
#[derive(Debug)]
pub(super) struct Slot {
    budget: Budget,
    queue: u64,
    permit: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// Makes a budget of `slots` dequeue tasks; 0 counts as 1.
    pub fn new(slots: usize) -> Self {
        let slots = slots.clamp(1, Semaphore::MAX_PERMITS);
        Self(Arc::new(Inner {
            slots,
            free: Arc::new(Semaphore::new(slots)),
            next_queue: AtomicU64::new(0),
            queues: Mutex::default(),
        }))
    }

    /// Makes a budget without a limit.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.0.slots
    }

    /// Returns a number for one more queue: two queues may have one address.
    pub(super) fn number(&self) -> u64 {
        self.0.next_queue.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for a slot.
    ///
    /// # Cancel safety
    /// Safe: dropping the future withdraws the request.
    pub(super) async fn acquire(&self, queue: u64) -> Slot {
        self.update(queue, |share| share.waiting += 1);
        let mut slot = Slot {
            budget: self.clone(),
            queue,
            permit: None,
        };
        let permit = Arc::clone(&self.0.free).acquire_owned().await;
        slot.permit = Some(permit.expect("never closed"));
        self.update(queue, |share| {
            share.waiting -= 1;
            share.held += 1;
        });
        slot
    }

    /// Returns whether a task of the queue must give its slot back between two batches: no slot is
    /// free, and another queue waits that holds none, or that would then hold no more than this queue
    /// keeps.
    pub(super) fn should_yield(&self, queue: u64) -> bool {
        if self.0.free.available_permits() > 0 {
            return false;
        }
        let queues = lock(&self.0.queues);
        let own = queues.get(&queue).map_or(0, |share| share.held);
        queues.iter().any(|(other, share)| {
            *other != queue && share.waiting > 0 && (share.held == 0 || share.held + 1 < own)
        })
    }

    fn update(&self, queue: u64, change: impl FnOnce(&mut Share)) {
        let mut queues = lock(&self.0.queues);
        let share = queues.entry(queue).or_default();
        change(share);
        if *share == Share::default() {
            queues.remove(&queue);
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::unlimited()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let held = self.permit.is_some();
        self.budget.update(self.queue, |share| {
            if held {
                share.held -= 1;
            } else {
                share.waiting -= 1;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_request_loses_no_slot() {
        let budget = Budget::new(0);
        assert_eq!(budget.slots(), 1);
        let slot = budget.acquire(1).await;
        {
            let waiting = budget.acquire(2);
            tokio::pin!(waiting);
            assert!(futures_util::poll!(&mut waiting).is_pending());
            drop(slot);
            // The slot is granted, and the request dropped before it takes the slot.
        }
        drop(budget.acquire(3).await);
        assert!(lock(&budget.0.queues).is_empty());
    }

    #[tokio::test]
    async fn no_queue_gives_back_while_a_slot_is_free() {
        let budget = Budget::new(2);
        let slot = budget.acquire(1).await;
        // Another queue has asked, and takes the free slot next.
        budget.update(2, |share| share.waiting += 1);
        assert!(!budget.should_yield(1));
        let _last = budget.acquire(3).await;
        assert!(budget.should_yield(1));
        drop(slot);
    }

    #[tokio::test]
    async fn a_queue_with_more_than_its_share_gives_back_between_two_batches() {
        let budget = Budget::new(2);
        let (one, two) = (budget.number(), budget.number());
        let first = budget.acquire(one).await;
        let second = budget.acquire(one).await;
        let own = budget.acquire(one);
        tokio::pin!(own);
        assert!(futures_util::poll!(&mut own).is_pending());
        assert!(!budget.should_yield(one), "no other queue waits");
        {
            let other = budget.acquire(two);
            tokio::pin!(other);
            assert!(futures_util::poll!(&mut other).is_pending());
            assert!(budget.should_yield(one));
            assert!(!budget.should_yield(two));
            drop(first);
            assert!(futures_util::poll!(&mut other).is_pending());
            assert!(futures_util::poll!(&mut own).is_ready(), "it asked first");
            drop(second);
            assert!(futures_util::poll!(&mut other).is_ready());
        }
        assert!(!budget.should_yield(one), "no other queue waits");
    }
}
