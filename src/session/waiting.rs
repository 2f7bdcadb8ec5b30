//! What waits to be sent, in its order; found by queue and time where it is conflated.
//!
//! Without conflation nothing is looked up or hashed: a burst's entries go in at one end and out at
//! the other.

use std::collections::{
    HashMap, VecDeque,
    hash_map::Entry::{Occupied, Vacant},
};

use super::entry::{Entry, Key};

/// The entries that wait.
#[derive(Debug)]
pub(super) struct Waiting {
    entries: VecDeque<Entry>,
    /// The number of each key's entry; `None` where nothing is conflated.
    numbers: Option<HashMap<Key, u64>>,
    /// The number of the first entry. Moves both ways and wraps: only differences are used.
    first: u64,
}

impl Waiting {
    pub(super) fn new(conflate: bool) -> Self {
        Self {
            entries: VecDeque::new(),
            numbers: conflate.then(HashMap::new),
            first: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn front(&self) -> Option<&Entry> {
        self.entries.front()
    }

    pub(super) fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.first = self.first.wrapping_add(1);
        if let Some(numbers) = &mut self.numbers {
            numbers.remove(&entry.key);
        }
        Some(entry)
    }

    /// Puts an entry at one end, or into the one that waits for the same. Returns where it is now,
    /// and, where two have become one, the later of their first submissions.
    pub(super) fn put(&mut self, entry: Entry, front: bool) -> (&mut Entry, Option<u64>) {
        let number = match front {
            true => self.first.wrapping_sub(1),
            false => self.first.wrapping_add(self.entries.len() as u64),
        };
        if let Some(numbers) = &mut self.numbers {
            match numbers.entry(entry.key.clone()) {
                Occupied(found) => {
                    let at = found.get().wrapping_sub(self.first);
                    let at = usize::try_from(at).expect("it is the number of an entry");
                    let found = &mut self.entries[at];
                    let later = found.oldest.max(entry.oldest);
                    found.merge(entry);
                    return (found, Some(later));
                }
                Vacant(place) => {
                    place.insert(number);
                }
            }
        }
        let at = if front {
            self.first = number;
            self.entries.push_front(entry);
            0
        } else {
            self.entries.push_back(entry);
            self.entries.len() - 1
        };
        (&mut self.entries[at], None)
    }
}
