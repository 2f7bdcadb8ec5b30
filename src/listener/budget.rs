//! Slots that the listeners of a process share.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
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
    state: Mutex<State>,
    next: AtomicU64,
}

#[derive(Debug)]
struct State {
    slots: Slots,
    waiting: HashMap<u64, oneshot::Sender<()>>,
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
            state: Mutex::new(State {
                slots: Slots::new(slots),
                waiting: HashMap::new(),
            }),
            next: AtomicU64::new(1),
        }))
    }

    /// Makes a budget that never keeps anybody waiting.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// Returns how many slots there are.
    pub fn slots(&self) -> usize {
        self.lock().slots.total()
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
        let ticket = Ticket(self.number());
        let (granted, wait) = oneshot::channel();
        {
            let mut state = self.lock();
            state.slots.ask(ticket, queue);
            state.waiting.insert(ticket.0, granted);
            state.grant();
        }
        let in_line = InLine {
            budget: self,
            ticket,
            queue,
        };
        // The sender is kept until the slot was granted.
        let _ = wait.await;
        std::mem::forget(in_line);
        Slot {
            budget: self.clone(),
            queue,
        }
    }

    /// Returns whether the queue's task is to give its slot back between two batches.
    pub(super) fn should_yield(&self, queue: u64) -> bool {
        self.lock().slots.should_yield(queue)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::unlimited()
    }
}

impl State {
    fn grant(&mut self) {
        while let Some(ticket) = self.slots.grant() {
            if let Some(granted) = self.waiting.remove(&ticket.0) {
                // Whoever has given up finds that out by itself, and gives the slot back.
                let _ = granted.send(());
            }
        }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.waiting.remove(&self.ticket.0);
        if !state.slots.withdraw(self.ticket) {
            state.slots.give_back(self.queue);
            state.grant();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.slots.give_back(self.queue);
        state.grant();
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
