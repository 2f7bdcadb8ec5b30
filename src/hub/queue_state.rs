//! What a record's lock guards besides the counters: how groups and the sentinel are tended.
//!
//! Streams are marked under the lock, and woken when it is released. A queue without a group pays
//! for none of this on the way of a notification.

use std::time::Duration;

use super::{
    coordinator::{Coordinator, MemberId, QueueHead},
    counters::Counters,
    group::MemberReport,
    mailbox::WakeBatch,
    members::Assignment,
    queue_entry::{QueueEntry, QueueState},
    subscribers::{SUBSCRIBERS_PER_STEP, Subscriber},
};
use crate::{clock::Tick, words::GroupName};

impl QueueState {
    /// Puts a queue that has a subscriber under a sentinel, where there is one.
    pub(super) fn start_sentinel(&mut self, entry: &QueueEntry, now: Tick, spread: Duration) {
        if !entry.config.sentinel_interval.is_zero() {
            self.coordinator(entry, now).subscriber_joined(now, spread);
        }
    }

    /// Takes a member into its group; a group that is not known starts at `place`.
    pub(super) fn join(
        &mut self,
        entry: &QueueEntry,
        (name, subscriber): (&GroupName, Subscriber),
        start: (Counters, bool),
        (now, spread): (Tick, Duration),
    ) -> MemberId {
        self.grouped = true;
        let coordinator = self.coordinator(entry, now);
        coordinator.join(name, subscriber, start, (now, spread))
    }

    pub(super) fn leave(&mut self, member_id: MemberId, busy: bool, now: Tick) {
        self.left_at = now;
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.leave(member_id, busy, now);
        }
    }

    /// The stream of a subscriber, by its key, or of a member has sent all it had.
    pub(super) fn stream_sent(&mut self, position: Result<u64, MemberId>, now: Tick) {
        let Some(coordinator) = &mut self.coordinator else {
            return;
        };
        match position {
            Ok(_) => coordinator.subscriber_sent(now),
            Err(member_id) => {
                if let Some(group) = coordinator.group(member_id) {
                    group.set_ready(member_id.slot);
                }
            }
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

    /// Takes the sentinel's check of this subscriber; `false` where there is none.
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

    /// A subscriber reports. Returns whether there is something to do for it.
    pub(super) fn report(
        &mut self,
        position: Result<u64, MemberId>,
        report: MemberReport,
        capacity: u32,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> bool {
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        if report.polled {
            let key = position.ok();
            self.check_pending |=
                coordinator.check_reported(key, report, capacity, &self.subscribers, now, batch);
        }
        if let Err(member_id) = position {
            coordinator.report(member_id, report, &self.counters, now);
        }
        // Its sentinel is not in the timers' order yet where the report made the record.
        coordinator.needs_reconcile
            || self
                .armed
                .is_none_or(|armed| armed > coordinator.reconcile_at)
    }

    /// Does what is due for groups and sentinel, and hands out what is owed; returns whether there
    /// is more to hand out.
    pub(super) fn reconcile(&mut self, now: Tick, batch: &mut WakeBatch) -> bool {
        let head = self.head();
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        self.check_pending |= coordinator.run_due(&head, &self.subscribers, now, batch);
        if self.grouped && coordinator.groups() == 0 {
            self.grouped = false;
            self.left_at = now;
            self.drop_unused_coordinator();
        }
        self.grouped && self.assign(batch)
    }

    /// Hands out what is owed to groups, as much as one step may.
    pub(super) fn assign(&mut self, batch: &mut WakeBatch) -> bool {
        let head = self.head();
        let coordinator = self.coordinator.as_mut();
        coordinator
            .is_some_and(|coordinator| coordinator.assign(&head, SUBSCRIBERS_PER_STEP, batch))
    }

    pub(super) fn head(&self) -> QueueHead {
        let (counters, notified) = (self.counters, self.notified);
        QueueHead { counters, notified }
    }

    fn coordinator(&mut self, entry: &QueueEntry, now: Tick) -> &mut Coordinator {
        self.coordinator
            .get_or_insert_with(|| Box::new(Coordinator::new(&entry.config, entry.number(), now)))
    }

    /// Gives up what nobody needs any more. A sentinel stays for as long as the queue is remembered.
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
