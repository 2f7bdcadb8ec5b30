//! One group on one queue: its cursor, its members, and who of them is given what is owed.
//!
//! The owed messages go to as many members as they need, idle ones first, then who was woken least
//! recently. Each is counted with its own capacity. R12: a member that is counted is sent the
//! wake-up. A member whose stream has not sent its last message yet stands aside until it has. To
//! choose n members takes n steps, however many there are. A plain structure: the record's lock
//! guards it.

use std::time::Duration;

use super::{
    claim::Claim,
    mailbox::WakeBatch,
    place::{Sums, Tally},
    roster::{Among, Grant, Roster},
    subscribers::Subscriber,
};
use crate::{
    clock::Tick,
    fault::{Fault, planted},
    words::{GroupName, ReportState, WakeReason},
};

/// The group's state on the queue.
pub(super) struct Group {
    pub(super) name: GroupName,
    /// Up to where was handed out.
    place: Tally,
    /// Messages that found no stream which reads, or that a look found besides.
    rest: u64,
    /// A look found some of the rest: who was told of this sequence before is woken for it as well.
    found: bool,
    /// A wake-up is owed besides what was counted, and why.
    owed: Option<WakeReason>,
    /// What was given to streams that ended before they took it.
    returned: Sums,
    claim: Claim,
    /// The open claim is for the sentinel's check alone: only members that do not poll are asked.
    checking: bool,
    /// A check came while the claim was open for another cause: where no member covers that, others
    /// are asked.
    check_merged: bool,
    /// Some member was given a wake-up.
    used: bool,
    /// Messages that all members take on together.
    capacities: u64,
    members: Roster,
    /// The member that the sentinel asked last.
    looker: Option<u32>,
    /// When the last member left.
    left_at: Option<Tick>,
    timeout: Duration,
    lease: Duration,
    fault: Fault,
}

/// What a member says of the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard {
    pub(super) state: ReportState,
    pub(super) sequence: u64,
    pub(super) depth: u64,
    /// It looked since; else it repeats on a new stream what it said on another.
    pub(super) looked: bool,
}

impl Group {
    pub(super) fn new(
        name: GroupName,
        place: Tally,
        (timeout, lease): (Duration, Duration),
        fault: Fault,
    ) -> Self {
        Self {
            name,
            place,
            rest: 0,
            found: false,
            owed: None,
            returned: Sums::default(),
            claim: Claim::default(),
            checking: false,
            check_merged: false,
            used: false,
            capacities: 0,
            members: Roster::default(),
            looker: None,
            left_at: None,
            timeout,
            lease,
            fault,
        }
    }

    /// Returns up to where was handed out.
    pub(super) fn place(&self) -> &Tally {
        &self.place
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns when the last member left, where there is none.
    pub(super) fn left_at(&self) -> Option<Tick> {
        self.left_at
    }

    /// Returns whether no member was ever given a wake-up: there is nothing to keep.
    pub(super) fn is_unused(&self) -> bool {
        !self.used
    }

    /// Returns whether the queue's entry need not be kept for it: only patterns match the queue, and
    /// nothing is pending.
    pub(super) fn is_idle(&self, head: &Tally) -> bool {
        let pending = self.owed.is_some() || self.rest > 0 || self.claim.due() != Tick::NEVER;
        let behind = self.place.sequence < head.sequence;
        !pending && !behind && self.members.is_idle()
    }

    pub(super) fn each_member(&self, each: &mut impl FnMut(&Subscriber)) {
        self.members
            .iter()
            .for_each(|member| each(&member.subscriber));
    }

    /// Takes on a member. Where none was left to ask, it is asked.
    pub(super) fn join(&mut self, subscriber: Subscriber, now: Tick) -> u32 {
        self.left_at = None;
        self.capacities += u64::from(subscriber.mailbox.capacity);
        let slot = self.members.join(subscriber);
        if self.claim.is_exhausted() {
            self.owe(WakeReason::Reassigned);
            self.claim.again(now + self.timeout);
        }
        slot
    }

    /// A member's stream ended. R16: a wake-up that it did not take, or was busy with, is
    /// redelivered at once. Returns whether there was such a member.
    pub(super) fn leave(&mut self, slot: u32, busy: bool, now: Tick) -> bool {
        let Some(member) = self.members.leave(slot) else {
            return false;
        };
        self.capacities -= u64::from(member.subscriber.mailbox.capacity);
        if member.tried == self.claim.round {
            self.claim.tried = self.claim.tried.saturating_sub(1);
        }
        let untaken = member.grant.is_some();
        if let Some(grant) = member.grant {
            self.returned.add(&grant.sums);
        }
        if untaken || busy && !planted!(self.fault, BusyEndNotReassigned) {
            self.reassign(now);
        }
        if self.len() == 0 {
            self.left_at = Some(now);
        }
        true
    }

    /// A wake-up is owed to one member, whatever is counted.
    pub(super) fn owe(&mut self, reason: WakeReason) {
        self.owed = self.owed.max(Some(reason));
    }

    /// One member is asked to check (R11: once per interval); `false` where all of them poll, or
    /// something waits for a stream that reads: another group is asked.
    pub(super) fn check(&mut self, head: &Tally, now: Tick) -> bool {
        let waits = head.sequence > self.place.sequence;
        let waits = waits && !planted!(self.fault, CheckWaitsForReader);
        if waits || !self.members.any_checks(None, now) {
            return false;
        }
        if self.checking && self.claim.is_open() && !self.claim.is_exhausted() {
            // The one that goes on asks each member once, then the next group.
            return true;
        }
        self.owe(WakeReason::Sentinel);
        if !planted!(self.fault, AskedCountsAsLooked) {
            let open = self.claim.is_open() && !self.claim.is_exhausted();
            self.checking |= !open;
            self.check_merged |= open;
            self.claim.owe(head.sequence, now, self.timeout);
        }
        true
    }

    /// Returns whether a check was asked of its members and none has reported it.
    pub(super) fn is_checking(&self) -> bool {
        self.checking || self.check_merged
    }

    /// The queue has counted up to `head`: what is new must be covered in time.
    pub(super) fn counted(&mut self, head: &Tally, now: Tick) {
        let new = head.sequence > self.place.sequence;
        self.checking &= !new;
        let asks = self.owed.is_some_and(|reason| {
            reason != WakeReason::Sentinel || !planted!(self.fault, AskedCountsAsLooked)
        });
        // A parked claim goes on when its members' streams have sent.
        if (new || asks && !self.claim.is_open()) && self.len() > 0 {
            self.claim.owe(head.sequence, now, self.timeout);
        }
    }

    /// Returns when something is to be done here.
    pub(super) fn due(&self) -> Tick {
        self.claim.due().min(self.members.lease())
    }

    /// Does what is due: a wake-up that its member has not covered (R13), or whose BUSY lease has
    /// lapsed (R14), is redelivered. Returns whether a check ends that no member has answered.
    pub(super) fn fire(&mut self, now: Tick) -> bool {
        while let Some(slot) = self.members.lapsed(now) {
            if !planted!(self.fault, LeaseNeverLapses) {
                // Asked by now, so that the round is over where all others were: what it holds may
                // have become visible after they looked.
                self.mark_tried(slot);
                self.reassign(now);
                self.mark_tried(slot);
                self.members.postpone(slot);
            }
        }
        if self.claim.due() > now {
            return false;
        }
        let round = self.claim.round;
        let left = match self.checking {
            true => self.members.any_checks(Some(round), now),
            false => self.claim.tried < self.len(),
        };
        if !left || planted!(self.fault, UncoveredNotReassigned) {
            return self.exhaust(now);
        }
        self.owe(match self.checking {
            true => WakeReason::Sentinel,
            false => WakeReason::Reassigned,
        });
        // Where none of those that are left reads its stream, the claim is parked until one does: it
        // would come up every claim time-out for nothing. A check does not wait for them: another
        // group, or a listener outside of groups, may be there for it.
        let parked = !self.members.any_ready_untried(round);
        self.claim.again(match parked {
            true => Tick::NEVER,
            false => now + self.timeout,
        });
        let check = self.checking || (parked && std::mem::take(&mut self.check_merged));
        check && parked && !planted!(self.fault, CheckWaitsForReader)
    }

    /// No member is left that could be asked. A check is not given up before the last one that was
    /// asked has had its time: then it goes to others.
    fn all_were_asked(&mut self, now: Tick) {
        let waits = self.claim.is_open() && !self.claim.is_exhausted();
        if waits && (self.checking || self.check_merged) {
            self.owed = None;
            return;
        }
        self.exhaust(now);
    }

    /// All members were asked; returns whether it was for a check.
    fn exhaust(&mut self, now: Tick) -> bool {
        self.owed = None;
        self.claim.exhaust(now, self.timeout);
        let merged = std::mem::take(&mut self.check_merged);
        std::mem::take(&mut self.checking) || merged
    }

    /// A member reports.
    pub(super) fn report(&mut self, slot: u32, heard: Heard, head: &Tally, now: Tick) {
        let Some(member) = self.members.get(slot) else {
            return;
        };
        let asked = member.tried == self.claim.round && member.grant.is_none();
        let (sent, capacity) = (member.sent, u64::from(member.subscriber.mailbox.capacity));
        let looked = self.looker == Some(slot);
        match heard.state {
            ReportState::Busy => {
                let lease = Some(now + self.lease);
                self.members.set_busy(slot, true, lease);
            }
            ReportState::Drained if sent <= Some(heard.sequence) => {
                self.members.set_busy(slot, false, None);
            }
            ReportState::Drained => {}
            ReportState::Unspecified => return,
        }
        // What is repeated may be of another life of the relay, and speaks of no wake-up of this one.
        if heard.looked {
            (self.checking, self.check_merged) = (false, false);
            self.claim
                .report(heard.sequence, asked, head.sequence, now, self.timeout);
            let kept = planted!(self.fault, RestKept);
            if heard.state == ReportState::Drained && heard.sequence >= head.sequence && !kept {
                // The queue was read until empty after all of it was put.
                self.set_rest(0);
            }
        }
        if looked {
            self.looker = None;
            if heard.state == ReportState::Busy && heard.depth > capacity {
                self.set_rest(self.rest.saturating_add(heard.depth));
                self.found = true;
            }
        }
        let rest = heard.state == ReportState::Drained && sent <= Some(heard.sequence);
        if rest
            && !planted!(self.fault, DrainedBehindIsDone)
            && self.claim.hurry(heard.sequence, head.sequence)
        {
            self.untry(slot);
            self.owe(WakeReason::Reassigned);
            self.claim.again(now + self.timeout);
        }
    }

    /// Returns whether anything is owed that a member could be given.
    pub(super) fn is_owed(&self, counted: bool) -> bool {
        (counted || self.rest > 0 || self.owed.is_some()) && self.members.any_ready()
    }

    /// Gives what is owed to as many members as it needs, `limit` at most; their streams are marked
    /// in `batch`. Returns whether there is more to give. `counted` is why something is owed that
    /// was counted after the group's place.
    pub(super) fn hand_out(
        &mut self,
        head: &Tally,
        counted: Option<WakeReason>,
        now: Tick,
        limit: &mut usize,
        batch: &mut WakeBatch,
    ) -> bool {
        let rest = (self.rest > 0).then_some(WakeReason::Reassigned);
        let Some(reason) = counted.max(self.owed).or(rest) else {
            return false;
        };
        let (mut left, among) = self.wanted(head, counted.is_some(), reason, now);
        let asks = left == 0;
        left = left.max(1);
        let mut sums = head.sums_since(&self.place);
        sums.add(&self.returned);
        let (mut last, mut given) = (None, 0);
        while left > 0 && *limit > 0 {
            let Some(slot) = self
                .members
                .choose(among, head.sequence, self.claim.round, now)
            else {
                break;
            };
            let Some(subscriber) = self.members.assign(slot) else {
                continue;
            };
            let capacity = u64::from(subscriber.mailbox.capacity);
            let share = sums.split(capacity.min(left), given == 0);
            left -= capacity.min(left);
            let grant = Grant {
                reason,
                sequence: head.sequence,
                sums: share,
            };
            self.give(slot, grant);
            batch.mark(&subscriber.mailbox, subscriber.cursor);
            *limit -= 1;
            (last, given) = (Some(slot), given + 1);
        }
        let more = left > 0 && *limit == 0;
        match last {
            Some(last) => {
                // Others stand aside, or follow in the next step; else everybody was told.
                let rest = match asks {
                    true => self.rest,
                    false if given < self.len() => left,
                    false => 0,
                };
                self.gave(last, head, sums, rest);
                if self.claim.is_exhausted() && !planted!(self.fault, ParkedClaimForgotten) {
                    // It was parked, and goes on.
                    self.claim.again(now + self.timeout);
                }
            }
            // Another group's members have filled this step.
            None if more => {}
            None if asks && self.claim.tried >= self.len() => self.all_were_asked(now),
            None if !asks && self.members.all_ready() => self.set_rest(0),
            None => {}
        }
        more
    }

    /// Returns for how many messages members are to be chosen, 0 where one is asked to look, and
    /// among whom. What is handed on does not wait for the streams that the rest waits for: they
    /// may never read.
    fn wanted(&self, head: &Tally, counted: bool, reason: WakeReason, now: Tick) -> (u64, Among) {
        if counted {
            let needs = head.sums_since(&self.place).needs();
            let needs = self.rest.saturating_add(needs);
            return (needs.min(self.capacities.max(1)), Among::All);
        }
        let of_rest = match self.found {
            true => Among::Untried,
            false => Among::Untold,
        };
        let round = self.claim.round;
        let can = |among| self.members.choose(among, head.sequence, round, now);
        if self.rest > 0 && (self.owed.is_none() || can(of_rest).is_some()) {
            return (self.rest, of_rest);
        }
        match reason {
            WakeReason::Sentinel => (0, Among::Lookers),
            _ => (0, Among::Untried),
        }
    }

    /// Returns the wake-up that waits for the member's stream, which is sending it now.
    pub(super) fn take(&mut self, slot: u32) -> Option<Grant> {
        self.members.get_mut(slot)?.grant.take()
    }

    /// A wake-up found no room: it waits for the next.
    pub(super) fn give_back(&mut self, slot: u32, grant: Grant) {
        let Some(member) = self.members.get_mut(slot) else {
            return;
        };
        // It may have been given another one since this was taken.
        match &mut member.grant {
            None => member.grant = Some(grant),
            Some(newer) => newer.merge(&grant),
        }
    }

    pub(super) fn is_given(&self, slot: u32) -> bool {
        self.members
            .get(slot)
            .is_some_and(|member| member.grant.is_some())
    }

    /// The member's stream has sent all it had: it can be given more.
    pub(super) fn ready(&mut self, slot: u32) {
        self.members.ready(slot);
    }

    /// Gives a member a wake-up.
    fn give(&mut self, slot: u32, grant: Grant) {
        self.used = true;
        self.mark_tried(slot);
        if grant.reason == WakeReason::Sentinel {
            self.looker = Some(slot);
        }
        self.members.postpone(slot);
        let fault = self.fault;
        let member = self.members.member_mut(slot);
        member.sent = Some(grant.sequence);
        if member.busy && planted!(fault, BusyCountedNotSent) {
            return;
        }
        member.busy = true;
        match &mut member.grant {
            None => member.grant = Some(grant),
            Some(waiting) => waiting.merge(&grant),
        }
    }

    /// Notes that all was given, but for what found no stream that reads.
    fn gave(&mut self, last: u32, head: &Tally, sums: Sums, rest: u64) {
        // What is beyond everybody's capacity is told to somebody all the same.
        if let Some(grant) = &mut self.members.member_mut(last).grant {
            grant.sums.add(&sums);
        }
        self.place = *head;
        self.returned = Sums::default();
        self.owed = None;
        self.set_rest(rest);
    }

    /// Beyond what all members take on there is no member to wake for it.
    fn set_rest(&mut self, rest: u64) {
        self.rest = rest.min(self.capacities);
        self.found &= rest > 0;
    }

    /// A wake-up is another member's. Where all were asked in this round, a new one begins: in the
    /// old one nobody would be left.
    fn reassign(&mut self, now: Tick) {
        let over = self.claim.is_open() && self.claim.tried >= self.len();
        if over && planted!(self.fault, SpentRoundDropped) {
            return;
        }
        self.check_merged |= std::mem::take(&mut self.checking);
        self.owe(WakeReason::Reassigned);
        let due = now + self.timeout;
        match over {
            true => self.claim.restart(self.place.sequence, due),
            false => self.claim.owe(self.place.sequence, now, self.timeout),
        }
    }

    /// A member is there all the same: it may be asked again in this round.
    fn untry(&mut self, slot: u32) {
        let round = self.claim.round;
        let member = self.members.member_mut(slot);
        if member.tried == round {
            member.tried = 0;
            self.claim.tried -= 1;
        }
    }

    fn mark_tried(&mut self, slot: u32) {
        let round = self.claim.round;
        let member = self.members.member_mut(slot);
        if std::mem::replace(&mut member.tried, round) != round {
            self.claim.tried += 1;
        }
    }
}
