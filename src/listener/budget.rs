//! The slots for dequeue tasks that the listeners of a process share.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::oneshot;

use crate::{
    base::sync::lock,
    listener::scaling::{Slots, Ticket},
};

/// Limits the dequeue tasks that work at one time, over all listeners that share it. Clones share
/// one budget.
///
/// A free slot goes to the queue that holds the fewest slots. A listener without a slot keeps its
/// pending wake-up, and a task of the busiest queue gives its slot back between two batches.
/// Sleeping tasks hold no slot.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    slots: Mutex<Slots<oneshot::Sender<()>>>,
    next: AtomicU64,
}

/// A slot; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Slot {
    budget: Budget,
    queue: u64,
}

/// A waiting request; dropping it withdraws it.
struct WaitingRequest<'a> {
    budget: &'a Budget,
    ticket: Ticket,
    queue: u64,
}

impl Budget {
    /// Makes a budget of `slots` dequeue tasks; 0 counts as 1.
    pub fn new(slots: usize) -> Self {
        Self(Arc::new(Inner {
            slots: Mutex::new(Slots::new(slots)),
            next: AtomicU64::new(1),
        }))
    }

    /// Makes a budget without a limit.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.lock().total()
    }

    /// Returns a number for one more queue.
    pub(super) fn number(&self) -> u64 {
        self.0.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for a slot.
    ///
    /// # Cancel safety
    /// Safe: dropping the future withdraws the request.
    pub(super) async fn acquire(&self, queue: u64) -> Slot {
        let slot = || Slot {
            budget: self.clone(),
            queue,
        };
        let (ticket, wait) = {
            let mut slots = self.lock();
            if slots.take(queue) {
                return slot();
            }
            let (granted, wait) = oneshot::channel();
            (slots.enqueue(queue, granted), wait)
        };
        let waiting = WaitingRequest {
            budget: self,
            ticket,
            queue,
        };
        // The sender is kept until the slot is granted.
        let _ = wait.await;
        std::mem::forget(waiting);
        slot()
    }

    /// Returns whether a task of the queue must give its slot back between two batches.
    pub(super) fn should_yield(&self, queue: u64) -> bool {
        self.lock().should_yield(queue)
    }

    fn lock(&self) -> MutexGuard<'_, Slots<oneshot::Sender<()>>> {
        lock(&self.0.slots)
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::unlimited()
    }
}

fn grant(slots: &mut Slots<oneshot::Sender<()>>) {
    while let Some(granted) = slots.grant() {
        // A request that was dropped gives the slot back itself.
        let _ = granted.send(());
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        let mut slots = self.budget.lock();
        if !slots.withdraw(self.ticket) {
            slots.give_back(self.queue);
            grant(&mut slots);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.budget.lock();
        slots.give_back(self.queue);
        grant(&mut slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_request_loses_no_slot() {
        let budget = Budget::new(1);
        let slot = budget.acquire(1).await;
        {
            let waiting = budget.acquire(2);
            tokio::pin!(waiting);
            assert!(futures_util::poll!(&mut waiting).is_pending());
            drop(slot);
            // The slot is granted, and the request dropped before it takes the slot.
        }
        drop(budget.acquire(3).await);
    }

    #[tokio::test]
    async fn a_slot_goes_round_among_waiting_queues() {
        let budget = Budget::new(1);
        let first = budget.acquire(1).await;
        assert!(!budget.should_yield(1));
        let other = budget.clone();
        let second = tokio::spawn(async move { drop(other.acquire(2).await) });
        while !budget.should_yield(1) {
            tokio::task::yield_now().await;
        }
        drop(first);
        second.await.expect("served");
    }
}
