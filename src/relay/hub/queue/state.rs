//! The part of a queue entry that its lock guards: the operations on groups and the sentinel.
//!
//! Streams are marked under the lock, and woken after its release. A queue without a group pays for
//! none of this when it is notified.

use std::sync::Arc;

use super::super::{
    coordinator::Coordinator,
    counters::QueueHead,
    group::Group,
    mailbox::WakeBatch,
    queue::{QueueEntry, QueueState},
    subscription::{Owed, Subscription},
};
use crate::{
    base::clock::Tick,
    types::{Report, ReportState},
};

impl QueueState {
    /// Starts the sentinel of a queue that has a listener, unless the sentinel is off or has somebody to ask.
    /// A check that fell due without listeners is due now. Otherwise, streams that come and go faster than
    /// the interval would put it off for ever.
    pub(crate) fn guard(&mut self, entry: &QueueEntry, now: Tick) {
        let coordinator = self.coordinator.as_ref();
        let sentinel = coordinator.and_then(|one| one.sentinel.as_ref());
        let waits = sentinel.is_none_or(|check| check.due == Tick::NEVER);
        let is_off = entry.shared.config.sentinel_interval.is_zero();
        if is_off || !waits || self.listeners() == 0 {
            return;
        }
        let coordinator = self.coordinator(entry, now);
        let sentinel = coordinator.sentinel.as_mut();
        if let Some(check) = sentinel.filter(|check| check.due == Tick::NEVER) {
            (check.due, coordinator.reconcile_at) = (now, now);
        }
    }

    /// Returns the group of a listener, if it is a member here.
    pub(crate) fn group_of(&mut self, listener: &Subscription) -> Option<&mut Group> {
        let name = listener.group.as_ref()?;
        let group = self.coordinator.as_mut()?.group(name)?;
        let is_known = group.members.get(listener.id).is_some();
        let is_member = is_known || self.outside.named.get(listener.id).is_none();
        is_member.then_some(group)
    }

    /// Takes a listener's report. `polled`: it polled the queue since its wake-up; otherwise the report
    /// repeats one of an earlier stream. Returns whether a check outside of groups found more than its
    /// listener's capacity.
    pub(crate) fn report(
        &mut self,
        listener: &Subscription,
        report: &Report,
        polled: bool,
        now: Tick,
    ) -> bool {
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        let capacity = u64::from(listener.mailbox.capacity);
        let finds_more = report.state == ReportState::Busy && report.current_queue_depth > capacity;
        let (mut was_asked, mut tells) = (false, false);
        if polled && let Some(sentinel) = &mut coordinator.sentinel {
            was_asked = sentinel.asked == Some(listener.id);
            tells = sentinel.reported(now);
        }
        let group = listener.group.as_ref();
        if let Some(group) = group.and_then(|name| coordinator.group(name)) {
            group.report(listener.id, report, polled, finds_more, now);
        }
        if tells {
            self.announced().checked = true;
        }
        was_asked && finds_more
    }

    /// Asks the next listener outside of groups; returns whether there is one.
    fn ask(&mut self, entry: &Arc<QueueEntry>, now: Tick, batch: &mut WakeBatch) -> bool {
        let coordinator = self.coordinator.as_mut();
        let sentinel = coordinator.and_then(|one| one.sentinel.as_mut());
        let chosen = sentinel.and_then(|sentinel| sentinel.choose(&self.outside, now));
        let Some(chosen) = chosen else {
            return false;
        };
        // One that ends at this moment costs an interval.
        chosen.owe(entry, self, Owed::Check, batch);
        true
    }

    /// Runs the due work of groups and sentinel, and assigns pending work; returns whether more is
    /// left to assign.
    pub(crate) fn reconcile(
        &mut self,
        entry: &Arc<QueueEntry>,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> bool {
        let (head, others) = (self.head(), self.outside.len());
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        if let Some(turn_of_others) = coordinator.run_due(&head, others, now) {
            // A turn that nobody can take goes to the next one.
            let by_group = |one: &mut Box<Coordinator>| one.check_groups(&head.counters, now);
            let is_asked = turn_of_others && self.ask(entry, now, batch)
                || self.coordinator.as_mut().is_some_and(by_group);
            if !is_asked {
                self.ask(entry, now, batch);
            }
        }
        self.assign(entry, batch)
    }

    /// Assigns the groups' pending work, up to the limit of one step.
    pub(crate) fn assign(&mut self, entry: &Arc<QueueEntry>, batch: &mut WakeBatch) -> bool {
        let head = self.head();
        let coordinator = self.coordinator.as_mut();
        coordinator.is_some_and(|one| one.assign(entry, &head, batch))
    }

    pub(crate) fn head(&self) -> QueueHead {
        let known = self.announced.as_ref();
        QueueHead {
            counters: self.counters,
            notified: self.notified,
            resynced: known.map_or(0, |known| known.resynced),
            has_increments: self.own_causes() > 0,
        }
    }

    /// Returns the coordinator for listeners that join: a group that was kept for long enough is new
    /// to them.
    pub(crate) fn coordinator(&mut self, entry: &QueueEntry, now: Tick) -> &mut Coordinator {
        let new = || Box::new(Coordinator::new(&entry.shared, entry.number(), now));
        let coordinator = self.coordinator.get_or_insert_with(new);
        coordinator.forget_kept(now);
        coordinator
    }
}
