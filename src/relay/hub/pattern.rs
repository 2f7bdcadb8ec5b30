//! The patterns that have subscriptions: a node for each distinct pattern and group.
//!
//! A queue keeps the nodes that match it, and looks them up again when a node got its first subscription
//! or lost its last (`version`). So a subscription of a known pattern costs one entry in one list, whatever
//! the number of queues, and a pattern holds no queue. R4: a subscription is in its nodes before it looks at the queues of
//! the map, and a new queue is in the map before it looks for its nodes. A queue finds its nodes without a
//! visit of the others: each part of a pattern is a name or a prefix, and a look-up costs one table access
//! for each length of prefix.
//!
//! States of a node:
//!
//! * `is_needed`: some queue of the pattern is covered by a check under the pattern's own name only
//!   (`checks`): its entry was forgotten, had no room, or was not introduced.
//! * `waiting`: queues whose group waits for a member. A queue is listed before it looks for a member once
//!   more, and a member is in the list before it visits the waiting queues, so one of them finds the other.
//! * `is_introduced`: a member has visited the queues that were known before the node, up to a limit. Those
//!   who join before that visit them as well. The search for idle queues visits the others.
//!
//! A node ends with its last subscription. What waited in its lists is covered by the first check of the
//! next one (`checks`).
//!
//! Locks: the index and a node's lists are taken also under an entry's lock, and inboxes under a list.

pub(super) mod checks;

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, Weak},
};

use super::{
    listeners::Subscribers,
    pattern_checks::PatternCheck,
    queue::QueueEntry,
    subscription::Subscription,
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, RwLock, lock, read, write},
};
use crate::types::{GroupName, QueueAddress, Selector};

/// One pattern, with the subscriptions of one group or of none.
pub(super) struct PatternNode {
    /// Its place in the order of nodes.
    pub(super) number: u64,
    pub(super) selector: Selector,
    pub(super) group: Option<GroupName>,
    subscribers: Mutex<Subscribers>,
    len: AtomicU64,
    /// Some queue is checked under the pattern's own name only.
    is_needed: AtomicU64,
    /// A member of the group has visited the queues that were known before the node.
    is_introduced: AtomicU64,
    /// The messages that all subscriptions take at once, and how many have joined.
    capacity: AtomicU64,
    joined: AtomicU64,
    /// The queues whose group waits for a member.
    waiting: Mutex<BTreeMap<u64, Weak<QueueEntry>>>,
    pub(super) check: Mutex<PatternCheck>,
}

/// All nodes.
pub(crate) struct Patterns {
    index: RwLock<PatternIndex>,
    /// Grows when a node gets its first subscription, or loses its last. A new queue has looked up
    /// version 0.
    version: AtomicU64,
    /// Grows with each subscription of a pattern.
    joined: AtomicU64,
}

impl PatternNode {
    fn new(selector: &Selector, group: Option<&GroupName>, number: u64) -> Self {
        Self {
            number,
            selector: selector.clone(),
            group: group.cloned(),
            subscribers: Mutex::default(),
            len: AtomicU64::new(0),
            is_needed: AtomicU64::new(0),
            is_introduced: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
            joined: AtomicU64::new(0),
            waiting: Mutex::default(),
            check: Mutex::new(PatternCheck::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        usize::try_from(self.len.load(Ordering::Acquire)).unwrap_or(usize::MAX)
    }

    /// Locks the list of its subscriptions.
    pub(super) fn lock(&self) -> MutexGuard<'_, Subscribers> {
        lock(&self.subscribers)
    }

    pub(super) fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Relaxed) > 0
    }

    /// Some queue has no entry, or no room in a subscription: only the pattern's own name covers it.
    pub(super) fn set_needed(&self) {
        if !self.is_needed() {
            self.is_needed.store(1, Ordering::Relaxed);
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Acquire)
    }

    /// Returns a number that grows after each new subscription.
    pub(super) fn joined(&self) -> u64 {
        self.joined.load(Ordering::Acquire)
    }

    /// A queue's group waits for a member, which is looked for once more after this: one that joins is
    /// in the list before it looks at the waiting queues.
    pub(super) fn add_waiting(&self, entry: &Arc<QueueEntry>) {
        lock(&self.waiting).insert(entry.number(), Arc::downgrade(entry));
    }

    pub(super) fn remove_waiting(&self, entry: &QueueEntry) {
        lock(&self.waiting).remove(&entry.number());
    }

    /// Returns up to `count` waiting queues, after the one with this number.
    pub(super) fn waiting_after(&self, number: Option<u64>, count: usize) -> Vec<Arc<QueueEntry>> {
        let from = number.map_or(Bound::Unbounded, Bound::Excluded);
        let waiting = lock(&self.waiting);
        let some = waiting.range((from, Bound::Unbounded));
        let some = some.filter_map(|(_, entry)| entry.upgrade());
        some.take(count).collect()
    }

    /// Returns whether a member has visited the queues that were known when the node was made.
    pub(super) fn is_introduced(&self) -> bool {
        self.is_introduced.load(Ordering::Acquire) > 0
    }

    pub(super) fn set_introduced(&self) {
        self.is_introduced.store(1, Ordering::Release);
    }

    fn insert(&self, subscription: &Arc<Subscription>) {
        let mut all = self.lock();
        if all.insert(subscription) {
            let capacity = u64::from(subscription.mailbox.capacity);
            self.capacity.fetch_add(capacity, Ordering::AcqRel);
        }
        self.len.store(all.len() as u64, Ordering::Release);
        self.joined.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether no subscription is left.
    fn remove(&self, subscription: &Subscription) -> bool {
        let mut all = self.lock();
        if all.remove(subscription.id) {
            let capacity = u64::from(subscription.mailbox.capacity);
            self.capacity.fetch_sub(capacity, Ordering::AcqRel);
        }
        self.len.store(all.len() as u64, Ordering::Release);
        all.len() == 0
    }
}

impl Patterns {
    pub(super) fn new() -> Self {
        Self {
            index: RwLock::new(PatternIndex::default()),
            version: AtomicU64::new(1),
            joined: AtomicU64::new(1),
        }
    }

    /// Returns whether no pattern has a subscription.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        read(&self.index).all.is_empty()
    }

    /// Returns the version of the nodes. A queue that has looked up this one knows all its nodes.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns a number that grows after each new subscription of a pattern is in its nodes.
    pub(super) fn joined(&self) -> u64 {
        self.joined.load(Ordering::Acquire)
    }

    /// Returns the nodes that match a queue.
    pub(super) fn matching(&self, queue: &QueueAddress) -> Vec<Arc<PatternNode>> {
        read(&self.index).matching(queue)
    }

    /// Returns the nodes of a subscription's patterns.
    pub(super) fn of(&self, subscription: &Subscription) -> Vec<Arc<PatternNode>> {
        read(&self.index).of(subscription)
    }

    /// Returns up to `count` nodes after the one with this number.
    pub(super) fn some_after(&self, number: Option<u64>, count: usize) -> Vec<Arc<PatternNode>> {
        let from = number.map_or(Bound::Unbounded, Bound::Excluded);
        let all = &read(&self.index).all;
        let some = all.range((from, Bound::Unbounded)).take(count);
        some.map(|(_, node)| Arc::clone(node)).collect()
    }

    /// Adds a subscription to the nodes of its patterns, which it makes where they are missing.
    pub(super) fn join(&self, subscription: &Arc<Subscription>) -> Vec<Arc<PatternNode>> {
        let mut index = write(&self.index);
        let mut nodes = Vec::new();
        let mut is_changed = false;
        for pattern in subscription.patterns() {
            let node = index.get_or_make(pattern, subscription.group.as_ref());
            is_changed |= node.len() == 0;
            node.insert(subscription);
            nodes.push(node);
        }
        if is_changed {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        self.joined.fetch_add(1, Ordering::AcqRel);
        nodes
    }

    /// Removes a subscription from its nodes; returns these.
    pub(super) fn leave(&self, subscription: &Subscription) -> Vec<Arc<PatternNode>> {
        let mut index = write(&self.index);
        let nodes = index.of(subscription);
        let mut is_changed = false;
        for node in &nodes {
            if node.remove(subscription) {
                index.remove(node);
                is_changed = true;
            }
        }
        if is_changed {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        nodes
    }
}

/// The nodes of one pattern, one for each group.
type Nodes = Vec<Arc<PatternNode>>;

/// The nodes.
#[derive(Default)]
struct PatternIndex {
    /// By account part, then by queue part.
    parts: Parts<Parts<Nodes>>,
    /// In the order in which they were made.
    all: BTreeMap<u64, Arc<PatternNode>>,
    made: u64,
}

/// Values by one part of a selector: those of names, and by the length of the prefix those of prefixes.
#[derive(Default)]
struct Parts<T>(BTreeMap<Option<usize>, HashMap<Box<str>, T>>);

impl PatternIndex {
    fn get_or_make(&mut self, pattern: &Selector, group: Option<&GroupName>) -> Arc<PatternNode> {
        let queues = self.parts.entry(pattern.storage_account());
        let nodes = queues.entry(pattern.queue_name());
        if let Some(known) = nodes.iter().find(|node| node.group.as_ref() == group) {
            return Arc::clone(known);
        }
        self.made += 1;
        let node = Arc::new(PatternNode::new(pattern, group, self.made));
        self.all.insert(self.made, Arc::clone(&node));
        nodes.push(Arc::clone(&node));
        node
    }

    fn of(&self, subscription: &Subscription) -> Nodes {
        let nodes = subscription.patterns().iter().filter_map(|pattern| {
            let queues = self.parts.get(pattern.storage_account())?;
            let mut nodes = queues.get(pattern.queue_name())?.iter();
            nodes.find(|node| node.group == subscription.group).cloned()
        });
        nodes.collect()
    }

    /// The node has lost its last subscription.
    fn remove(&mut self, node: &PatternNode) {
        let (account, queue) = (node.selector.storage_account(), node.selector.queue_name());
        let queues = self.parts.entry(account);
        let nodes = queues.entry(queue);
        nodes.retain(|one| one.number != node.number);
        if nodes.is_empty() {
            queues.remove(queue);
        }
        if queues.0.is_empty() {
            self.parts.remove(account);
        }
        self.all.remove(&node.number);
    }

    /// Returns the nodes that match a queue.
    fn matching(&self, address: &QueueAddress) -> Nodes {
        let queues = self.parts.known_by(address.storage_account());
        let nodes = queues.flat_map(|queues| queues.known_by(address.queue_name()));
        nodes.flatten().map(Arc::clone).collect()
    }
}

impl<T: Default> Parts<T> {
    fn entry(&mut self, part: &str) -> &mut T {
        let (length, text) = table_of(part);
        let table = self.0.entry(length).or_default();
        table.entry(text.into()).or_default()
    }

    fn get(&self, part: &str) -> Option<&T> {
        let (length, text) = table_of(part);
        self.0.get(&length)?.get(text)
    }

    fn remove(&mut self, part: &str) {
        let (length, text) = table_of(part);
        if let Some(table) = self.0.get_mut(&length) {
            table.remove(text);
            if table.is_empty() {
                self.0.remove(&length);
            }
        }
    }

    /// Returns the values of this name and of its prefixes.
    fn known_by(&self, name: &str) -> impl Iterator<Item = &T> {
        // Names are ASCII, so every length is a boundary of characters.
        let found = self.0.iter().map_while(move |(length, table)| {
            let text = length.map_or(Some(name), |length| name.get(..length))?;
            Some(table.get(text))
        });
        found.flatten()
    }
}

/// Returns the table of a selector's part, and its key there.
fn table_of(part: &str) -> (Option<usize>, &str) {
    match part.strip_suffix('*') {
        Some(beginning) => (Some(beginning.len()), beginning),
        None => (None, part),
    }
}
