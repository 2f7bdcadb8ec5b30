//! Slots that the listeners of a process share.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::oneshot;

use crate::scaling::{Slots, Ticket};

/// How many dequeue tasks may be at work at one time, over all listeners that share it. Cloning it
/// shares it.
///
/// A free slot goes to the queue that holds the fewest. A listener that finds none keeps what it was
/// woken for, and a task of the busiest queue gives its slot back between two batches. Tasks that
/// sleep hold none.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    slots: Mutex<Slots<oneshot::Sender<()>>>,
    next: AtomicU64,
}

/// A slot; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    budget: Budget,
    queue: u64,
}

/// A request in the line; leaves it when it is dropped.
struct InLine<'a> {
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

    /// Makes a budget that never keeps anybody waiting.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// Returns how many slots there are.
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
    /// Whoever gives up leaves the line.
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
            (slots.ask(queue, granted), wait)
        };
        let in_line = InLine {
            budget: self,
            ticket,
            queue,
        };
        // The sender is kept until the slot was granted.
        let _ = wait.await;
        std::mem::forget(in_line);
        slot()
    }

    /// Returns whether the queue's task is to give its slot back between two batches.
    pub(super) fn should_yield(&self, queue: u64) -> bool {
        self.lock().should_yield(queue)
    }

    fn lock(&self) -> MutexGuard<'_, Slots<oneshot::Sender<()>>> {
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::unlimited()
    }
}

fn grant(slots: &mut Slots<oneshot::Sender<()>>) {
    while let Some(granted) = slots.grant() {
        // A request that was given up finds that out by itself, and gives the slot back.
        let _ = granted.send(());
    }
}

impl Drop for InLine<'_> {
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
    async fn whoever_gives_up_waiting_loses_no_slot() {
        let budget = Budget::new(1);
        let slot = budget.acquire(1).await;
        {
            let waiting = budget.acquire(2);
            tokio::pin!(waiting);
            assert!(futures_util::poll!(&mut waiting).is_pending());
            drop(slot);
            // Granted, and given up before it was taken.
        }
        drop(budget.acquire(3).await);
    }

    #[tokio::test]
    async fn a_slot_goes_round_among_those_who_wait() {
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
