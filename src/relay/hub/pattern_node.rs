//! The patterns that have subscriptions: a node for each distinct pattern and group.
//!
//! A queue keeps the nodes that match it, and looks them up again when a node was made or removed. So
//! a subscription of a known pattern costs one entry in one list, whatever the number of queues, and a
//! pattern holds no queue. R4: a subscription is in its nodes before it looks at the queues of the
//! map, and a new queue is in the map before it looks for its nodes. Locks: the index and a node's
//! list are taken also under an entry's lock, and inboxes under a list.

use std::sync::Arc;

use super::{
    mailbox::SubscriptionId,
    pattern_index::PatternIndex,
    subscribers::Subscribers,
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
    /// A member could not join the group of some queue: it is told like one outside of groups.
    has_others: AtomicU64,
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
            has_others: AtomicU64::new(0),
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

    /// Calls `each` with every subscription, under the node's lock.
    pub(super) fn each(&self, mut each: impl FnMut(&Arc<Subscription>)) {
        lock(&self.subscribers).iter().for_each(&mut each);
    }

    /// Returns the first subscription after this id that is accepted.
    pub(super) fn find_after(
        &self,
        id: Option<SubscriptionId>,
        accept: &impl Fn(&Subscription) -> bool,
    ) -> Option<Arc<Subscription>> {
        let all = lock(&self.subscribers);
        all.after(id).iter().find(|one| accept(one)).cloned()
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

    /// Returns whether a queue's counts are owed to the node's subscriptions outside of the queue's
    /// groups.
    pub(super) fn has_others(&self) -> bool {
        self.group.is_some() && self.has_others.load(Ordering::Acquire) > 0
    }

    /// Returns whether the queues' groups tell all of the node's subscriptions.
    pub(super) fn is_told_by_group(&self) -> bool {
        self.group.is_some() && !self.has_others()
    }

    /// A member could not join the group of some queue.
    pub(super) fn set_has_others(&self) {
        self.has_others.store(1, Ordering::Release);
        self.set_needed();
    }

    fn insert(&self, subscription: &Arc<Subscription>) {
        let mut all = lock(&self.subscribers);
        all.insert(subscription);
        self.len.store(all.len() as u64, Ordering::Release);
    }

    /// Returns whether no subscription is left.
    fn remove(&self, id: SubscriptionId) -> bool {
        let mut all = lock(&self.subscribers);
        all.remove(id);
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
                let ends = node.group == subscription.group && node.remove(subscription.id);
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
