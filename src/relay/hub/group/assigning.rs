//! Assigns a group's pending work to its members.

use super::{
    super::{
        counters::{Counters, Delta, QueueHead},
        mailbox::WakeBatch,
        members::{Assignment, Candidates},
        queue_entry::QueueEntry,
    },
    Group,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::WakeReason,
};

impl Group {
    /// Returns whether there is work, and a member that can take it.
    pub(in super::super) fn has_work_to_assign(&self, counted: bool) -> bool {
        let asks = self.requested.is_some() || self.check_requested;
        (counted || self.unassigned.get() > 0 || asks) && self.members.any_ready()
    }

    /// Gives the sentinel's check to one member, if it is requested and no member got work.
    pub(in super::super) fn assign_check(
        &mut self,
        entry: &QueueEntry,
        sequence: u64,
        now: Tick,
        batch: &mut WakeBatch,
    ) {
        let round = self.redelivery.round;
        let among = Candidates::Checkers;
        while self.check_requested
            && let Some(slot) = self.members.choose(among, sequence, round, now)
        {
            // A stream with an unsent message gets the check when it has sent, if no other did.
            let Some(subscription) = self.members.assign(slot, entry) else {
                continue;
            };
            let assignment = Assignment {
                reason: WakeReason::Sentinel,
                sequence,
                delta: Delta::default(),
            };
            self.assign_to(slot, assignment);
            subscription.set_due(entry, batch);
            self.check_requested = false;
        }
    }

    /// Assigns the pending work to as many members as it needs, `limit` at most; marks their
    /// streams in `batch`. Returns whether more is left. `counted` is the reason for events after
    /// the group's position.
    pub(in super::super) fn assign(
        &mut self,
        entry: &QueueEntry,
        head: &QueueHead,
        counted: Option<WakeReason>,
        now: Tick,
        limit: &mut usize,
        batch: &mut WakeBatch,
    ) -> bool {
        let (head, has_increments) = (&head.counters, head.has_increments);
        let unassigned = (self.unassigned.get() > 0).then_some(WakeReason::Reassigned);
        let Some(reason) = counted.max(self.requested).or(unassigned) else {
            return false;
        };
        let (mut left, among) = self.plan(head, counted.is_some(), now);
        let asks = left == 0;
        left = left.max(1);
        let mut delta = head.delta_since(&self.position);
        delta.add(&self.returned);
        let needed = self.unassigned.get().saturating_add(delta.needs());
        let (mut last, mut given) = (None, 0);
        let (mut given_capacity, mut all_idle) = (0, true);
        while left > 0 && *limit > 0 {
            let Some(slot) = self
                .members
                .choose(among, head.sequence, self.redelivery.round, now)
            else {
                break;
            };
            let Some(subscription) = self.members.assign(slot, entry) else {
                continue;
            };
            let capacity = u64::from(self.members.member_mut(slot).capacity);
            let share = delta.split(capacity.min(left), given == 0);
            left -= capacity.min(left);
            given_capacity += capacity;
            all_idle &= !self.members.member_mut(slot).busy;
            let assignment = Assignment {
                reason,
                sequence: head.sequence,
                delta: share,
            };
            self.assign_to(slot, assignment);
            subscription.set_due(entry, batch);
            *limit -= 1;
            (last, given) = (Some(slot), given + 1);
        }
        let more = left > 0 && *limit == 0;
        match last {
            Some(last) => {
                // The rest waits for busy streams, or follows in the next step; otherwise every
                // member was notified.
                let unassigned = match asks {
                    true => self.unassigned.get(),
                    false if given < self.len() => left,
                    false => 0,
                };
                // A member that got them may have left: another one serves them if it is idle.
                // Causes of other relays are not announced again.
                if has_increments && (counted.is_some() || !all_idle) {
                    self.note_served(needed, given_capacity, all_idle);
                }
                self.owed_up_to = self.owed_up_to.max(head.sequence);
                self.record_assignment(last, head, delta, unassigned);
                // A redelivery that was parked goes on.
                if self.redelivery.is_given_up() {
                    self.redelivery.rearm(now + self.timeout);
                }
            }
            // Members of another group have used up this step.
            None if more => {}
            None if asks && self.redelivery.tried_members >= self.len() => self.end_round(now),
            None if !asks && self.members.all_ready() => self.set_unassigned(0),
            None => {}
        }
        more
    }

    /// Returns the number of messages to assign, 0 for a check by one member, and the members to
    /// choose from. A redelivery does not wait for the streams of the unassigned messages: they may
    /// never read.
    fn plan(&self, head: &Counters, counted: bool, now: Tick) -> (u64, Candidates) {
        if counted {
            let needs = head.delta_since(&self.position).needs();
            let needs = self.unassigned.get().saturating_add(needs);
            return (needs.min(self.capacities.max(1)), Candidates::All);
        }
        let candidates = match self.found_by_check {
            true => Candidates::NotTried,
            false => Candidates::NotNotified,
        };
        let round = self.redelivery.round;
        let can = |among| self.members.choose(among, head.sequence, round, now);
        if self.unassigned.get() > 0 && (self.requested.is_none() || can(candidates).is_some()) {
            return (self.unassigned.get(), candidates);
        }
        (0, Candidates::NotTried)
    }

    /// Takes the wake-up that waits for the member's stream, which is sending it now.
    pub(in super::super) fn take(&mut self, slot: u32) -> Option<Assignment> {
        self.members.get_mut(slot)?.assignment.take()
    }

    /// A Wake had no room for it: it goes into the next.
    pub(in super::super) fn return_assignment(&mut self, slot: u32, assignment: Assignment) {
        let Some(member) = self.members.get_mut(slot) else {
            return;
        };
        // The member may have got another one since.
        match &mut member.assignment {
            None => member.assignment = Some(assignment),
            Some(newer) => newer.merge(&assignment),
        }
    }

    /// The member's stream has sent all its messages.
    pub(in super::super) fn set_ready(&mut self, slot: u32) {
        self.members.set_ready(slot);
    }

    /// Gives a member a wake-up.
    fn assign_to(&mut self, slot: u32, assignment: Assignment) {
        self.used = true;
        self.mark_tried(slot);
        // The messages of these were not counted here: the depth in the report counts them.
        if matches!(
            assignment.reason,
            WakeReason::Sentinel | WakeReason::CatchUp
        ) {
            self.checker = Some(slot);
        }
        self.members.postpone(slot);
        let member = self.members.member_mut(slot);
        member.notified_up_to = Some(assignment.sequence);
        if member.busy && planted!(BusyCountedNotSent) {
            return;
        }
        member.busy = true;
        match &mut member.assignment {
            None => member.assignment = Some(assignment),
            Some(waiting) => waiting.merge(&assignment),
        }
    }

    /// Returns whether events after a drained sequence are redelivered at once.
    pub(super) fn expedite(&mut self, drained: u64) -> bool {
        if planted!(DrainedBehindIsDone) {
            return false;
        }
        self.redelivery.expedite(drained, self.owed_up_to)
    }

    /// Notes that all work was assigned, except for messages without a ready stream.
    fn record_assignment(&mut self, last: u32, head: &Counters, delta: Delta, unassigned: u64) {
        // Messages beyond all capacities are added to the last member's wake-up.
        if let Some(assignment) = &mut self.members.member_mut(last).assignment {
            assignment.delta.add(&delta);
        }
        self.position = *head;
        self.returned = Delta::default();
        self.requested = None;
        // Who is woken for work checks the queue as well.
        self.check_requested = false;
        self.set_unassigned(unassigned);
    }

    /// Capped at all members' capacity: no member is left to wake for more.
    pub(super) fn set_unassigned(&mut self, unassigned: u64) {
        self.unassigned.set(unassigned.min(self.capacities));
        self.found_by_check &= unassigned > 0;
    }
}
