//! What a publisher has still to send, in the order in which it came, at most one entry a key.

use std::collections::{HashMap, VecDeque};

use super::entry::{Entry, Key};

/// The entries that wait.
#[derive(Debug)]
pub(super) struct Pending {
    entries: VecDeque<Entry>,
    /// The position of the first entry; positions go on counting whatever is taken or put back.
    first: u64,
    /// Where each key's entry is; unused where nothing is conflated.
    index: HashMap<Key, u64>,
    conflate: bool,
}

impl Pending {
    pub(super) fn new(conflate: bool) -> Self {
        // Far from both ends of the numbers, as entries come and go at both ends.
        let first = 1 << 63;
        Self {
            entries: VecDeque::new(),
            first,
            index: HashMap::new(),
            conflate,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut()
    }

    pub(super) fn front(&self) -> Option<&Entry> {
        self.entries.front()
    }

    pub(super) fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.first += 1;
        if self.conflate {
            self.index.remove(&entry.key);
        }
        Some(entry)
    }

    /// Adds an entry at the end, or to the one that waits for the same.
    pub(super) fn push(&mut self, entry: Entry) {
        if let Some(at) = self.find(&entry.key) {
            self.entries[at].merge(entry);
            return;
        }
        if self.conflate {
            let position = self.first + self.entries.len() as u64;
            self.index.insert(entry.key.clone(), position);
        }
        self.entries.push_back(entry);
    }

    /// Puts an entry back to the front, or to the one that waits for the same.
    pub(super) fn put_back(&mut self, entry: Entry) {
        if let Some(at) = self.find(&entry.key) {
            self.entries[at].merge(entry);
            return;
        }
        self.first -= 1;
        if self.conflate {
            self.index.insert(entry.key.clone(), self.first);
        }
        self.entries.push_front(entry);
    }

    /// Returns whether an entry waits that would be conflated with this one.
    pub(super) fn holds(&self, key: &Key) -> bool {
        self.index.contains_key(key)
    }

    fn find(&self, key: &Key) -> Option<usize> {
        if !self.conflate {
            return None;
        }
        let position = self.index.get(key)?;
        usize::try_from(position - self.first).ok()
    }
}
