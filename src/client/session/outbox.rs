//! A publisher's unsent entries in order of arrival, at most one per key.

use std::collections::{HashMap, VecDeque};

use super::entry::{Entry, EntryKey};

/// The queue of unsent entries.
#[derive(Debug)]
pub(super) struct Outbox {
    entries: VecDeque<Entry>,
    /// The position of the first entry. An entry keeps its position while others are taken or put
    /// back.
    first: u64,
    /// Position of each key's entry; unused without conflation.
    index: HashMap<EntryKey, u64>,
    conflate: bool,
}

impl Outbox {
    pub(super) fn new(conflate: bool) -> Self {
        // Far from both ends of the range, as entries are added and removed at both ends.
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

    /// Adds an entry at the end, or merges it into the entry with its key.
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

    /// Puts an entry back to the front, or merges it into the entry with its key.
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

    /// Returns whether an entry with this key is queued.
    pub(super) fn contains(&self, key: &EntryKey) -> bool {
        self.index.contains_key(key)
    }

    fn find(&self, key: &EntryKey) -> Option<usize> {
        if !self.conflate {
            return None;
        }
        let position = self.index.get(key)?;
        usize::try_from(position - self.first).ok()
    }
}
