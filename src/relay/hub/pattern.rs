//! The patterns that have subscriptions: a node for each distinct pattern and group.
//!
//! A queue keeps the nodes that match it, and looks them up again when a node was made or has ended
//! (`version`). So a subscription of a known pattern costs one entry in one list, whatever the number of
//! queues, and a pattern holds no queue. R4: a subscription is in its nodes before it looks at the queues of
//! the map, and a new queue is in the map before it looks for its nodes. A queue finds its nodes without a
//! visit of the others: each part of a pattern is a name or a prefix, and a look-up costs one table access
//! for each pair of lengths of these prefixes.
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
    /// Its place in the order of nodes: the version before it was made.
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
    /// Grows when a node is made or has ended, and is the number of the next one. A new queue has looked up
    /// version 0.
    version: AtomicU64,
    /// Grows with each subscription of a pattern.
    joined: AtomicU64,
}

impl PatternNode {
    fn new(selector: &Selector, group: Option<GroupName>, number: u64) -> Self {
        Self {
            number,
            selector: selector.clone(),
            group,
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

    /// Returns up to `count` waiting queues, from this number on.
    pub(super) fn waiting_from(&self, number: u64, count: usize) -> Vec<Arc<QueueEntry>> {
        let waiting = lock(&self.waiting);
        let some = waiting.range(number..);
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
        all.insert(subscription);
        let capacity = u64::from(subscription.mailbox.capacity);
        self.capacity.fetch_add(capacity, Ordering::AcqRel);
        self.len.store(all.len() as u64, Ordering::Release);
        self.joined.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether no subscription is left.
    fn remove(&self, subscription: &Subscription) -> bool {
        let mut all = self.lock();
        all.remove(subscription.id);
        let capacity = u64::from(subscription.mailbox.capacity);
        self.capacity.fetch_sub(capacity, Ordering::AcqRel);
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

    /// Returns the nodes that match a queue: its address in each shape is the text of one pattern.
    pub(super) fn matching(&self, address: &QueueAddress) -> Nodes {
        let index = read(&self.index);
        let found = index.by_shape.iter().filter_map(|(shape, patterns)| {
            let (account, star) = part_in(shape[0], address.storage_account())?;
            let (queue, queue_star) = part_in(shape[1], address.queue_name())?;
            let text = format!("{account}{star}/{queue}{queue_star}");
            patterns.get(text.as_str())
        });
        found.flatten().map(Arc::clone).collect()
    }

    /// Returns the nodes of a subscription's patterns.
    pub(super) fn of(&self, subscription: &Subscription) -> Nodes {
        let index = read(&self.index);
        let nodes = subscription.patterns().iter().filter_map(|pattern| {
            let patterns = index.by_shape.get(&shape_of(pattern))?;
            let mut nodes = patterns.get(pattern.as_str())?.iter();
            nodes.find(|node| node.group == subscription.group).cloned()
        });
        nodes.collect()
    }

    /// Returns up to `count` nodes after the one with this number.
    pub(super) fn some_after(&self, number: Option<u64>, count: usize) -> Vec<Arc<PatternNode>> {
        let from = number.map_or(Bound::Unbounded, Bound::Excluded);
        let all = &read(&self.index).all;
        let some = all.range((from, Bound::Unbounded)).take(count);
        some.map(|(_, node)| Arc::clone(node)).collect()
    }

    /// Adds a subscription to the nodes of its patterns, which it makes where they are missing.
    pub(super) fn join(&self, subscription: &Arc<Subscription>) -> Nodes {
        let (group, mut guard) = (&subscription.group, write(&self.index));
        let index = &mut *guard;
        let joined = subscription.patterns().iter().map(|pattern| {
            let patterns = index.by_shape.entry(shape_of(pattern)).or_default();
            let nodes = patterns.entry(pattern.as_str().into()).or_default();
            let known = nodes.iter().find(|node| node.group == *group).cloned();
            let node = known.unwrap_or_else(|| {
                let number = self.version.fetch_add(1, Ordering::AcqRel);
                let new = Arc::new(PatternNode::new(pattern, group.clone(), number));
                index.all.insert(number, Arc::clone(&new));
                nodes.push(Arc::clone(&new));
                new
            });
            node.insert(subscription);
            node
        });
        let joined = joined.collect();
        self.joined.fetch_add(1, Ordering::AcqRel);
        joined
    }

    /// Removes a subscription from its nodes, once; returns these.
    pub(super) fn leave(&self, subscription: &Subscription) -> Nodes {
        let nodes = self.of(subscription);
        let mut index = write(&self.index);
        for node in nodes.iter().filter(|node| node.remove(subscription)) {
            index.remove(node);
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        nodes
    }
}

/// The nodes of one pattern, one for each group.
type Nodes = Vec<Arc<PatternNode>>;

/// Of the account and of the queue's name in a pattern: the length of its prefix, or `None` for a name.
type Shape = [Option<usize>; 2];

/// The nodes.
#[derive(Default)]
struct PatternIndex {
    /// By the shapes of the patterns, then by their texts.
    by_shape: BTreeMap<Shape, HashMap<Box<str>, Nodes>>,
    /// In the order in which they were made.
    all: BTreeMap<u64, Arc<PatternNode>>,
}

impl PatternIndex {
    /// The node has lost its last subscription.
    fn remove(&mut self, node: &PatternNode) {
        let (shape, text) = (shape_of(&node.selector), node.selector.as_str());
        let patterns = self.by_shape.entry(shape).or_default();
        let nodes = patterns.entry(text.into()).or_default();
        nodes.retain(|one| one.number != node.number);
        if nodes.is_empty() {
            patterns.remove(text);
        }
        if patterns.is_empty() {
            self.by_shape.remove(&shape);
        }
        self.all.remove(&node.number);
    }
}

/// Returns what a pattern with a prefix of this length has of a name, and the end of that part.
fn part_in(length: Option<usize>, name: &str) -> Option<(&str, &'static str)> {
    match length {
        Some(length) => name.get(..length).map(|prefix| (prefix, "*")),
        None => Some((name, "")),
    }
}

fn shape_of(pattern: &Selector) -> Shape {
    let parts = [pattern.storage_account(), pattern.queue_name()];
    parts.map(|part| part.strip_suffix('*').map(str::len))
}
