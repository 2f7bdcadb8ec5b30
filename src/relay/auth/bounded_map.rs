//! A map of bounded size: a new entry displaces the oldest one when the map is full.
//!
//! Plain data: its owner holds the lock.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

#[derive(Debug)]
pub(super) struct BoundedMap<K, V> {
    max: usize,
    /// With the number of each entry.
    entries: HashMap<K, (u64, V)>,
    /// The keys by number, so the oldest first.
    order: BTreeMap<u64, K>,
    next: u64,
}

impl<K: Copy + Eq + Hash, V> BoundedMap<K, V> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            entries: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    /// Adds an entry as the newest one; replaces one with the same key.
    pub(super) fn insert(&mut self, key: K, value: V) {
        self.remove(&key);
        if self.entries.len() >= self.max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.order.insert(self.next, key);
        self.entries.insert(key, (self.next, value));
        self.next += 1;
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (number, value) = self.entries.remove(key)?;
        self.order.remove(&number);
        Some(value)
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entry_leaves_a_full_map() {
        let mut map = BoundedMap::new(3);
        for number in 0..3 {
            map.insert(number, number);
        }
        // Again as the newest.
        map.insert(0, 10);
        map.insert(3, 3);
        assert_eq!(map.get(&1), None);
        assert_eq!((map.get(&0), map.get(&2)), (Some(&10), Some(&2)));
        assert_eq!(map.remove(&2), Some(2));
        map.insert(4, 4);
        assert_eq!(map.get(&0), Some(&10), "there was room");
        assert_eq!((map.entries.len(), map.order.len()), (3, 3));
    }
}
