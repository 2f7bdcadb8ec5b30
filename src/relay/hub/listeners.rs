//! Those who listen to a queue outside of groups, or as the members of one group.
//!
//! They are not listed queue by queue: a queue has those that name it, and the nodes of the patterns
//! that match it. A listener with several matching selectors is in several lists. The entry's lock
//! guards this.

use std::sync::Arc;

use super::{
    mailbox::SubscriptionId, pattern_node::PatternNode, subscribers::Subscribers,
    subscription::Subscription,
};

/// The listeners of a queue, of one group or of none.
#[derive(Default)]
pub(super) struct Listeners {
    /// Those that name the queue.
    pub(super) named: Subscribers,
    /// The nodes of the patterns that match it.
    pub(super) nodes: Vec<Arc<PatternNode>>,
}

impl Listeners {
    /// Returns their number. One with several matching selectors counts for each.
    pub(super) fn len(&self) -> usize {
        let patterns = self.nodes.iter().map(|node| node.len());
        self.named.len() + patterns.sum::<usize>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn each(&self, mut each: impl FnMut(&Arc<Subscription>)) {
        self.named.iter().for_each(&mut each);
        self.nodes.iter().for_each(|node| node.each(&mut each));
    }

    /// Returns the first ones.
    pub(super) fn first(&self, most: usize) -> Vec<Arc<Subscription>> {
        let mut found: Vec<_> = self.named.iter().take(most).cloned().collect();
        for node in &self.nodes {
            found.extend(node.some_after(None, most - found.len()));
        }
        found
    }

    /// Returns the first one after this id, in the order of ids, that is accepted; after the last the
    /// first of all.
    pub(super) fn next_after(
        &self,
        after: Option<SubscriptionId>,
        accept: &impl Fn(&Subscription) -> bool,
    ) -> Option<Arc<Subscription>> {
        let named = self.named.next_after(after, accept).cloned();
        let of_nodes = self.nodes.iter();
        let of_nodes = of_nodes.filter_map(|node| node.next_after(after, accept));
        // Those after the id come before the others.
        let turn = |one: &Arc<Subscription>| (Some(one.id) <= after, one.id);
        named.into_iter().chain(of_nodes).min_by_key(turn)
    }
}
