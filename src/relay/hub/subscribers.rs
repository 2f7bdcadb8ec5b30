//! The subscribers of a queue outside of groups.
//!
//! Each has a key that never changes and is never reused. So a walk can be interrupted, and a check
//! can wait for a subscriber. Keys grow, so the list stays sorted; it shrinks when half of it is
//! empty.

use std::sync::Arc;

use super::mailbox::{Mailbox, WakeBatch};

/// A subscription's cursor on a queue.
#[derive(Clone)]
pub(super) struct Subscriber {
    pub(super) mailbox: Arc<Mailbox>,
    /// The cursor's number in the subscription.
    pub(super) cursor: u32,
    /// Only a pattern matches the queue.
    pub(super) by_pattern: bool,
}

/// The subscribers by key.
#[derive(Default)]
pub(super) struct Subscribers {
    entries: Vec<(u64, Option<Subscriber>)>,
    removed: usize,
    next_key: u64,
}

impl Subscribers {
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Returns how many have joined so far.
    pub(super) fn joined(&self) -> u64 {
        self.next_key
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.removed
    }

    pub(super) fn insert(&mut self, subscriber: Subscriber) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        self.entries.push((key, Some(subscriber)));
        key
    }

    pub(super) fn remove(&mut self, key: u64) {
        let Ok(at) = self.entries.binary_search_by_key(&key, |(key, _)| *key) else {
            return;
        };
        self.removed += usize::from(self.entries[at].1.take().is_some());
        if self.removed * 2 > self.entries.len() {
            self.entries.retain(|(_, subscriber)| subscriber.is_some());
            self.entries.shrink_to(self.entries.len() * 2);
            self.removed = 0;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Subscriber> {
        self.entries.iter().filter_map(|(_, one)| one.as_ref())
    }

    /// Returns all of them in turn, from the one after this key on.
    pub(super) fn in_turn(&self, after: Option<u64>) -> impl Iterator<Item = (u64, &Subscriber)> {
        let from = after.map_or(0, |key| self.position_after(key));
        let (before, after) = self.entries.split_at(from);
        let all = after.iter().chain(before);
        all.filter_map(|(key, one)| Some((*key, one.as_ref()?)))
    }

    /// Marks up to `limit` subscribers with keys from `from` on; returns the next key, or `None` at
    /// the end.
    pub(super) fn mark(&self, from: u64, limit: usize, batch: &mut WakeBatch) -> Option<u64> {
        let at = match from {
            0 => 0,
            from => self.position_after(from - 1),
        };
        let mut marked = 0;
        for (key, subscriber) in &self.entries[at..] {
            let Some(subscriber) = subscriber else {
                continue;
            };
            if marked == limit {
                return Some(*key);
            }
            batch.mark(&subscriber.mailbox, subscriber.cursor);
            marked += 1;
        }
        None
    }

    fn position_after(&self, key: u64) -> usize {
        self.entries.partition_point(|(other, _)| *other <= key)
    }
}
