//! Pattern subscriptions by their selectors: a queue finds the matching ones without visiting the
//! others.
//!
//! Each part of a pattern is a name or a prefix. A look-up costs one table access for each length
//! of prefix, not one for each pattern. Plain data; the hub has its lock.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{mailbox::SubscriptionId, subscription::Subscription};
use crate::types::{QueueAddress, Selector};

type Matched = BTreeMap<SubscriptionId, Arc<Subscription>>;

/// The subscriptions, by account part, then by queue part.
#[derive(Default)]
pub(super) struct PatternIndex {
    accounts: Parts<Parts<Matched>>,
    /// The number of patterns.
    patterns: usize,
}

/// Values by one part of a selector.
struct Parts<T> {
    exact: HashMap<Box<str>, T>,
    beginnings: HashMap<Box<str>, T>,
    /// The number of prefixes of each length.
    lengths: BTreeMap<usize, usize>,
}

impl PatternIndex {
    pub(super) fn insert(&mut self, subscription: &Arc<Subscription>) {
        for pattern in subscription.patterns() {
            let queues = self.accounts.entry(pattern.storage_account());
            let matched = queues.entry(pattern.queue_name());
            matched.insert(subscription.id, Arc::clone(subscription));
            self.patterns += 1;
        }
    }

    pub(super) fn remove(&mut self, subscription: &Subscription) {
        for pattern in subscription.patterns() {
            self.patterns -= usize::from(self.remove_pattern(pattern, subscription.id));
        }
    }

    fn remove_pattern(&mut self, pattern: &Selector, id: SubscriptionId) -> bool {
        let (account, queue) = (pattern.storage_account(), pattern.queue_name());
        let Some(queues) = self.accounts.get_mut(account) else {
            return false;
        };
        let Some(matched) = queues.get_mut(queue) else {
            return false;
        };
        let removed = matched.remove(&id).is_some();
        if matched.is_empty() {
            queues.remove(queue);
        }
        if queues.is_empty() {
            self.accounts.remove(account);
        }
        removed
    }

    /// Returns the subscriptions with a matching pattern, each once, in the order of their ids.
    pub(super) fn matching(&self, address: &QueueAddress) -> Vec<Arc<Subscription>> {
        let mut all = Matched::new();
        if self.patterns > 0 {
            for matched in self.matched(address) {
                all.extend(matched.iter().map(|(id, one)| (*id, Arc::clone(one))));
            }
        }
        all.into_values().collect()
    }

    pub(super) fn matches(&self, address: &QueueAddress) -> bool {
        self.patterns > 0 && self.matched(address).next().is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.patterns == 0
    }

    /// Returns the subscriptions of each matching pattern.
    fn matched(&self, address: &QueueAddress) -> impl Iterator<Item = &Matched> {
        let queues = self.accounts.known_by(address.storage_account());
        queues.flat_map(|queues| queues.known_by(address.queue_name()))
    }

    /// Returns whether the subscription is in the index, with all of its patterns.
    pub(super) fn contains(&self, subscription: &Subscription) -> bool {
        subscription.patterns().next().is_some_and(|pattern| {
            let queues = self.accounts.get(pattern.storage_account());
            let matched = queues.and_then(|queues| queues.get(pattern.queue_name()));
            matched.is_some_and(|matched| matched.contains_key(&subscription.id))
        })
    }
}

impl<T: Default> Parts<T> {
    fn entry(&mut self, part: &str) -> &mut T {
        let Some(beginning) = part.strip_suffix('*') else {
            return self.exact.entry(part.into()).or_default();
        };
        if !self.beginnings.contains_key(beginning) {
            *self.lengths.entry(beginning.len()).or_default() += 1;
        }
        self.beginnings.entry(beginning.into()).or_default()
    }

    fn get(&self, part: &str) -> Option<&T> {
        match part.strip_suffix('*') {
            Some(beginning) => self.beginnings.get(beginning),
            None => self.exact.get(part),
        }
    }

    fn get_mut(&mut self, part: &str) -> Option<&mut T> {
        match part.strip_suffix('*') {
            Some(beginning) => self.beginnings.get_mut(beginning),
            None => self.exact.get_mut(part),
        }
    }

    fn remove(&mut self, part: &str) {
        let Some(beginning) = part.strip_suffix('*') else {
            self.exact.remove(part);
            return;
        };
        if self.beginnings.remove(beginning).is_some()
            && let Some(count) = self.lengths.get_mut(&beginning.len())
        {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&beginning.len());
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.beginnings.is_empty()
    }

    /// Returns the values of this name and of its prefixes.
    fn known_by(&self, name: &str) -> impl Iterator<Item = &T> {
        // Names are ASCII, so every length is a boundary of characters.
        let beginnings = self.lengths.keys().map_while(|length| name.get(..*length));
        let by_beginning = beginnings.filter_map(|beginning| self.beginnings.get(beginning));
        self.exact.get(name).into_iter().chain(by_beginning)
    }
}

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self {
            exact: HashMap::new(),
            beginnings: HashMap::new(),
            lengths: BTreeMap::new(),
        }
    }
}
