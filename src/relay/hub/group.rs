//! One group on one queue: its position, its members, and the assignment of work to them.
//!
//! New messages go to as many members as they need: idle ones, then the one woken least recently. Each is
//! counted with its own capacity. R12: a member that is counted is sent the wake-up. A member is skipped
//! while its stream has an unsent message. Choosing n members takes n steps, independent of their number.
//! A plain structure: the entry's lock guards it.
//!
//! Work of the group is in one of these states:
//!
//! * after `position`: counted, and given to nobody yet;
//! * `unassigned`: messages for which no member was ready, or that a check found (`found_by_check`);
//! * `returned`: the sums of a wake-up whose stream ended before it took it;
//! * `requested`: one member must be woken without new messages, for this reason;
//! * a member's assignment, until its stream takes it;
//! * an open claim (`redelivery`): taken, and not covered by a report. Its deadline is `NEVER` where all
//!   members were asked, or none of the rest reads: it goes on with a report, a stream that has sent, or a
//!   new member.
//!
//! `check_requested` is no work: the sentinel asks one member, if none is woken for work. Work that waits for
//! a member is listed with the group's patterns (`PatternNode::waiting`), and one that joins there takes it
//! up. `left_at` is set when no member is left: then the group only keeps its position, for a while.
//! `unchecked`: the group came to a queue that was known before, and one member must check it.
//! In a cluster `unserved`, `announced_as_served` and `passed_on` say what the other relays are told.

mod assigning;
pub(super) mod coordinator;
pub(super) mod members;
pub(super) mod redelivery;
mod serving;

use std::{sync::Arc, time::Duration};

use super::{
    config::Shared,
    counters::{Counters, Delta, QueueHead},
    mailbox::SubscriptionId,
    members::{Assignment, Member, Members},
    pattern::PatternNode,
    queue::QueueEntry,
    redelivery::Redelivery,
    subscription::Subscription,
    sync::Ordering,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{GroupName, ReportState, WakeReason},
};

/// The group's state on the queue.
pub(super) struct Group {
    pub(super) name: GroupName,
    /// All work up to this position was assigned.
    position: Counters,
    /// Messages without a member: no stream was ready, or a check found more of them.
    unassigned: u64,
    /// A check found some of the unassigned messages: members that were notified of this sequence
    /// may be woken again for them.
    found_by_check: bool,
    /// The sequence of the newest cause that was pending here. In a cluster, later ones may be
    /// served by members of other relays.
    owed_up_to: u64,
    /// A cause since the last frame was not given in whole to idle members.
    unserved: bool,
    /// A frame announced the causes of the open claim as served.
    announced_as_served: bool,
    /// Work must be passed on to the other relays.
    passed_on: bool,
    /// A wake-up is due without a new event, for this reason.
    requested: Option<WakeReason>,
    /// The sentinel asks one member. It is no work of the group, and opens no claim.
    check_requested: bool,
    /// Work of streams that ended before they took it.
    returned: Delta,
    redelivery: Redelivery,
    pub(super) members: Members,
    /// The member that the sentinel asked last.
    checker: Option<SubscriptionId>,
    /// When the last member left.
    left_at: Option<Tick>,
    /// It came to a queue that was known before, whose messages no member has checked.
    unchecked: bool,
    /// The queue is in the lists of those that wait for a member.
    listed: bool,
    timeout: Duration,
    /// Has the numbers of all groups and of their unassigned messages, to which it adds its own.
    shared: Arc<Shared>,
}

/// A member's report on the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemberReport {
    pub(super) state: ReportState,
    pub(super) sequence: u64,
    pub(super) depth: u64,
    /// Messages that it can take from now on; `None`: as before.
    pub(super) capacity: Option<u32>,
    /// The member polled the queue since its wake-up; otherwise the report repeats one of an
    /// earlier stream.
    pub(super) polled: bool,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.shared.groups.fetch_sub(1, Ordering::Relaxed);
        let of_all = &self.shared.unassigned;
        of_all.fetch_sub(self.unassigned, Ordering::Relaxed);
    }
}

impl Group {
    /// Makes a group that has been given all work up to the head. Where that has increments, the other
    /// relays do not know of causes before it, and nothing of them was given to its members here.
    fn new(name: GroupName, head: &QueueHead, shared: &Arc<Shared>) -> Self {
        shared.groups.fetch_add(1, Ordering::Relaxed);
        Self {
            name,
            position: head.counters,
            owed_up_to: head.counters.sequence,
            unserved: head.has_increments,
            announced_as_served: false,
            passed_on: false,
            unassigned: 0,
            found_by_check: false,
            requested: None,
            check_requested: false,
            returned: Delta::default(),
            redelivery: Redelivery::default(),
            members: Members::default(),
            checker: None,
            left_at: None,
            unchecked: false,
            listed: false,
            timeout: shared.config.claim_timeout,
            shared: Arc::clone(shared),
        }
    }

    /// Returns whether the group needs no queue entry: only patterns match the queue, and nothing
    /// is pending.
    pub(super) fn is_idle(&self, head: &Counters) -> bool {
        let pending =
            self.requested.is_some() || self.unassigned > 0 || self.redelivery.due() != Tick::NEVER;
        let behind = self.position.sequence < head.sequence;
        !pending && !behind && self.members.is_idle()
    }

    /// Returns some members without a wake-up for this sequence, if all work up to it was assigned to
    /// others.
    pub(super) fn not_woken(&self, sequence: u64, most: usize) -> Vec<Arc<Subscription>> {
        let is_woken = |member: &Member| member.notified_up_to >= Some(sequence);
        let woken = self.members.known().filter(|one| is_woken(one)).count();
        if self.position.sequence < sequence || woken == 0 {
            return Vec::new();
        }
        let mut some = self.members.all.first(most + woken);
        some.retain(|one| !self.members.get(one.id).is_some_and(is_woken));
        some.truncate(most);
        some
    }

    /// Notes whether the group has members. Returns whether its last one has left.
    pub(super) fn note_members(&mut self, now: Tick) -> bool {
        self.note_joined();
        let ends = self.members.is_empty() && self.left_at.is_none();
        if ends {
            self.left_at = Some(now);
            // Work that it did not finish is requested of a member of another relay.
            let is_pending =
                self.requested.is_some() || self.unassigned > 0 || self.redelivery.is_open();
            self.pass_on(is_pending);
        }
        ends
    }

    /// One member must check the queue, unless the group was there before its messages.
    pub(super) fn request_first_check(&mut self) {
        if std::mem::take(&mut self.unchecked) {
            self.request_wake(WakeReason::CatchUp);
        }
    }

    /// Returns whether a member has no state that is needed.
    pub(super) fn is_settled(&self, id: SubscriptionId) -> bool {
        let (round, is_open) = (self.redelivery.round, self.redelivery.is_open());
        self.members.get(id).is_none_or(|one| {
            let is_free = one.capacity == one.subscription.mailbox.capacity;
            let is_tried = is_open && one.tried_in_round == round;
            one.assignment.is_none() && one.lease.is_none() && is_free && !is_tried
        })
    }

    /// Sets the nodes of its patterns that match the queue; returns whether there are others than before.
    pub(super) fn set_nodes(
        &mut self,
        entry: &Arc<QueueEntry>,
        nodes: Vec<Arc<PatternNode>>,
    ) -> bool {
        if self.listed {
            // It stays listed at those that stay.
            nodes.iter().for_each(|node| node.add_waiting(entry));
            let stays = |node: &&Arc<PatternNode>| nodes.iter().any(|one| Arc::ptr_eq(one, node));
            let before = self.members.all.nodes.iter();
            let ended = before.filter(|node| !stays(node));
            ended.for_each(|node| node.remove_waiting(entry));
        }
        let before = &self.members.all.nodes;
        let is_same = |(one, other): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(one, other);
        let is_changed = before.len() != nodes.len() || !before.iter().zip(&nodes).all(is_same);
        if is_changed {
            (self.members.all.nodes, self.members.all_known_at) = (nodes, None);
        }
        self.note_joined();
        is_changed
    }

    /// Members may have joined: the group is kept.
    pub(super) fn note_joined(&mut self) {
        if !self.members.is_empty() {
            self.left_at = None;
        }
    }

    /// Returns when the last member left, if the group is only kept.
    pub(super) fn kept_since(&self) -> Option<Tick> {
        self.left_at.filter(|_| self.members.is_empty())
    }

    /// A known member's stream ended. R16: a wake-up that it did not take, or was busy with, is
    /// redelivered at once.
    pub(super) fn leave(&mut self, id: SubscriptionId, busy: bool, now: Tick) {
        let Some(assignment) = self.forget(id) else {
            return;
        };
        if let Some(untaken) = &assignment {
            self.returned.add(&untaken.delta);
        }
        if assignment.is_some() || busy {
            self.reassign(now);
        }
    }

    /// A member is not known from now on. Returns its wake-up, if it was known.
    pub(super) fn forget(&mut self, id: SubscriptionId) -> Option<Option<Assignment>> {
        let member = self.members.remove(id)?;
        if member.tried_in_round == self.redelivery.round {
            self.redelivery.tried_members = self.redelivery.tried_members.saturating_sub(1);
        }
        Some(member.assignment)
    }

    /// A member that has joined is asked at once where no other one was left to ask.
    fn ask_who_joined(&mut self, now: Tick) {
        if self.redelivery.is_given_up() && self.members.has_fresh() {
            self.request_wake(WakeReason::Reassigned);
            self.redelivery.rearm(now + self.timeout);
        }
    }

    /// Returns whether all members were asked in this round.
    fn all_tried(&mut self) -> bool {
        self.members.are_all(self.redelivery.tried_members)
    }

    /// Requests a wake-up of one member, with or without new events.
    pub(super) fn request_wake(&mut self, reason: WakeReason) {
        self.requested = self.requested.max(Some(reason));
    }

    /// A relay that served this group is missing: one member must check, in a new round, because the
    /// members of an open one may all have been asked.
    pub(super) fn request_check_round(&mut self, now: Tick) {
        self.request_wake(WakeReason::CatchUp);
        if self.redelivery.is_open() {
            let due = now + self.timeout;
            self.redelivery.restart(self.position.sequence, due);
        }
    }

    /// One member is asked to check: the next one is asked an interval later. Returns `false` where
    /// all of them poll, or where work waits for a stream that reads: another group is asked.
    pub(super) fn check(&mut self, head: &Counters, now: Tick) -> bool {
        let waits = head.sequence > self.position.sequence;
        let can_check = |one: &Subscription| one.mailbox.can_check(now);
        self.check_requested = !waits && self.members.all.next_after(None, &can_check).is_some();
        self.check_requested
    }

    /// The queue has counted up to `head`: new work needs a report in time.
    pub(super) fn note_counted(&mut self, head: &Counters, now: Tick) {
        let new = head.sequence > self.position.sequence;
        if new {
            self.owed_up_to = head.sequence;
        }
        let asks = self.requested.is_some();
        // A parked redelivery goes on when a member's stream has sent.
        if new || asks && !self.redelivery.is_open() {
            self.redelivery.track(head.sequence, now, self.timeout);
        }
    }

    /// Returns when the group has work to do.
    pub(super) fn due(&self) -> Tick {
        self.redelivery.due().min(self.members.next_lease_end())
    }

    /// Runs the due work: a wake-up that its member has not covered (R13), or whose BUSY lease has
    /// lapsed (R14), is redelivered.
    pub(super) fn run_due(&mut self, now: Tick) {
        self.ask_who_joined(now);
        while let Some(id) = self.members.pop_expired_lease(now) {
            if planted!(LeaseNeverLapses) {
                continue;
            }
            // Marked before, so that the round ends where all others were asked: its messages may
            // have become visible after the others polled.
            self.mark_tried(id);
            self.reassign(now);
            self.mark_tried(id);
            self.members.postpone(id);
        }
        if self.redelivery.due() > now {
            return;
        }
        if self.all_tried() || planted!(UncoveredNotReassigned) {
            return self.end_round(now);
        }
        self.request_wake(WakeReason::Reassigned);
        // Where no remaining member reads its stream, the redelivery is parked until one does. It
        // would otherwise fire every claim time-out for nothing.
        let parked = !self.members.any_ready_untried(self.redelivery.round);
        self.redelivery.rearm(match parked {
            true => Tick::NEVER,
            false => now + self.timeout,
        });
        if parked {
            self.pass_on_given_up();
        }
    }

    /// All members were asked.
    fn end_round(&mut self, now: Tick) {
        self.requested = None;
        self.redelivery.give_up(now, self.timeout);
        self.pass_on_given_up();
    }

    pub(super) fn report(&mut self, id: SubscriptionId, report: MemberReport, now: Tick) {
        if let Some(capacity) = report.capacity {
            self.members.set_capacity(id, capacity);
        }
        let Some(member) = self.members.get(id) else {
            return;
        };
        let asked = member.tried_in_round == self.redelivery.round && member.assignment.is_none();
        let capacity = u64::from(member.subscription.mailbox.capacity);
        let is_drained = report.state == ReportState::Drained;
        let is_done = is_drained && member.notified_up_to <= Some(report.sequence);
        match report.state {
            ReportState::Busy => {
                let lease = Some(now + self.shared.config.busy_lease);
                self.members.set_busy(id, true, lease);
            }
            ReportState::Drained if is_done => self.members.set_busy(id, false, None),
            ReportState::Drained => {}
            ReportState::Unspecified => return,
        }
        // A repeated report may be from an earlier run of the relay, and covers no wake-up of this
        // one.
        if report.polled {
            self.redelivery
                .report(report.sequence, asked, self.owed_up_to, now, self.timeout);
            // It may have covered the open claim. A member that is busy may still hang (R14).
            self.announced_as_served &= self.is_unfinished();
            if is_drained && report.sequence >= self.owed_up_to {
                self.set_unassigned(0);
            }
        }
        if self.checker == Some(id) {
            self.checker = None;
            if report.state == ReportState::Busy && report.depth > capacity {
                self.set_unassigned(self.unassigned.saturating_add(report.depth));
                self.found_by_check = true;
                // Each other member may be asked in this round.
                let due = now + self.timeout;
                self.redelivery.restart(self.position.sequence, due);
                self.mark_tried(id);
            }
        }
        // R15: events after the drained sequence are redelivered at once.
        if is_done
            && !planted!(DrainedBehindIsDone)
            && self.redelivery.expedite(report.sequence, self.owed_up_to)
        {
            self.allow_retry(id);
            self.request_wake(WakeReason::Reassigned);
            self.redelivery.rearm(now + self.timeout);
        }
    }

    /// Another member must get a wake-up. Where all were asked in this round, a new round begins,
    /// because the old one has no member left.
    fn reassign(&mut self, now: Tick) {
        let over = self.redelivery.is_open() && self.all_tried();
        if over && planted!(SpentRoundDropped) {
            return;
        }
        self.request_wake(WakeReason::Reassigned);
        let due = now + self.timeout;
        match over {
            true => self.redelivery.restart(self.position.sequence, due),
            false => self
                .redelivery
                .track(self.position.sequence, now, self.timeout),
        }
    }

    /// The member may be asked again in this round.
    fn allow_retry(&mut self, id: SubscriptionId) {
        let round = self.redelivery.round;
        if let Some(member) = self.members.get_mut(id)
            && member.tried_in_round == round
        {
            member.tried_in_round = 0;
            self.redelivery.tried_members -= 1;
        }
    }

    fn mark_tried(&mut self, id: SubscriptionId) {
        let round = self.redelivery.round;
        if let Some(member) = self.members.get_mut(id)
            && std::mem::replace(&mut member.tried_in_round, round) != round
        {
            self.redelivery.tried_members += 1;
        }
    }
}
