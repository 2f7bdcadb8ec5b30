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
    core::Hub, idle::PatternHolders, mailbox::SubscriptionId, queue_entry::QueueEntry,
    subscription::Subscription, sync::lock,
};
use crate::base::clock::Tick;

impl PatternHolders {
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
    pub(super) fn release(&self, hub: &Hub, entry: &Arc<QueueEntry>, now: Tick) -> bool {
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
                let change = cursors.remove(*at);
                drop(cursors);
                hub.change_load(change, now);
                hub.cursors_left(&subscription, 1);
            }
            hub.pattern_checks
                .need(&subscription, Some(entry.address()));
        }
        true
    }
}

impl Hub {
    pub(super) fn subscription(&self, id: SubscriptionId) -> Option<Arc<Subscription>> {
        lock(&self.subscriptions).get(&id).cloned()
    }
}
