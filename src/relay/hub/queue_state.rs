//! The part of a queue entry that its lock guards: the operations on groups and the sentinel.
//!
//! Streams are marked under the lock, and woken after its release. A queue without a group pays for
//! none of this when it is notified.

use std::{sync::Arc, time::Duration};

use super::{
    config::SUBSCRIBERS_PER_STEP,
    coordinator::{CheckTurn, Coordinator, ListenerKey, MemberId},
    counters::{Counters, QueueHead},
    group::MemberReport,
    mailbox::WakeBatch,
    members::{Assignment, Subscriber},
    queue_check::{OutsideOfGroups, QueueCheck},
    queue_entry::{QueueEntry, QueueState},
    subscription::{Owed, Owing},
};
use crate::{base::clock::Tick, types::GroupName};

impl QueueState {
    /// Starts the sentinel of a queue that has a subscriber, unless the sentinel is off.
    pub(super) fn start_sentinel(&mut self, entry: &QueueEntry, now: Tick, spread: Duration) {
        if !entry.config.sentinel_interval.is_zero() {
            self.coordinator(entry, now).subscriber_joined(now, spread);
        }
    }

    /// A count of a queue with listeners outside of groups: its sentinel has somebody to ask.
    pub(super) fn guard(&mut self, entry: &QueueEntry, now: Tick) {
        let waits = |one: &Coordinator| one.sentinel_waits();
        if self.coordinator.as_deref().is_none_or(waits) && self.outside_of_groups() > 0 {
            self.start_sentinel(entry, now, Duration::ZERO);
        }
    }

    /// Adds a member to its group; a new group starts at this position.
    pub(super) fn join(
        &mut self,
        entry: &QueueEntry,
        (name, subscriber): (&GroupName, Subscriber),
        start: (Counters, bool),
        (now, spread): (Tick, Duration),
    ) -> MemberId {
        self.grouped = true;
        let is_unannounced = self.is_unannounced();
        let coordinator = self.coordinator(entry, now);
        let is_new = !coordinator.knows(name);
        let member_id = coordinator.join(name, subscriber, start, (now, spread));
        if is_new
            && is_unannounced
            && let Some(group) = coordinator.group(member_id)
        {
            group.begin_unserved();
        }
        member_id
    }

    pub(super) fn leave(&mut self, member_id: MemberId, busy: bool, now: Tick) {
        self.left_at = now;
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.leave(member_id, busy, now);
            self.passed_on |= coordinator.take_passed_on();
        }
    }

    /// The member's stream has sent all its messages.
    pub(super) fn stream_sent(&mut self, member_id: MemberId) {
        let coordinator = self.coordinator.as_mut();
        if let Some(group) = coordinator.and_then(|coordinator| coordinator.group(member_id)) {
            group.set_ready(member_id.slot);
        }
    }

    pub(super) fn take_assignment(&mut self, member_id: MemberId) -> Option<Assignment> {
        self.coordinator.as_mut()?.take_assignment(member_id)
    }

    pub(super) fn return_assignment(&mut self, member_id: MemberId, assignment: Assignment) {
        if let Some(group) = self.coordinator.as_mut().and_then(|c| c.group(member_id)) {
            group.return_assignment(member_id.slot, assignment);
        }
    }

    /// Takes a listener's report. Returns whether the coordinator must be reconciled, and how many other
    /// listeners are to be asked.
    pub(super) fn report(
        &mut self,
        listener: ListenerKey,
        report: MemberReport,
        capacity: u32,
        now: Tick,
    ) -> (bool, u64) {
        let Some(coordinator) = &mut self.coordinator else {
            return (false, 0);
        };
        let mut more = 0;
        if report.polled {
            let id = match listener {
                ListenerKey::Subscriber(id) => Some(id),
                ListenerKey::Member(_) => None,
            };
            more = coordinator.check_reported(id, report, capacity, now);
            if let Some(interval) = coordinator.announced_interval() {
                self.note_check(interval, now);
            }
        }
        let Some(coordinator) = &mut self.coordinator else {
            return (false, 0);
        };
        if let ListenerKey::Member(member_id) = listener {
            coordinator.report(member_id, report, now);
        }
        // The sentinel is not in the timers' order yet where the report made the entry.
        let is_due = coordinator.needs_reconcile || self.armed > coordinator.reconcile_at;
        (is_due, more)
    }

    /// Asks more listeners outside of groups to check.
    pub(super) fn ask_more(
        &mut self,
        entry: &Arc<QueueEntry>,
        more: u64,
        now: Tick,
        batch: &mut WakeBatch,
    ) {
        let chosen =
            self.with_sentinel(|sentinel, listeners| sentinel.choose_more(listeners, more, now));
        for one in chosen.unwrap_or_default() {
            one.owe(entry, self, Owed::Check, batch);
        }
    }

    /// Asks the next listener outside of groups; returns whether there is one.
    fn ask(&mut self, entry: &Arc<QueueEntry>, now: Tick, batch: &mut WakeBatch) -> bool {
        // One that has ended is in the list for a moment longer.
        for _ in 0..=self.outside_of_groups() {
            let chosen = self.with_sentinel(|sentinel, listeners| sentinel.choose(listeners, now));
            let Some(chosen) = chosen.flatten() else {
                return false;
            };
            if chosen.owe(entry, self, Owed::Check, batch) != Owing::Ended {
                return true;
            }
        }
        false
    }

    fn with_sentinel<T>(
        &mut self,
        act: impl FnOnce(&mut QueueCheck, &OutsideOfGroups<'_>) -> T,
    ) -> Option<T> {
        let mut coordinator = self.coordinator.take()?;
        let listeners = OutsideOfGroups(self);
        let sentinel = coordinator.sentinel();
        let result = sentinel.map(|sentinel| act(sentinel, &listeners));
        self.coordinator = Some(coordinator);
        result
    }

    /// Runs the due work of groups and sentinel, and assigns pending work; returns whether more is
    /// left to assign.
    pub(super) fn reconcile(
        &mut self,
        entry: &Arc<QueueEntry>,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> bool {
        let (head, others) = (self.head(), self.outside_of_groups());
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        let turn = coordinator.run_due(&head, others, now);
        self.passed_on |= coordinator.take_passed_on();
        let first_others = turn == CheckTurn::Others && self.ask(entry, now, batch);
        if turn != CheckTurn::Nobody && !first_others {
            let coordinator = self.coordinator.as_mut();
            let by_group = coordinator.is_some_and(|one| one.check_groups(&head.counters, now));
            if !by_group && turn == CheckTurn::Groups {
                self.ask(entry, now, batch);
            }
        }
        let left = self
            .coordinator
            .as_ref()
            .is_some_and(|one| one.groups() == 0);
        if self.grouped && left {
            self.grouped = false;
            self.left_at = now;
            self.drop_unused_coordinator();
        }
        self.grouped && self.assign(entry, batch)
    }

    /// C7: each group checks the queue once; one without members keeps the request.
    pub(super) fn request_group_checks(&mut self, now: Tick) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.request_checks(now);
        }
    }

    /// Assigns the groups' pending work, up to the limit of one step.
    pub(super) fn assign(&mut self, entry: &QueueEntry, batch: &mut WakeBatch) -> bool {
        let head = self.head();
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        let more = coordinator.assign(entry, &head, SUBSCRIBERS_PER_STEP, batch);
        self.passed_on |= coordinator.take_passed_on();
        more
    }

    pub(super) fn head(&self) -> QueueHead {
        let known = self.announced.as_ref();
        QueueHead {
            counters: self.counters,
            notified: self.notified,
            timed: known.map_or(u64::MAX, |known| known.timed),
            has_increments: known
                .is_none_or(|known| known.counters.sequence < self.counters.sequence),
        }
    }

    fn coordinator(&mut self, entry: &QueueEntry, now: Tick) -> &mut Coordinator {
        self.coordinator
            .get_or_insert_with(|| Box::new(Coordinator::new(&entry.config, entry.number(), now)))
    }

    /// Drops the coordinator where no listener needs it. A sentinel stays for as long as the queue
    /// is remembered.
    pub(super) fn drop_unused_coordinator(&mut self) {
        let stays = self
            .coordinator
            .as_ref()
            .is_some_and(|coordinator| coordinator.has_sentinel());
        if !self.grouped && self.outside_of_groups() == 0 && !stays {
            self.coordinator = None;
        }
    }
}
