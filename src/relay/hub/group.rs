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
//! * `unassigned`: messages for which no member was ready, or that a check found, for the members that were
//!   not woken since (`unassigned_since`);
//! * `requested`: one member must be woken without new messages, for this reason;
//! * a member's assignment, until its stream takes it;
//! * an open `claim` (`redelivery`): taken, and not covered by a report. Its deadline is `NEVER` where all
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

use std::sync::Arc;

use super::{
    config::Shared,
    counters::{Counters, QueueHead},
    members::{Member, Members},
    pattern::PatternNode,
    queue::QueueEntry,
    redelivery::Claim,
    subscription::{Subscription, SubscriptionId},
    sync::Ordering,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{GroupName, Report, ReportState, WakeReason},
};

/// The group's state on the queue.
pub(super) struct Group {
    pub(super) name: GroupName,
    /// All work up to this position was assigned.
    position: Counters,
    /// Messages without a member: no stream was ready, or a check found more of them. Members that
    /// were woken after so many wake-ups have their share.
    unassigned: u64,
    unassigned_since: u64,
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
    claim: Option<Claim>,
    /// The greatest sequence that a member has reported.
    covered: Option<u64>,
    /// R15: up to here the events after a DRAINED sequence were given to another member at once.
    expedited_up_to: u64,
    pub(super) members: Members,
    /// The member that the sentinel asked last.
    checker: Option<SubscriptionId>,
    /// When the last member left.
    left_at: Option<Tick>,
    /// It came to a queue that was known before, whose messages no member has checked.
    unchecked: bool,
    /// The queue is in the lists of those that wait for a member.
    listed: bool,
    /// Has the numbers of all groups and of their unassigned messages, to which it adds its own.
    shared: Arc<Shared>,
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
            unassigned_since: 0,
            requested: None,
            check_requested: false,
            claim: None,
            covered: None,
            expedited_up_to: 0,
            members: Members::default(),
            checker: None,
            left_at: None,
            unchecked: false,
            listed: false,
            shared: Arc::clone(shared),
        }
    }

    /// Returns whether the group needs no queue entry: only patterns match the queue, and nothing is
    /// pending for the group or a member. One without members is kept for its position.
    pub(super) fn is_idle(&self, head: &Counters) -> bool {
        let pending =
            self.requested.is_some() || self.unassigned > 0 || self.claim_due() != Tick::NEVER;
        let behind = self.position.sequence < head.sequence;
        let is_idle = |member: &Member| member.assignment.is_none() && member.lease.is_none();
        let are_idle = self.members.known().all(is_idle) && self.members.all.named.len() == 0;
        self.left_at.is_none() && !pending && !behind && are_idle
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
        let has_members = !self.members.is_empty();
        let ends = !has_members && self.left_at.is_none();
        if has_members {
            self.left_at = None;
        } else if ends {
            self.left_at = Some(now);
            // Work that it did not finish is requested of a member of another relay.
            let is_pending =
                self.requested.is_some() || self.unassigned > 0 || self.claim.is_some();
            self.pass_on(is_pending);
        }
        ends
    }

    /// Returns whether the group has members, or is kept for a while, unless it took nothing: then it has no
    /// position to keep. Groups with members need the room; a group that comes back checks the queue.
    pub(super) fn is_kept(&self, now: Tick) -> bool {
        let Some(left_at) = self.left_at.filter(|_| self.members.is_empty()) else {
            return true;
        };
        let config = &self.shared.config;
        let too_many = self.shared.groups.load(Ordering::Relaxed) > config.max_groups as u64 / 2;
        let is_over = left_at + config.group_keep <= now;
        // The work that is passed on is taken first.
        self.passed_on || !too_many && !is_over && self.members.wake_count > 0
    }

    /// One member must check the queue, unless the group was there before its messages.
    pub(super) fn request_first_check(&mut self) {
        if std::mem::take(&mut self.unchecked) {
            self.request_wake(WakeReason::CatchUp);
        }
    }

    /// Returns whether a member has no state that is needed.
    pub(super) fn is_settled(&self, id: SubscriptionId) -> bool {
        self.members.get(id).is_none_or(|one| {
            let is_free = one.capacity == one.subscription.mailbox.capacity;
            let is_tried = self.claim.is_some() && self.members.is_tried(one);
            one.assignment.is_none() && one.lease.is_none() && is_free && !is_tried
        })
    }

    /// Sets the nodes of its patterns that match the queue.
    pub(super) fn set_nodes(&mut self, entry: &Arc<QueueEntry>, nodes: Vec<Arc<PatternNode>>) {
        if self.listed {
            // Those that are no more among them have ended, with their lists.
            nodes.iter().for_each(|node| node.add_waiting(entry));
        }
        let before = &self.members.all.nodes;
        let is_same = |(one, other): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(one, other);
        if before.len() != nodes.len() || !before.iter().zip(&nodes).all(is_same) {
            (self.members.all.nodes, self.members.all_known_at) = (nodes, None);
        }
    }

    /// A known member's stream ended. R16: a wake-up that it did not take, or was busy with, is
    /// redelivered at once.
    pub(super) fn leave(&mut self, id: SubscriptionId, busy: bool, now: Tick) {
        let Some(member) = self.members.remove(id) else {
            return;
        };
        if let Some(untaken) = &member.assignment {
            // C10: one member gets all of it, which may be too much for it.
            self.unserved |= untaken.delta.needs() > 1;
        }
        if member.assignment.is_some() || busy {
            self.reassign(now);
        }
    }

    /// A member that has joined is asked at once where no other one was left to ask.
    fn ask_who_joined(&mut self, now: Tick) {
        if self.is_given_up() && self.members.has_fresh() {
            self.request_wake(WakeReason::Reassigned);
            self.rearm_claim(now + self.shared.config.claim_timeout);
        }
    }

    /// Requests a wake-up of one member, with or without new events.
    pub(super) fn request_wake(&mut self, reason: WakeReason) {
        self.requested = self.requested.max(Some(reason));
    }

    /// One member is asked to check: the next one is asked an interval later. Returns `false` where
    /// all of them poll, or where work waits for a stream that reads: another group is asked.
    pub(super) fn check(&mut self, head: &Counters, now: Tick) -> bool {
        let waits = head.sequence > self.position.sequence;
        let can_check = |one: &Subscription| one.mailbox.can_check(now);
        self.check_requested = !waits && self.members.all.next_after(None, &can_check).is_some();
        self.check_requested
    }

    /// Returns when the group has work to do.
    pub(super) fn due(&self) -> Tick {
        self.claim_due().min(self.members.next_lease_end())
    }

    /// Runs the due work. What the queue has counted up to `head` needs a report in time. A wake-up that
    /// its member has not covered (R13), or whose BUSY lease has lapsed (R14), is redelivered.
    pub(super) fn run_due(&mut self, head: &Counters, now: Tick) {
        let new = head.sequence > self.position.sequence;
        if new {
            self.owed_up_to = head.sequence;
        }
        // A parked redelivery goes on when a member's stream has sent.
        let asks = self.requested.is_some() && self.claim.is_none();
        if asks || new && self.claim_due() == Tick::NEVER {
            self.open_claim(now);
        }
        self.ask_who_joined(now);
        while let Some(id) = self.members.pop_expired_lease(now) {
            if planted!(LeaseNeverLapses) {
                continue;
            }
            // Before, so that the round ends where all others were asked: its messages may have become
            // visible after the others polled. Then it counts as asked in the new round.
            self.members.postpone(id);
            self.reassign(now);
            self.members.postpone(id);
            // It may be the only one left that can take them.
            self.unassigned_since = self.members.wake_count;
        }
        if self.claim_due() > now {
            return;
        }
        if self.members.all_tried() || planted!(UncoveredNotReassigned) {
            return self.end_round(now);
        }
        self.request_wake(WakeReason::Reassigned);
        // Where no remaining member reads its stream, the redelivery is parked until one does. It
        // would otherwise fire every claim time-out for nothing.
        let due = match self.members.has(self.members.not_tried()) {
            true => now + self.shared.config.claim_timeout,
            false => Tick::NEVER,
        };
        self.rearm_claim(due);
        self.pass_on_given_up();
    }

    /// Takes a member's report. `polled`: it polled the queue since its wake-up. `finds_more`: it found
    /// more than its capacity.
    pub(super) fn report(
        &mut self,
        id: SubscriptionId,
        report: &Report,
        polled: bool,
        finds_more: bool,
        now: Tick,
    ) {
        if let Some(capacity) = report.capacity {
            self.members.set_capacity(id, capacity);
        }
        let Some(member) = self.members.get(id) else {
            return;
        };
        let asked = self.members.is_tried(member) && member.assignment.is_none();
        let is_drained = report.state == ReportState::Drained;
        let is_done = is_drained && member.notified_up_to <= Some(report.sequence);
        match report.state {
            ReportState::Busy => {
                let lease = now + self.shared.config.busy_lease;
                self.members.set_lease(id, Some(lease));
            }
            ReportState::Drained if is_done => self.members.set_lease(id, None),
            ReportState::Drained => {}
            ReportState::Unspecified => return,
        }
        // A repeated report may be from an earlier run of the relay, and covers no wake-up of this
        // one.
        if polled {
            self.cover(report.sequence, asked, now);
            // It may have covered the open claim. A member that is busy may still hang (R14).
            self.announced_as_served &= self.is_unfinished();
            if is_drained && report.sequence >= self.owed_up_to {
                self.set_unassigned(0);
            }
        }
        if self.checker.take_if(|one| *one == id).is_some() && finds_more {
            self.set_unassigned(self.unassigned.saturating_add(report.current_queue_depth));
            // Each other member may be woken for them, and be asked in a new round.
            self.unassigned_since = self.members.wake_count;
            self.open_claim(now);
            self.members.postpone(id);
        }
        // R15: events after the drained sequence are redelivered at once.
        if is_done && !planted!(DrainedBehindIsDone) && self.expedite(report.sequence) {
            self.reassign(now);
        }
    }

    /// Another member must get a wake-up. Where all were asked in this round, a new round begins,
    /// because the old one has no member left.
    fn reassign(&mut self, now: Tick) {
        let over = self.claim.is_some() && self.members.all_tried();
        if over && planted!(SpentRoundDropped) {
            return;
        }
        self.request_wake(WakeReason::Reassigned);
        if over || self.claim_due() == Tick::NEVER {
            self.open_claim(now);
        }
    }
}
