//! Queues that only patterns match: their entries are forgotten like any other, when nothing is
//! pending there (R3: an up-to-date pattern keeps no idle entry). Otherwise a pattern would make
//! the limit of queues a limit for its lifetime.
//!
//! In three steps, because a subscription's cursors are locked before an entry: all cursors are
//! compared, the entry is marked dead if nothing has changed since, and the cursors are released. A
//! caller that finds the dead entry makes a new one. The subscriptions are attached to it as to any
//! new queue; each new cursor replaces an old cursor that is not released yet.

use std::sync::Arc;

use super::{
    coordinator::Coordinator,
    core::Hub,
    counters::Counters,
    queue_entry::{QueueEntry, QueueState},
    subscription::{Subscription, SubscriptionId},
    sync::lock,
};
use crate::base::clock::Tick;

/// The subscriptions that hold an idle entry by a pattern, and the entry's state at that time.
pub(super) struct PatternHolders {
    holders: Vec<(SubscriptionId, u32)>,
    counters: Counters,
    changes: u64,
}

impl PatternHolders {
    /// Returns the holders of an entry, or `None` where one of them names the queue or work is
    /// pending for a group.
    pub(super) fn of(state: &QueueState) -> Option<Self> {
        let mut holders = Vec::new();
        for one in state.subscribers.iter() {
            if !one.by_pattern {
                return None;
            }
            holders.push((one.mailbox.id, one.cursor));
        }
        let mut all_by_pattern = true;
        let mut add = |one: &super::subscribers::Subscriber| {
            all_by_pattern &= one.by_pattern;
            holders.push((one.mailbox.id, one.cursor));
        };
        let idle = state.coordinator.as_ref().is_none_or(|coordinator| {
            coordinator.each_member(&mut add);
            coordinator.is_idle(&state.head())
        });
        (idle && all_by_pattern).then(|| Self {
            holders,
            counters: state.counters,
            changes: state.changes(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }

    /// Returns whether the entry is unchanged.
    pub(super) fn still_match(&self, state: &QueueState) -> bool {
        state.counters == self.counters && state.changes() == self.changes
    }

    /// Returns whether no holder has a pending wake-up or a busy listener.
    pub(super) fn up_to_date(&self, hub: &Hub, entry: &Arc<QueueEntry>, now: Tick) -> bool {
        self.holders.iter().all(|(id, at)| {
            let Some(subscription) = hub.subscription(*id) else {
                return false;
            };
            let cursors = subscription.lock();
            let cursor = cursors
                .list
                .get(*at)
                .filter(|one| Arc::ptr_eq(&one.entry, entry));
            cursor.is_some_and(|cursor| !cursor.keeps_entry(cursors.reports, now, &subscription))
        })
    }

    /// Releases the cursors of a dead entry. A cursor that has become busy is kept: at the end of
    /// its stream the queue is woken again. So is one with a new CATCH_UP: its stream is marked. It
    /// sends the CATCH_UP from this cursor, or from the new entry's cursor that replaces it.
    pub(super) fn release(&self, hub: &Hub, entry: &Arc<QueueEntry>) -> bool {
        for (id, at) in &self.holders {
            let Some(subscription) = hub.subscription(*id) else {
                continue;
            };
            let mut cursors = subscription.lock();
            let own = cursors.list.get(*at).is_some_and(|one| {
                let pending = one.needs_catch_up || one.holds_work(cursors.reports);
                Arc::ptr_eq(&one.entry, entry) && !pending
            });
            if own {
                cursors.list.remove(*at);
                drop(cursors);
                hub.cursors_left(1);
            }
            hub.probes.forget(&subscription, entry.address());
        }
        true
    }
}

impl Hub {
    pub(super) fn subscription(&self, id: SubscriptionId) -> Option<Arc<Subscription>> {
        lock(&self.subscriptions).get(&id).cloned()
    }
}

impl Coordinator {
    fn each_member(&self, each: &mut impl FnMut(&super::subscribers::Subscriber)) {
        self.all_groups().for_each(|group| group.each_member(each));
    }
}
