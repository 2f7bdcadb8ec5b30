//! Those who listen to a queue outside of groups, or as the members of one group.
//!
//! They are not listed queue by queue: a queue has those that name it, and the nodes of the patterns
//! that match it. A listener with several matching selectors is in several lists. The entry's lock
//! guards this.

use std::sync::Arc;

use super::super::{
    pattern::PatternNode,
    subscription::{Subscription, SubscriptionId},
};

/// The listeners of a queue, of one group or of none.
#[derive(Default)]
pub(crate) struct Listeners {
    /// Those that name the queue.
    pub(crate) named: Subscribers,
    /// The nodes of the patterns that match it.
    pub(crate) nodes: Vec<Arc<PatternNode>>,
}

impl Listeners {
    /// Returns those of some patterns.
    pub(crate) fn of(nodes: Vec<Arc<PatternNode>>) -> Self {
        Self {
            nodes,
            ..Self::default()
        }
    }

    /// Returns their number. One with several matching selectors counts for each.
    pub(crate) fn len(&self) -> usize {
        let patterns = self.nodes.iter().map(|node| node.len());
        self.named.len() + patterns.sum::<usize>()
    }

    pub(crate) fn each(&self, mut each: impl FnMut(&Arc<Subscription>)) {
        self.named.iter().for_each(&mut each);
        for node in &self.nodes {
            node.lock().iter().for_each(&mut each);
        }
    }

    /// Returns the first ones.
    pub(crate) fn first(&self, most: usize) -> Vec<Arc<Subscription>> {
        let mut found: Vec<_> = self.named.iter().take(most).cloned().collect();
        for node in &self.nodes {
            found.extend(node.lock().iter().take(most - found.len()).cloned());
        }
        found
    }

    /// Returns the first one after this id, in the order of ids, that is accepted; after the last the
    /// first of all.
    pub(crate) fn next_after(
        &self,
        after: Option<SubscriptionId>,
        accept: &impl Fn(&Subscription) -> bool,
    ) -> Option<Arc<Subscription>> {
        let named = self.named.next_after(after, accept).cloned();
        let of_nodes = self.nodes.iter();
        let of_nodes = of_nodes.filter_map(|node| node.lock().next_after(after, accept).cloned());
        // Those after the id come before the others.
        let turn = |one: &Arc<Subscription>| (Some(one.id) <= after, one.id);
        named.into_iter().chain(of_nodes).min_by_key(turn)
    }
}

/// Sorted by id. An idle pair of subscription and queue is one pointer here.
#[derive(Default)]
pub(crate) struct Subscribers(Vec<Arc<Subscription>>);

impl Subscribers {
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a subscription; `false` where it is in the list already.
    pub(crate) fn insert(&mut self, subscription: &Arc<Subscription>) -> bool {
        let found = self.0.binary_search_by_key(&subscription.id, |one| one.id);
        let Err(at) = found else {
            return false;
        };
        // Most lists have one entry, and a vector would begin with room for four.
        if self.0.len() < 4 {
            self.0.reserve_exact(1);
        }
        self.0.insert(at, Arc::clone(subscription));
        true
    }

    /// Removes a subscription; returns whether it was in the list.
    pub(crate) fn remove(&mut self, id: SubscriptionId) -> bool {
        let Ok(at) = self.0.binary_search_by_key(&id, |one| one.id) else {
            return false;
        };
        self.0.remove(at);
        if self.0.len() * 4 < self.0.capacity() {
            self.0.shrink_to(self.0.len() * 2);
        }
        true
    }

    pub(crate) fn get(&self, id: SubscriptionId) -> Option<&Arc<Subscription>> {
        let at = self.0.binary_search_by_key(&id, |one| one.id);
        at.ok().map(|at| &self.0[at])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Subscription>> + Clone {
        self.0.iter()
    }

    /// Calls `each` with up to `count` of them after this id; returns the last one's id, or `None` at the
    /// end.
    pub(crate) fn each_after(
        &self,
        id: Option<SubscriptionId>,
        count: usize,
        each: impl FnMut(&Arc<Subscription>),
    ) -> Option<SubscriptionId> {
        let all = self.after(id);
        let some = &all[..all.len().min(count)];
        some.iter().for_each(each);
        let last = some.last().filter(|_| some.len() == count);
        last.map(|one| one.id)
    }

    /// Returns the first one after this id that is accepted, else the first of all.
    pub(crate) fn next_after(
        &self,
        id: Option<SubscriptionId>,
        accept: &impl Fn(&Subscription) -> bool,
    ) -> Option<&Arc<Subscription>> {
        let after = self.after(id);
        let before = &self.0[..self.0.len() - after.len()];
        after.iter().chain(before).find(|one| accept(one))
    }

    /// Returns those after this id, in order.
    fn after(&self, id: Option<SubscriptionId>) -> &[Arc<Subscription>] {
        let at = id.map_or(0, |id| self.0.partition_point(|one| one.id <= id));
        &self.0[at..]
    }
}
