//! Who listens on a queue outside of groups: a link for each subscription.
//!
//! Links keep their slots, so that a walk can be interrupted and a question can wait for one.

use std::sync::Arc;

use super::{record::CHUNK, subscription::Subscription};

/// A subscriber's entry: the subscription, and the index of its cursor for this queue.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) subscription: Arc<Subscription>,
    pub(super) cursor: usize,
}

/// Slots that keep their places, so that a walk can be interrupted.
#[derive(Default)]
pub(super) struct Links {
    slots: Vec<Option<Link>>,
    free: Vec<usize>,
}

impl Links {
    /// Returns how many slots there is room for, and how many free ones.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 2] {
        [self.slots.capacity(), self.free.capacity()]
    }

    /// Returns how many slots there are, empty ones among them.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Link> {
        self.slots.get(slot)?.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, link: Link) -> usize {
        if let Some(slot) = self.free.pop() {
            self.slots[slot] = Some(link);
            return slot;
        }
        self.slots.push(Some(link));
        self.slots.len() - 1
    }

    pub(super) fn remove(&mut self, slot: usize) {
        if self.slots[slot].take().is_some() {
            self.free.push(slot);
        }
        if self.len() == 0 {
            *self = Self::default();
        }
    }

    /// Copies the links from slot `from` on; returns the slot after the last, or `None` at the end.
    pub(super) fn copy(&self, from: usize, chunk: &mut [Option<Link>; CHUNK]) -> Option<usize> {
        let mut filled = 0;
        for (slot, link) in self.slots.iter().enumerate().skip(from) {
            let Some(link) = link else { continue };
            if filled == CHUNK {
                return Some(slot);
            }
            chunk[filled] = Some(link.clone());
            filled += 1;
        }
        None
    }
}

/// Wakes those that were chosen; with no lock held.
pub(super) fn mark(targets: &[Link]) {
    for link in targets {
        link.subscription.mark(link.cursor);
    }
}
