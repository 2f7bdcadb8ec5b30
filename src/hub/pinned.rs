//! Queues that only patterns match: their entries are forgotten like any other, when nothing is
//! pending there (R3: an up-to-date pattern keeps no idle entry). Otherwise a pattern would make
//! the limit of queues a limit for its lifetime.
//!
//! In three steps, because a subscription's cursors are locked before a record: all cursors are
//! compared, the record is marked dead if nothing has changed since, and the cursors are released. A
//! caller that finds the dead record makes a new one, to which the subscriptions are attached as to
//! any new queue, each in the place of the cursor that was not released yet.

use std::sync::Arc;

use super::{
    company::Company,
    core::Hub,
    place::Tally,
    record::{Record, State},
    subscription::{Subscription, SubscriptionId},
    sync::lock,
};
use crate::clock::Tick;

/// The subscriptions that hold an idle record by a pattern, and what it was like then.
pub(super) struct Holders {
    holders: Vec<(SubscriptionId, u32)>,
    tally: Tally,
    changes: u64,
}

impl Holders {
    /// Returns the holders of a record, or `None` where one of them names the queue or something is
    /// pending for a group.
    pub(super) fn of(state: &State) -> Option<Self> {
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
        let idle = state.company.as_ref().is_none_or(|company| {
            company.each_member(&mut add);
            company.is_idle(&state.head())
        });
        (idle && all_by_pattern).then(|| Self {
            holders,
            tally: state.tally,
            changes: state.changes(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }

    /// Returns whether the record is as it was.
    pub(super) fn fit(&self, state: &State) -> bool {
        state.tally == self.tally && state.changes() == self.changes
    }

    /// Returns whether no holder has anything pending, or is taken to be busy.
    pub(super) fn up_to_date(&self, hub: &Hub, record: &Arc<Record>, now: Tick) -> bool {
        self.holders.iter().all(|(id, at)| {
            let Some(subscription) = hub.subscription(*id) else {
                return false;
            };
            let cursors = subscription.lock();
            let cursor = cursors
                .list
                .get(*at)
                .filter(|one| Arc::ptr_eq(&one.record, record));
            cursor.is_some_and(|cursor| !cursor.pins(cursors.reports, now, &subscription))
        })
    }

    /// Releases the cursors of a dead record. One that has become busy meanwhile is kept: when its
    /// stream ends, the queue is woken again. So is one where a CATCH_UP became pending: its stream is
    /// marked, and sends it from here, or from the new record's cursor that takes its place.
    pub(super) fn release(&self, hub: &Hub, record: &Arc<Record>) -> bool {
        for (id, at) in &self.holders {
            let Some(subscription) = hub.subscription(*id) else {
                continue;
            };
            let mut cursors = subscription.lock();
            let own = cursors.list.get(*at).is_some_and(|one| {
                let owed = one.needs_catch_up || one.holds_work(cursors.reports);
                Arc::ptr_eq(&one.record, record) && !owed
            });
            if own {
                cursors.list.remove(*at);
                drop(cursors);
                hub.cursors_left(1);
            }
            hub.probes.forget(&subscription, record.address());
        }
        true
    }
}

impl Hub {
    pub(super) fn subscription(&self, id: SubscriptionId) -> Option<Arc<Subscription>> {
        lock(&self.subscriptions).get(&id).cloned()
    }
}

impl Company {
    fn each_member(&self, each: &mut impl FnMut(&super::subscribers::Subscriber)) {
        self.all_groups().for_each(|group| group.each_member(each));
    }
}
