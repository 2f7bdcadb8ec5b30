//! Pattern nodes by their selectors: a queue finds the matching ones without visiting the others.
//!
//! Each part of a pattern is a name or a prefix. A look-up costs one table access for each length
//! of prefix, not one for each pattern. Plain data; `pattern_node` has its lock.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::pattern_node::PatternNode;
use crate::types::{QueueAddress, Selector};

/// The nodes of one pattern, one for each group.
type Nodes = Vec<Arc<PatternNode>>;

/// The nodes, by account part, then by queue part.
#[derive(Default)]
pub(super) struct PatternIndex(Parts<Parts<Nodes>>);

/// Values by one part of a selector.
struct Parts<T> {
    exact: HashMap<Box<str>, T>,
    beginnings: HashMap<Box<str>, T>,
    /// The number of prefixes of each length.
    lengths: BTreeMap<usize, usize>,
}

impl PatternIndex {
    /// Returns the list of a pattern's nodes; the caller removes an empty one.
    pub(super) fn nodes(&mut self, pattern: &Selector) -> &mut Nodes {
        let queues = self.0.entry(pattern.storage_account());
        queues.entry(pattern.queue_name())
    }

    /// Removes the list of a pattern's nodes.
    pub(super) fn remove(&mut self, pattern: &Selector) {
        let account = pattern.storage_account();
        let queues = self.0.entry(account);
        queues.remove(pattern.queue_name());
        if queues.is_empty() {
            self.0.remove(account);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the nodes that match a queue.
    pub(super) fn matching(&self, address: &QueueAddress) -> Nodes {
        let queues = self.0.known_by(address.storage_account());
        let nodes = queues.flat_map(|queues| queues.known_by(address.queue_name()));
        nodes.flatten().map(Arc::clone).collect()
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
