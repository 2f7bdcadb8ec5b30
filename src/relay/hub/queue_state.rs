//! The part of a queue entry that its lock guards: the operations on groups and the sentinel.
//!
//! Streams are marked under the lock, and woken after its release. A queue without a group pays for
//! none of this when it is notified.

use std::time::Duration;

use super::{
    config::SUBSCRIBERS_PER_STEP,
    coordinator::{Coordinator, ListenerKey, MemberId},
    counters::{Counters, QueueHead},
    group::MemberReport,
    mailbox::WakeBatch,
    members::Assignment,
    queue_entry::{QueueEntry, QueueState},
    subscribers::Subscriber,
};
use crate::{base::clock::Tick, types::GroupName};

impl QueueState {
    /// Starts the sentinel of a queue that has a subscriber, unless the sentinel is off.
    pub(super) fn start_sentinel(&mut self, entry: &QueueEntry, now: Tick, spread: Duration) {
        if !entry.config.sentinel_interval.is_zero() {
            self.coordinator(entry, now).subscriber_joined(now, spread);
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

    /// Returns whether a wake-up waits for the member's stream.
    pub(super) fn has_assignment(&self, member_id: MemberId) -> bool {
        self.coordinator
            .as_ref()
            .is_some_and(|coordinator| coordinator.has_assignment(member_id))
    }

    pub(super) fn take_assignment(&mut self, member_id: MemberId) -> Option<Assignment> {
        self.coordinator.as_mut()?.take_assignment(member_id)
    }

    pub(super) fn return_assignment(&mut self, member_id: MemberId, assignment: Assignment) {
        if let Some(group) = self.coordinator.as_mut().and_then(|c| c.group(member_id)) {
            group.return_assignment(member_id.slot, assignment);
        }
    }

    /// Takes the sentinel's check for this subscriber; `false` where there is none.
    pub(super) fn take_check(&mut self, key: u64) -> bool {
        if !self.check_pending {
            return false;
        }
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        let (taken, others) = coordinator.take_check(key);
        self.check_pending = others;
        taken
    }

    pub(super) fn return_check(&mut self, key: u64) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.return_check(key);
            self.check_pending = true;
        }
    }

    /// Takes a listener's report. Returns whether the coordinator must be reconciled.
    pub(super) fn report(
        &mut self,
        listener: ListenerKey,
        report: MemberReport,
        capacity: u32,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> bool {
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        if report.polled {
            let key = match listener {
                ListenerKey::Subscriber(key) => Some(key),
                ListenerKey::Member(_) => None,
            };
            self.check_pending |=
                coordinator.check_reported(key, report, capacity, &self.subscribers, now, batch);
            if let Some(interval) = coordinator.announced_interval() {
                self.note_check(interval, now);
            }
        }
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        if let ListenerKey::Member(member_id) = listener {
            coordinator.report(member_id, report, now);
        }
        // The sentinel is not in the timers' order yet where the report made the entry.
        coordinator.needs_reconcile || self.armed > coordinator.reconcile_at
    }

    /// Runs the due work of groups and sentinel, and assigns pending work; returns whether more is
    /// left to assign.
    pub(super) fn reconcile(&mut self, now: Tick, batch: &mut WakeBatch) -> bool {
        let head = self.head();
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        self.check_pending |= coordinator.run_due(&head, &self.subscribers, now, batch);
        self.passed_on |= coordinator.take_passed_on();
        if self.grouped && coordinator.groups() == 0 {
            self.grouped = false;
            self.left_at = now;
            self.drop_unused_coordinator();
        }
        self.grouped && self.assign(batch)
    }

    /// C7: each group checks the queue once; one without members keeps the request.
    pub(super) fn request_group_checks(&mut self, now: Tick) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.request_checks(now);
        }
    }

    /// Assigns the groups' pending work, up to the limit of one step.
    pub(super) fn assign(&mut self, batch: &mut WakeBatch) -> bool {
        let head = self.head();
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        let more = coordinator.assign(&head, SUBSCRIBERS_PER_STEP, batch);
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
        if !self.grouped && self.subscribers.len() == 0 && !stays {
            (self.coordinator, self.check_pending) = (None, false);
        }
    }
}
