//! What a queue has besides its counters: the groups that share it, and its sentinel.
//!
//! Made when the first member joins, or with the first subscriber where there is a sentinel; a queue
//! without either pays one byte's comparison. The record's lock guards all of it, and its timers come
//! here no later than something is due. A notification costs a step for each group that has members,
//! and nothing for those that are only kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    group::{Group, Heard},
    mailbox::WakeBatch,
    place::Tally,
    roster::Grant,
    sentinel::Sentinel,
    subscribers::{Subscriber, Subscribers},
};
use crate::{
    clock::Tick,
    fault::{Fault, planted},
    words::{GroupName, ReportState, WakeReason},
};

/// How long the hub waits for those that it wakes.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    /// Between two checks of a queue that nothing reports; zero: the sentinel is off.
    pub(crate) sentinel: Duration,
    /// A wake-up to one listener that is not covered by its report for this long goes to another.
    pub(crate) claim: Duration,
    /// R14: BUSY is a lease of this length.
    pub(crate) lease: Duration,
    /// A group without members is remembered for this long.
    pub(crate) keep: Duration,
    /// Groups of one queue at most: each costs every notification of the queue a step.
    pub(crate) max_groups: usize,
    /// Spreads the sentinels' checks.
    pub(crate) seed: u64,
    pub(crate) fault: Fault,
}

/// The groups and the sentinel of one queue.
pub(super) struct Company {
    pace: Arc<Pace>,
    /// Slots that keep their places.
    groups: Vec<Option<Group>>,
    names: BTreeMap<GroupName, u32>,
    /// Groups with members.
    active: BTreeSet<u32>,
    /// Groups without members, by when they are forgotten.
    kept: BTreeSet<(Tick, u32)>,
    members: usize,
    joined: u64,
    sentinel: Option<Sentinel>,
    /// The group that the sentinel asked last, and how many it asked for the present check.
    turn: u32,
    asked: usize,
    /// The last member of the group that was asked has left without a report.
    check_left: bool,
    /// When the timers come here: no later than anything is due.
    pub(super) tend_at: Tick,
    /// Membership or a report changed: something may be due at once.
    pub(super) dirty: bool,
    /// When something was last done here.
    now: Tick,
}

/// Where a member sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) group: u32,
    pub(super) slot: u32,
}

/// What a place is compared with: the queue's totals, and its newest notification.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) tally: Tally,
    pub(super) notified: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            sentinel: Duration::ZERO,
            claim: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            keep: Duration::from_secs(600),
            max_groups: 256,
            seed: 0,
            fault: Fault::NONE,
        }
    }
}

impl Head {
    /// Returns why a subscriber at `place` is to be woken, or `None` where it is up to date.
    pub(super) fn owed(&self, place: &Tally) -> Option<WakeReason> {
        if place.sequence >= self.tally.sequence {
            return None;
        }
        Some(if self.notified > place.sequence {
            WakeReason::Notified
        } else {
            WakeReason::Timed
        })
    }
}

impl Company {
    pub(super) fn new(pace: &Arc<Pace>, number: u64, now: Tick) -> Self {
        let seed = pace.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let sentinel =
            (!pace.sentinel.is_zero()).then(|| Sentinel::new(pace.sentinel, pace.claim, seed, now));
        Self {
            pace: Arc::clone(pace),
            groups: Vec::new(),
            names: BTreeMap::new(),
            active: BTreeSet::new(),
            kept: BTreeSet::new(),
            members: 0,
            joined: 0,
            tend_at: sentinel.as_ref().map_or(Tick::NEVER, Sentinel::due),
            sentinel,
            turn: 0,
            asked: 0,
            check_left: false,
            dirty: false,
            now,
        }
    }

    pub(super) fn groups(&self) -> usize {
        self.names.len()
    }

    pub(super) fn members(&self) -> usize {
        self.members
    }

    /// Returns how many members have come so far.
    pub(super) fn joined(&self) -> u64 {
        self.joined
    }

    pub(super) fn all_groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().flatten()
    }

    /// Returns whether a group of this name is known, or there is room for one more. Groups without
    /// members give way.
    pub(super) fn has_room(&self, name: &GroupName) -> bool {
        self.active.len() < self.pace.max_groups || self.names.contains_key(name)
    }

    /// Takes a member into its group, which is made where it is not known; a new one starts at
    /// `place`, and where that is not certain one member is to check.
    pub(super) fn join(
        &mut self,
        name: &GroupName,
        subscriber: Subscriber,
        (place, uncertain): (Tally, bool),
        (now, spread): (Tick, Duration),
    ) -> Seat {
        let at = self.names.get(name).copied();
        let at = at.unwrap_or_else(|| self.make_group(name, place, uncertain));
        let group = self.groups[at as usize].as_mut().expect("known or made");
        if let Some(left_at) = group.left_at() {
            self.kept.remove(&(left_at + self.pace.keep, at));
        }
        self.active.insert(at);
        self.members += 1;
        self.joined += 1;
        let slot = group.join(subscriber, now);
        self.subscriber_joined(now, spread);
        self.dirty = true;
        Seat { group: at, slot }
    }

    fn make_group(&mut self, name: &GroupName, place: Tally, uncertain: bool) -> u32 {
        if self.names.len() >= self.pace.max_groups
            && let Some((_, oldest)) = self.kept.first().copied()
        {
            self.forget_group(oldest);
        }
        let pace = (self.pace.claim, self.pace.lease);
        let mut group = Group::new(name.clone(), place, pace, self.pace.fault);
        if uncertain && !planted!(self.pace.fault, NewGroupIsCurrent) {
            group.owe(WakeReason::CatchUp);
        }
        let free = self.groups.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        self.groups[at] = Some(group);
        let at = u32::try_from(at).expect("fewer groups than numbers");
        self.names.insert(name.clone(), at);
        at
    }

    pub(super) fn leave(&mut self, seat: Seat, busy: bool, now: Tick) {
        let Some(group) = self.group(seat) else {
            return;
        };
        if !group.leave(seat.slot, busy, now) {
            return;
        }
        let (left_at, unused) = (group.left_at(), group.is_unused());
        let checking = group.is_checking();
        self.members -= 1;
        self.dirty = true;
        if let Some(left_at) = left_at {
            self.active.remove(&seat.group);
            self.check_left |= checking;
            self.kept.insert((left_at + self.pace.keep, seat.group));
            if unused {
                // It took nothing, so there is nothing to keep for it.
                self.forget_group(seat.group);
            }
        }
    }

    fn forget_group(&mut self, at: u32) {
        let Some(group) = self.groups[at as usize].take() else {
            return;
        };
        self.names.remove(&group.name);
        if let Some(left_at) = group.left_at() {
            self.kept.remove(&(left_at + self.pace.keep, at));
        }
        while self.groups.last().is_some_and(Option::is_none) {
            self.groups.pop();
        }
        self.groups.shrink_to(self.groups.len() * 2);
    }

    /// A listener came. A check that was due while there was none is due within `spread`.
    pub(super) fn subscriber_joined(&mut self, now: Tick, spread: Duration) {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.join(now, spread);
            self.dirty |= sentinel.due() <= now;
        }
    }

    pub(super) fn has_sentinel(&self) -> bool {
        self.sentinel.is_some()
    }

    /// A listener outside of groups left.
    pub(super) fn subscriber_left(&mut self, key: u64, now: Tick) {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.leave(key, now);
            self.dirty |= sentinel.due() <= now;
        }
    }

    /// The stream of a listener outside of groups has sent its messages.
    pub(super) fn subscriber_ready(&mut self, now: Tick) {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.ready(now);
            self.dirty |= sentinel.due() <= now;
        }
    }

    pub(super) fn group(&mut self, seat: Seat) -> Option<&mut Group> {
        self.groups.get_mut(seat.group as usize)?.as_mut()
    }

    pub(super) fn is_given(&self, seat: Seat) -> bool {
        let group = self.groups.get(seat.group as usize);
        group.is_some_and(|group| group.as_ref().is_some_and(|g| g.is_given(seat.slot)))
    }

    /// A member reports.
    pub(super) fn report(&mut self, seat: Seat, heard: Heard, head: &Tally, now: Tick) {
        if let Some(group) = self.group(seat) {
            group.report(seat.slot, heard, head, now);
            self.dirty = true;
        }
    }

    /// A check was reported: the sentinel's interval begins again. Where the listener of this key
    /// was asked and found more than it takes on, others are asked; returns whether they were.
    pub(super) fn looked(
        &mut self,
        key: Option<u64>,
        heard: Heard,
        capacity: u32,
        subscribers: &Subscribers,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> bool {
        let Some(sentinel) = &mut self.sentinel else {
            return false;
        };
        let asked = key.is_some_and(|key| sentinel.is_asked(key));
        sentinel.begin_again(now);
        let capacity = u64::from(capacity);
        let more = asked && heard.state == ReportState::Busy && heard.depth > capacity;
        if more {
            sentinel.ask_more(subscribers, heard.depth.div_ceil(capacity), batch);
        }
        more
    }

    pub(super) fn take_ask(&mut self, key: u64) -> (bool, bool) {
        let sentinel = self.sentinel.as_mut();
        sentinel.map_or((false, false), |sentinel| sentinel.take(key))
    }

    pub(super) fn give_ask_back(&mut self, key: u64) {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.give_back(key);
        }
    }

    pub(super) fn take_grant(&mut self, seat: Seat) -> Option<Grant> {
        self.group(seat)?.take(seat.slot)
    }

    /// Does what is due, and forgets groups that were left long ago. Returns whether a listener
    /// outside of groups was asked to check.
    pub(super) fn fire(
        &mut self,
        head: &Head,
        subscribers: &Subscribers,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> bool {
        self.each_active(|group| group.counted(&head.tally, now));
        self.now = now;
        let called = self.tend_at <= now;
        if !called && !std::mem::take(&mut self.dirty) {
            self.tend_at = self.tend_at.min(self.next_due());
            return false;
        }
        self.dirty = false;
        let mut unanswered = std::mem::take(&mut self.check_left);
        self.each_active(|group| unanswered |= group.fire(now));
        let before = batch.marked;
        if self.sentinel.as_ref().is_some_and(|s| s.due() <= now) {
            if self.sentinel.as_ref().is_some_and(|s| !s.is_asking()) {
                self.asked = 0;
            }
            self.check(&head.tally, subscribers, now, batch);
        } else if unanswered && !planted!(self.pace.fault, UnansweredCheckDropped) {
            // No member of the group that was asked has reported, or is there any more: the next
            // group, or a listener outside of groups.
            self.check(&head.tally, subscribers, now, batch);
        }
        while let Some((until, at)) = self.kept.first().copied().filter(|(at, _)| *at <= now) {
            self.kept.remove(&(until, at));
            self.forget_group(at);
        }
        // Moved later only when the timers have come: most claims are covered long before.
        let due = self.next_due();
        self.tend_at = if called { due } else { self.tend_at.min(due) };
        batch.marked > before
    }

    /// Hands out what is pending for each group, to `limit` members at most; returns whether there
    /// is more.
    pub(super) fn hand_out(
        &mut self,
        head: &Head,
        mut limit: usize,
        batch: &mut WakeBatch,
    ) -> bool {
        let (mut more, now) = (false, self.now);
        let (fault, mut first) = (self.pace.fault, true);
        let mut due = Tick::NEVER;
        self.each_active(|group| {
            if !std::mem::take(&mut first) && planted!(fault, OneGroupIsTold) {
                return;
            }
            let counted = head.owed(group.place());
            if group.is_owed(counted.is_some()) {
                more |= group.hand_out(&head.tally, counted, now, &mut limit, batch);
                // A parked claim goes on.
                due = due.min(group.due());
            }
        });
        self.tend_at = self.tend_at.min(due);
        more
    }

    /// Returns whether no group needs this entry: all members matched it by a pattern only, and are
    /// up to date.
    pub(super) fn is_idle(&self, head: &Head) -> bool {
        // One that is kept is kept with its place.
        let mut groups = self.groups.iter().flatten();
        self.kept.is_empty() && groups.all(|group| group.is_idle(&head.tally))
    }

    /// Asks one listener of the fleet to check: a member of the next group, where there are groups
    /// that were not asked for this check yet.
    fn check(&mut self, head: &Tally, subscribers: &Subscribers, now: Tick, batch: &mut WakeBatch) {
        while self.asked < self.active.len() {
            self.asked += 1;
            let next = self.active.range(self.turn + 1..).next();
            let Some(at) = next.or_else(|| self.active.first()).copied() else {
                break;
            };
            self.turn = at;
            let group = self.groups[at as usize].as_mut().expect("it has members");
            if group.check(head, now) {
                if let Some(sentinel) = &mut self.sentinel {
                    sentinel.begin_again(now);
                }
                return;
            }
        }
        if let Some(sentinel) = &mut self.sentinel {
            let members_only = planted!(self.pace.fault, CheckStaysWithMembers);
            if (subscribers.len() == 0 || members_only) && !self.active.is_empty() {
                return sentinel.begin_again(now);
            }
            if planted!(self.pace.fault, AskedCountsAsLooked) {
                sentinel.ask(subscribers, now, batch);
                return sentinel.begin_again(now);
            }
            sentinel.ask(subscribers, now, batch);
        }
    }

    fn each_active(&mut self, mut each: impl FnMut(&mut Group)) {
        for at in &self.active {
            if let Some(group) = &mut self.groups[*at as usize] {
                each(group);
            }
        }
    }

    fn next_due(&self) -> Tick {
        let sentinel = self.sentinel.as_ref().map_or(Tick::NEVER, Sentinel::due);
        let kept = self.kept.first().map_or(Tick::NEVER, |(until, _)| *until);
        let active = self.active.iter();
        let groups = active.filter_map(|at| self.groups[*at as usize].as_ref());
        let due = groups.map(Group::due).min().unwrap_or(Tick::NEVER);
        sentinel.min(kept).min(due)
    }
}
