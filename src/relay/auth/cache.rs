//! A bounded map of accepted credentials, by their digest. The oldest entry leaves first.
//!
//! Plain data: its owner holds the lock. Refused credentials are not kept, so that a flood of them
//! displaces nothing.

use std::collections::{HashMap, VecDeque};

use super::token::Digest;

#[derive(Debug)]
pub(super) struct CredentialCache<T> {
    entries: HashMap<Digest, T>,
    /// The digests of `entries`, the oldest first.
    order: VecDeque<Digest>,
}

/// About 1 MiB, without the principals.
pub(super) const MOST: usize = 4096;

impl<T> CredentialCache<T> {
    pub(super) fn get(&self, digest: &Digest) -> Option<&T> {
        self.entries.get(digest)
    }

    pub(super) fn insert(&mut self, digest: Digest, value: T) {
        if self.entries.insert(digest, value).is_some() {
            return;
        }
        self.order.push_back(digest);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
    }
}

impl<T> Default for CredentialCache<T> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: usize) -> Digest {
        let mut digest = Digest::default();
        digest[..8].copy_from_slice(&number.to_be_bytes());
        digest
    }

    #[test]
    fn the_oldest_entry_leaves_a_full_cache() {
        let mut cache = CredentialCache::default();
        for number in 0..=MOST {
            cache.insert(digest(number), number);
            cache.insert(digest(number), number);
        }
        assert_eq!((cache.entries.len(), cache.order.len()), (MOST, MOST));
        assert_eq!(cache.get(&digest(0)), None);
        assert_eq!(cache.get(&digest(1)), Some(&1));
    }
}
