//! Assigns a group's pending work to its members.

use std::sync::Arc;

use super::{
    super::{
        counters::{Counters, Delta, QueueHead},
        members::{Assignment, Candidates},
        queue::QueueEntry,
        subscription::{Subscription, WakeBatch},
        sync::Ordering,
    },
    Group,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::WakeReason,
};

impl Group {
    /// Adds the queue to those that wait for a member, where it does so. Returns whether a member has
    /// joined meanwhile.
    pub(crate) fn wait(&mut self, entry: &Arc<QueueEntry>, head: &Counters, now: Tick) -> bool {
        let is_behind = self.position.sequence < head.sequence;
        let asks = self.requested.is_some() || self.check_requested;
        let waits = is_behind || asks || self.unassigned > 0 || self.is_given_up();
        if !waits || self.members.all.nodes.is_empty() {
            self.unlist(entry);
            return false;
        }
        if !std::mem::replace(&mut self.listed, true) {
            let nodes = self.members.all.nodes.iter();
            nodes.for_each(|node| node.add_waiting(entry));
        }
        self.ask_who_joined(now);
        self.members.has_fresh()
    }

    /// The queue waits for no member.
    pub(in super::super) fn unlist(&mut self, entry: &QueueEntry) {
        if std::mem::take(&mut self.listed) {
            let nodes = self.members.all.nodes.iter();
            nodes.for_each(|node| node.remove_waiting(entry));
        }
    }

    /// Gives the sentinel's check to one member, if it is requested and no member got work.
    pub(crate) fn assign_check(
        &mut self,
        entry: &Arc<QueueEntry>,
        sequence: u64,
        now: Tick,
        limit: &mut usize,
        batch: &mut WakeBatch,
    ) {
        if !self.check_requested {
            return;
        }
        // A stream with an unsent message gets the check when it has sent, if no other did.
        let among = Candidates::Checkers(now);
        let Some(one) = self.members.choose(entry, among, limit) else {
            return;
        };
        let assignment = Assignment {
            reason: WakeReason::Sentinel,
            sequence,
            delta: Delta::default(),
        };
        self.assign_to(&one, assignment);
        one.set_due(entry, batch);
        self.check_requested = false;
    }

    /// Assigns the pending work to as many members as it needs, `limit` at most; marks their
    /// streams in `batch`. Returns whether more is left.
    pub(crate) fn assign(
        &mut self,
        entry: &Arc<QueueEntry>,
        head: &QueueHead,
        now: Tick,
        limit: &mut usize,
        batch: &mut WakeBatch,
    ) -> bool {
        // The reason for events after the group's position.
        let counted = head.wake_reason(&self.position);
        let (head, has_increments) = (&head.counters, head.has_increments);
        let unassigned = (self.unassigned > 0).then_some(WakeReason::Reassigned);
        let Some(reason) = counted.max(self.requested).or(unassigned) else {
            return false;
        };
        let wake_count = self.members.wake_count;
        let (mut left, among) = self.plan(head, counted.is_some());
        let asks = left == 0;
        left = left.max(1);
        let mut delta = head.delta_since(&self.position);
        let needed = self.unassigned.saturating_add(delta.needs());
        let (mut last, mut given) = (None, 0);
        let (mut given_capacity, mut all_idle) = (0, true);
        while left > 0 && *limit > 0 {
            let Some(one) = self.members.choose(entry, among, limit) else {
                break;
            };
            let Some(member) = self.members.get(one.id) else {
                continue;
            };
            let capacity = u64::from(member.capacity);
            all_idle &= !member.busy;
            let share = delta.split(capacity.min(left), given == 0);
            left -= capacity.min(left);
            given_capacity += capacity;
            let assignment = Assignment {
                reason,
                sequence: head.sequence,
                delta: share,
            };
            self.assign_to(&one, assignment);
            one.set_due(entry, batch);
            (last, given) = (Some(one), given + 1);
        }
        let more = left > 0 && *limit == 0;
        if let Some(last) = last {
            // The rest waits for busy streams, or follows in the next step; otherwise every
            // member was notified.
            let unassigned = match asks {
                true => self.unassigned,
                false if !self.members.are_all(given) => left,
                false => 0,
            };
            // A member that got them may have left: another one serves them if it is idle.
            // Causes of other relays are not announced again.
            let is_short = counted.is_some() && given_capacity < needed;
            self.unserved |= has_increments && (is_short || !all_idle);
            // Messages beyond all capacities are added to the last member's wake-up.
            let last = self.members.get_mut(last.id);
            if let Some(assignment) = last.and_then(|member| member.assignment.as_mut()) {
                assignment.delta.add(&delta);
            }
            self.position = *head;
            self.requested = None;
            // Who is woken for work checks the queue as well.
            self.check_requested = false;
            self.set_unassigned(unassigned);
            if counted.is_some() {
                self.unassigned_since = wake_count;
            }
            // A redelivery that was parked goes on.
            if self.is_given_up() {
                self.rearm_claim(now + self.shared.config.claim_timeout);
            }
        } else if more {
            // Members of another group have used up this step.
        } else if asks && self.members.all_tried() {
            self.end_round(now);
        } else if !asks && !self.members.is_empty() && self.members.all_ready() {
            self.set_unassigned(0);
        }
        more
    }

    /// Returns the number of messages to assign, 0 for a check by one member, and the members to
    /// choose from. A redelivery does not wait for the streams of the unassigned messages: they may
    /// never read.
    fn plan(&mut self, head: &Counters, counted: bool) -> (u64, Candidates) {
        if counted {
            let needs = head.delta_since(&self.position).needs();
            let needs = self.unassigned.saturating_add(needs);
            return (needs.min(self.members.capacity().max(1)), Candidates::All);
        }
        let without_share = Candidates::NotWokenSince(self.unassigned_since);
        if self.unassigned > 0 && (self.requested.is_none() || self.members.has(without_share)) {
            return (self.unassigned, without_share);
        }
        (0, self.members.not_tried())
    }

    /// Gives a member a wake-up.
    fn assign_to(&mut self, one: &Subscription, assignment: Assignment) {
        // The messages of these were not counted here: the depth in the report counts them.
        if matches!(
            assignment.reason,
            WakeReason::Sentinel | WakeReason::CatchUp
        ) {
            self.checker = Some(one.id);
        }
        self.members.postpone(one.id);
        let Some(member) = self.members.get_mut(one.id) else {
            return;
        };
        member.notified_up_to = Some(assignment.sequence);
        if member.busy && planted!(BusyCountedNotSent) {
            return;
        }
        member.busy = true;
        let waiting = member.assignment.get_or_insert_default();
        waiting.merge(&assignment);
    }

    /// Capped at all members' capacity: no member is left to wake for more.
    pub(super) fn set_unassigned(&mut self, unassigned: u64) {
        let unassigned = unassigned.min(self.members.capacity());
        let before = std::mem::replace(&mut self.unassigned, unassigned);
        if unassigned != before {
            // Wraps below zero, as the sum of all groups does not.
            let change = unassigned.wrapping_sub(before);
            self.shared.unassigned.fetch_add(change, Ordering::Relaxed);
        }
    }
}
