//! Listeners that were lost: for the lists and for the log.
//!
//! A lost listener did not answer in time, so its connection was ended. It is listed for an hour, or
//! until a listener with its id subscribes here. A listener often notices a dead connection before
//! the relay does: it has subscribed again when the old connection ends, and is not lost.
//! Both the list and the names for the log are bounded.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};

use super::super::{
    core::Hub, figures::ListenerStats, mailbox::SubscriptionId, subscription::Subscription,
    sync::lock,
};
use crate::{base::clock::Tick, types::ListenerId};

/// The lost listeners.
#[derive(Default)]
pub(crate) struct LostListeners {
    lost: BTreeMap<SubscriptionId, (ListenerStats, Tick)>,
    /// The newest ones that the log does not name yet, and the number of further ones.
    unlogged: VecDeque<SubscriptionId>,
    others: u64,
}

/// Some listeners for the log, and the number of further ones.
#[derive(Debug, Default)]
pub(crate) struct Named {
    pub(crate) listeners: Vec<ListenerStats>,
    pub(crate) others: u64,
}

/// Lost listeners in the list, and selectors of each.
const LOST: usize = 256;
const SELECTORS: usize = 4;
/// How long a lost listener is listed.
const LISTED_FOR: Duration = Duration::from_secs(3600);
/// Names in the log at a time.
const NAMED: usize = 8;
/// Subscriptions in one step of a search.
const STEP: usize = 64;

impl Hub {
    /// A listener did not answer in time: its connection has ended.
    pub(crate) fn note_lost(&self, subscription: &Subscription, now: Tick) {
        let mut stats = subscription.stats(now);
        let selectors_left = stats.selectors.len().min(SELECTORS);
        stats.selectors_omitted = stats.selectors.len() > selectors_left;
        stats.selectors.truncate(selectors_left);
        let mut list = lock(&self.lost);
        list.unlogged.push_back(subscription.id);
        if list.unlogged.len() > NAMED {
            list.unlogged.pop_front();
            list.others += 1;
        }
        if list.lost.len() == LOST {
            let oldest = list.lost.iter().min_by_key(|(_, (_, lost_at))| *lost_at);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                list.lost.remove(&oldest);
            }
        }
        list.lost.insert(stats.subscription, (stats, now));
    }

    /// A listener subscribes: one with its id is lost no longer.
    pub(in super::super) fn note_found(&self, listener: &ListenerId, now: Tick) {
        lock(&self.lost).lost.retain(|_, (stats, lost_at)| {
            stats.listener_id != *listener && now.since(*lost_at) < LISTED_FOR
        });
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
        let some = list.lost.range((from, Unbounded)).map(|(_, one)| one);
        let recent = some.filter(|(_, lost_at)| now.since(*lost_at) < LISTED_FOR);
        let with_age = recent.map(|(stats, lost_at)| ListenerStats {
            lost_for: Some(now.since(*lost_at)),
            ..stats.clone()
        });
        with_age.take(count).collect()
    }

    /// Takes the lost listeners that the log does not name yet.
    pub(crate) fn take_lost(&self) -> Named {
        let list = lock(&self.lost);
        if list.unlogged.is_empty() {
            return Named::default();
        }
        let ids: HashSet<_> = list.lost.keys().copied().collect();
        let lost = list.lost.values().map(|(stats, _)| &stats.listener_id);
        let lost: HashSet<_> = lost.cloned().collect();
        drop(list);
        let mut back = HashSet::new();
        let mut after = None;
        loop {
            let some = self.subscriptions_after(after, STEP);
            for open in &some {
                if lost.contains(&open.listener_id) && !ids.contains(&open.id) {
                    back.insert(open.listener_id.clone());
                }
            }
            after = some.last().map(|open| open.id);
            if some.len() < STEP {
                break;
            }
        }
        let mut list = lock(&self.lost);
        list.lost
            .retain(|_, (stats, _)| !back.contains(&stats.listener_id));
        let unlogged = std::mem::take(&mut list.unlogged).into_iter();
        let lost = unlogged.filter_map(|id| list.lost.get(&id));
        Named {
            listeners: lost.map(|(stats, _)| stats.clone()).collect(),
            others: std::mem::take(&mut list.others),
        }
    }
}
