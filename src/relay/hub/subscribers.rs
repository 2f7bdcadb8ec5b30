//! Subscriptions in the order of their ids: those that name a queue, or those of a pattern.
//!
//! A walk over them is interrupted and continues after an id, and so does the turn of a check.

use std::sync::Arc;

use super::{mailbox::SubscriptionId, subscription::Subscription};

/// Sorted by id. An idle pair of subscription and queue is one pointer here.
#[derive(Default)]
pub(super) struct Subscribers(Vec<Arc<Subscription>>);

impl Subscribers {
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a subscription; `false` where it is in the list already.
    pub(super) fn insert(&mut self, subscription: &Arc<Subscription>) -> bool {
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
    pub(super) fn remove(&mut self, id: SubscriptionId) -> bool {
        let Ok(at) = self.0.binary_search_by_key(&id, |one| one.id) else {
            return false;
        };
        self.0.remove(at);
        if self.0.len() * 4 < self.0.capacity() {
            self.0.shrink_to(self.0.len() * 2);
        }
        true
    }

    pub(super) fn get(&self, id: SubscriptionId) -> Option<&Arc<Subscription>> {
        let at = self.0.binary_search_by_key(&id, |one| one.id);
        at.ok().map(|at| &self.0[at])
    }

    pub(super) fn contains(&self, id: SubscriptionId) -> bool {
        self.get(id).is_some()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Subscription>> + Clone {
        self.0.iter()
    }

    /// Returns the first one after this id that is accepted, else the first of all.
    pub(super) fn next_after(
        &self,
        id: Option<SubscriptionId>,
        accept: &impl Fn(&Subscription) -> bool,
    ) -> Option<&Arc<Subscription>> {
        self.in_turn(id).find(|one| accept(one))
    }

    /// Returns all, beginning after this id.
    pub(super) fn in_turn(
        &self,
        id: Option<SubscriptionId>,
    ) -> impl Iterator<Item = &Arc<Subscription>> {
        let after = self.after(id);
        let before = &self.0[..self.0.len() - after.len()];
        after.iter().chain(before)
    }

    /// Returns those after this id, in order.
    pub(super) fn after(&self, id: Option<SubscriptionId>) -> &[Arc<Subscription>] {
        let at = id.map_or(0, |id| self.0.partition_point(|one| one.id <= id));
        &self.0[at..]
    }
}
