//! Listeners that were lost: for the lists and for the log.
//!
//! A lost listener did not answer in time, so its connection was ended. It is listed for an hour, or
//! until a listener with its id subscribes here. A listener often notices a dead connection before
//! the relay does: it has subscribed again when the old connection ends, and is not lost.
//! The list is bounded.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};

use super::super::{
    core::Hub,
    figures::ListenerStats,
    subscription::{Subscription, SubscriptionId},
    sync::lock,
};
use crate::{base::clock::Tick, types::ListenerId};

pub(crate) type LostListeners = BTreeMap<SubscriptionId, LostListener>;

pub(crate) struct LostListener {
    stats: ListenerStats,
    lost_at: Tick,
    is_logged: bool,
}

/// Lost listeners in the list, and selectors of each.
const LOST: usize = 256;
const SELECTORS: usize = 4;
/// How long a lost listener is listed.
const LISTED_FOR: Duration = Duration::from_secs(3600);
/// Subscriptions in one step of a search.
const STEP: usize = 1024;

impl Hub {
    /// A listener did not answer in time: its connection has ended.
    pub(crate) fn note_lost(&self, subscription: &Subscription, now: Tick) {
        let mut stats = subscription.stats(now);
        stats.selectors.truncate(SELECTORS);
        let mut list = lock(&self.lost);
        if list.len() == LOST {
            let oldest = list.iter().min_by_key(|(_, lost)| lost.lost_at);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                list.remove(&oldest);
            }
        }
        let lost = LostListener {
            stats,
            lost_at: now,
            is_logged: false,
        };
        list.insert(subscription.id, lost);
    }

    /// A listener subscribes: one with its id is lost no longer.
    pub(in super::super) fn note_found(&self, listener: &ListenerId) {
        lock(&self.lost).retain(|_, lost| lost.stats.listener_id != *listener);
    }

    /// Returns the first `count` lost listeners after the given subscription, by id.
    pub(crate) fn lost_listeners(
        &self,
        after: Option<SubscriptionId>,
        count: usize,
        now: Tick,
    ) -> Vec<ListenerStats> {
        let list = lock(&self.lost);
        let from = after.map_or(Unbounded, Excluded);
        let some = list.range((from, Unbounded)).map(|(_, lost)| lost);
        let recent = some.filter(|lost| now.since(lost.lost_at) < LISTED_FOR);
        let with_age = recent.map(|lost| ListenerStats {
            lost_for: Some(now.since(lost.lost_at)),
            ..lost.stats.clone()
        });
        with_age.take(count).collect()
    }

    /// Takes the lost listeners that the log does not name yet.
    pub(crate) fn take_lost(&self) -> Vec<ListenerStats> {
        if lock(&self.lost).values().all(|lost| lost.is_logged) {
            return Vec::new();
        }
        let mut some = self.subscriptions_after(None, STEP);
        while let Some(last) = some.last() {
            let mut list = lock(&self.lost);
            // One that came back and was lost meanwhile stays.
            let others = some.iter().filter(|open| !list.contains_key(&open.id));
            let back: HashSet<_> = others.map(|open| open.listener_id.clone()).collect();
            list.retain(|_, lost| !back.contains(&lost.stats.listener_id));
            drop(list);
            some = self.subscriptions_after(Some(last.id), STEP);
        }
        let mut list = lock(&self.lost);
        let unlogged = list.values_mut().filter(|lost| !lost.is_logged);
        let unlogged = unlogged.map(|lost| {
            lost.is_logged = true;
            lost.stats.clone()
        });
        unlogged.collect()
    }
}
