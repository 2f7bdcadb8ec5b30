//! The patterns that have subscriptions: a node for each distinct pattern and group.
//!
//! A queue keeps the nodes that match it, and looks them up again when a node was made or removed
//! (`version`). So a subscription of a known pattern costs one entry in one list, whatever the number of
//! queues, and a pattern holds no queue. R4: a subscription is in its nodes before it looks at the queues of
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
//! Locks: the index and a node's lists are taken also under an entry's lock, and inboxes under a list.

pub(super) mod checks;

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, Weak},
};

use super::{
    listeners::Subscribers,
    mailbox::SubscriptionId,
    queue::QueueEntry,
    subscription::Subscription,
    sync::{AtomicU64, Mutex, Ordering, RwLock, lock, read, write},
};
use crate::types::{GroupName, QueueAddress, Selector};

/// One pattern, with the subscriptions of one group or of none.
pub(super) struct PatternNode {
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
}

/// All nodes.
pub(crate) struct Patterns {
    index: RwLock<PatternIndex>,
    /// Grows when a node is made or removed. A new queue has looked up version 0.
    version: AtomicU64,
    /// Grows with each subscription of a pattern.
    joined: AtomicU64,
}

impl PatternNode {
    fn new(selector: &Selector, group: Option<&GroupName>) -> Self {
        Self {
            selector: selector.clone(),
            group: group.cloned(),
            subscribers: Mutex::default(),
            len: AtomicU64::new(0),
            is_needed: AtomicU64::new(0),
            is_introduced: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
            joined: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        usize::try_from(self.len.load(Ordering::Acquire)).unwrap_or(usize::MAX)
    }

    /// Returns up to `count` subscriptions after this id, in order.
    pub(super) fn some_after(
        &self,
        id: Option<SubscriptionId>,
        count: usize,
    ) -> Vec<Arc<Subscription>> {
        let all = lock(&self.subscribers);
        all.after(id).iter().take(count).map(Arc::clone).collect()
    }

    /// Returns all subscriptions, `most` at most, beginning after this id.
    pub(super) fn in_turn(
        &self,
        id: Option<SubscriptionId>,
        most: usize,
    ) -> Vec<Arc<Subscription>> {
        let all = lock(&self.subscribers);
        all.in_turn(id).take(most).map(Arc::clone).collect()
    }

    pub(super) fn get(&self, id: SubscriptionId) -> Option<Arc<Subscription>> {
        lock(&self.subscribers).get(id).cloned()
    }

    /// Calls `each` with every subscription, under the node's lock.
    pub(super) fn each(&self, each: impl FnMut(&Arc<Subscription>)) {
        lock(&self.subscribers).iter().for_each(each);
    }

    /// As [`Subscribers::each_after`], under the node's lock.
    pub(super) fn each_after(
        &self,
        id: Option<SubscriptionId>,
        count: usize,
        each: impl FnMut(&Arc<Subscription>),
    ) -> Option<SubscriptionId> {
        lock(&self.subscribers).each_after(id, count, each)
    }

    /// Returns the first subscription after this id that is accepted, else the first of all.
    pub(super) fn next_after(
        &self,
        id: Option<SubscriptionId>,
        accept: &impl Fn(&Subscription) -> bool,
    ) -> Option<Arc<Subscription>> {
        lock(&self.subscribers).next_after(id, accept).cloned()
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
        some.filter_map(|(_, entry)| entry.upgrade())
            .take(count)
            .collect()
    }

    /// Returns whether a member has visited the queues that were known when the node was made.
    pub(super) fn is_introduced(&self) -> bool {
        self.is_introduced.load(Ordering::Acquire) > 0
    }

    pub(super) fn set_introduced(&self) {
        self.is_introduced.store(1, Ordering::Release);
    }

    fn insert(&self, subscription: &Arc<Subscription>) {
        let mut all = lock(&self.subscribers);
        if all.insert(subscription) {
            let capacity = u64::from(subscription.mailbox.capacity);
            self.capacity.fetch_add(capacity, Ordering::AcqRel);
        }
        self.len.store(all.len() as u64, Ordering::Release);
        self.joined.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether no subscription is left.
    fn remove(&self, subscription: &Subscription) -> bool {
        let mut all = lock(&self.subscribers);
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

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        read(&self.index).is_empty()
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

    /// Adds a subscription to the nodes of its patterns, which it makes where they are missing.
    pub(super) fn join(&self, subscription: &Arc<Subscription>) -> Vec<Arc<PatternNode>> {
        let mut index = write(&self.index);
        let group = subscription.group.as_ref();
        let mut nodes = Vec::new();
        let mut made = false;
        for pattern in subscription.patterns() {
            let all = index.nodes(pattern);
            let known = all.iter().find(|node| node.group.as_ref() == group);
            let node = known.cloned().unwrap_or_else(|| {
                made = true;
                let node = Arc::new(PatternNode::new(pattern, group));
                all.push(Arc::clone(&node));
                node
            });
            node.insert(subscription);
            nodes.push(node);
        }
        if made {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        self.joined.fetch_add(1, Ordering::AcqRel);
        nodes
    }

    /// Removes a subscription, and the nodes that have none left.
    pub(super) fn leave(&self, subscription: &Subscription) {
        let mut index = write(&self.index);
        let mut removed = false;
        for pattern in subscription.patterns() {
            let all = index.nodes(pattern);
            all.retain(|node| {
                let ends = node.group == subscription.group && node.remove(subscription);
                removed |= ends;
                !ends
            });
            if all.is_empty() {
                index.remove(pattern);
            }
        }
        if removed {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
    }
}

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
