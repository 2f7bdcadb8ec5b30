//! The coordinator of a queue: its groups and its sentinel.
//!
//! It is made with the first member, or with the first subscriber where there is a sentinel. A
//! queue without one pays one byte's comparison. The entry's lock guards all of it. The timers call
//! it no later than its next due time. A notification costs a step for each group that has members;
//! retained groups cost nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    backlog::Checkpoint,
    config::CoordinatorConfig,
    counters::{Counters, QueueHead},
    group::{Group, MemberReport, Unassigned},
    mailbox::{SubscriptionId, WakeBatch},
    members::{Assignment, Subscriber},
    queue_check::QueueCheck,
    queue_entry::QueueEntry,
    sync::Ordering,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{GroupName, ReportState, WakeReason},
};

/// The groups and the sentinel of one queue.
pub(super) struct Coordinator {
    pub(super) config: Arc<CoordinatorConfig>,
    /// Groups by slot; a slot never moves.
    groups: Vec<Option<Group>>,
    names: BTreeMap<GroupName, u32>,
    /// Groups with members.
    active: BTreeSet<u32>,
    /// Groups without members, by the time when they are forgotten.
    retained: BTreeSet<(Tick, u32)>,
    members: usize,
    sentinel: Option<QueueCheck>,
    /// The group that the sentinel asked last.
    last_checked_group: u32,
    /// The time at which the timers call the coordinator: no later than its next due time.
    pub(super) reconcile_at: Tick,
    /// C11: work of a group must be passed on to the other relays.
    passed_on: bool,
    /// Membership or a report changed; `reconcile` must run.
    pub(super) needs_reconcile: bool,
    /// When the coordinator last ran.
    now: Tick,
    /// The messages counted at an earlier report, which a later depth may cover.
    pub(super) checkpoint: Option<Checkpoint>,
}

/// Whose turn it is to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckTurn {
    /// No check is due.
    Nobody,
    /// That of listeners outside of groups, then that of groups; or the other way round.
    Others,
    Groups,
}

/// A listener of a queue, as the queue's entry knows it.
#[derive(Debug, Clone, Copy)]
pub(super) enum ListenerKey {
    /// Outside of groups.
    Subscriber(SubscriptionId),
    Member(MemberId),
}

/// A member's group and its slot there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemberId {
    pub(super) group: u32,
    pub(super) slot: u32,
}

impl Coordinator {
    pub(super) fn new(config: &Arc<CoordinatorConfig>, number: u64, now: Tick) -> Self {
        let seed = config.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let has_sentinel = !config.sentinel_interval.is_zero();
        let sentinel = has_sentinel.then(|| QueueCheck::new(config, seed, now));
        Self {
            config: Arc::clone(config),
            groups: Vec::new(),
            names: BTreeMap::new(),
            active: BTreeSet::new(),
            retained: BTreeSet::new(),
            members: 0,
            reconcile_at: sentinel.as_ref().map_or(Tick::NEVER, QueueCheck::due),
            sentinel,
            last_checked_group: 0,
            passed_on: false,
            needs_reconcile: false,
            now,
            checkpoint: None,
        }
    }

    pub(super) fn groups(&self) -> usize {
        self.names.len()
    }

    pub(super) fn members(&self) -> usize {
        self.members
    }

    #[cfg(feature = "keda")]
    pub(super) fn members_of(&self, name: &GroupName) -> usize {
        let index = self.names.get(name);
        let group = index.and_then(|index| self.groups[*index as usize].as_ref());
        group.map_or(0, Group::len)
    }

    /// Returns members whose groups gave the work up to this sequence to other members only, `most`
    /// of each group.
    pub(super) fn not_woken(&self, sequence: u64, most: usize) -> Vec<(GroupName, SubscriptionId)> {
        let of_group = |group: &Group| {
            let members = group.not_woken(sequence).take(most);
            let named = members.map(|member| (group.name.clone(), member.subscription.id));
            named.collect::<Vec<_>>()
        };
        self.all_groups().flat_map(of_group).collect()
    }

    pub(super) fn all_groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().flatten()
    }

    /// Returns whether the group is known or there is room for one more. Groups without members
    /// give way.
    pub(super) fn has_room(&self, name: &GroupName) -> bool {
        let has_room = self.active.len() < self.config.max_groups_per_queue;
        has_room && self.config.has_room(0) || self.knows(name)
    }

    pub(super) fn knows(&self, name: &GroupName) -> bool {
        self.names.contains_key(name)
    }

    /// Adds a member to its group. A new group starts at `position`; where that is `uncertain`, one
    /// member must check.
    pub(super) fn join(
        &mut self,
        name: &GroupName,
        subscriber: Subscriber,
        (position, uncertain): (Counters, bool),
        (now, spread): (Tick, Duration),
    ) -> MemberId {
        let at = self.names.get(name).copied();
        let at = at.unwrap_or_else(|| self.make_group(name, position, uncertain));
        let group = self.groups[at as usize].as_mut().expect("known or made");
        if let Some(left_at) = group.left_at() {
            self.retained
                .remove(&(left_at + self.config.group_keep, at));
        }
        self.active.insert(at);
        self.members += 1;
        let slot = group.join(subscriber, now);
        self.subscriber_joined(now, spread);
        self.needs_reconcile = true;
        MemberId { group: at, slot }
    }

    fn make_group(&mut self, name: &GroupName, position: Counters, uncertain: bool) -> u32 {
        if self.names.len() >= self.config.max_groups_per_queue
            && let Some((_, oldest)) = self.retained.first().copied()
        {
            self.forget_group(oldest);
        }
        let timeouts = (self.config.claim_timeout, self.config.busy_lease);
        let unassigned = Unassigned::new(&self.config.unassigned);
        let mut group = Group::new(name.clone(), position, unassigned, timeouts);
        if uncertain {
            // The position may be older than the queue's last change.
            group.request_wake(WakeReason::CatchUp);
        }
        let free = self.groups.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            // Most queues have few groups, and a list would begin with room for four.
            if self.groups.len() < 4 {
                self.groups.reserve_exact(1);
            }
            self.groups.push(None);
            self.groups.len() - 1
        });
        self.groups[at] = Some(group);
        let at = u32::try_from(at).expect("fewer groups than numbers");
        self.names.insert(name.clone(), at);
        self.config.groups.fetch_add(1, Ordering::Relaxed);
        at
    }

    pub(super) fn leave(&mut self, member_id: MemberId, busy: bool, now: Tick) {
        let Some(group) = self.group(member_id) else {
            return;
        };
        if !group.leave(member_id.slot, busy, now) {
            return;
        }
        let (left_at, unused) = (group.left_at(), group.is_unused());
        let passed_on = group.take_passed_on();
        self.members -= 1;
        self.needs_reconcile = true;
        self.passed_on |= passed_on;
        if let Some(left_at) = left_at {
            self.active.remove(&member_id.group);
            if let Some(sentinel) = &mut self.sentinel
                && self.last_checked_group == member_id.group
            {
                sentinel.ask_at_once(now);
            }
            self.retained
                .insert((left_at + self.config.group_keep, member_id.group));
            // Groups with members need the room. A group that comes back checks the queue.
            let groups = self.config.groups.load(Ordering::Relaxed);
            let too_many = groups > self.config.max_groups as u64 / 2;
            if unused || too_many {
                // A group that took nothing has no position to keep.
                self.forget_group(member_id.group);
            }
        }
    }

    fn forget_group(&mut self, at: u32) {
        let Some(group) = self.groups[at as usize].take() else {
            return;
        };
        self.names.remove(&group.name);
        self.config.groups.fetch_sub(1, Ordering::Relaxed);
        if let Some(left_at) = group.left_at() {
            self.retained
                .remove(&(left_at + self.config.group_keep, at));
        }
        while self.groups.last().is_some_and(Option::is_none) {
            self.groups.pop();
        }
        self.groups.shrink_to(self.groups.len() * 2);
    }

    /// A listener joined. A check that fell due without listeners is now due within `spread`.
    pub(super) fn subscriber_joined(&mut self, now: Tick, spread: Duration) {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.join(now, spread);
            self.needs_reconcile |= sentinel.due() <= now;
        }
    }

    pub(super) fn has_sentinel(&self) -> bool {
        self.sentinel.is_some()
    }

    /// Returns whether the sentinel waits for a listener to ask.
    pub(super) fn sentinel_waits(&self) -> bool {
        let sentinel = self.sentinel.as_ref();
        sentinel.is_some_and(|sentinel| sentinel.due() == Tick::NEVER)
    }

    /// A listener outside of groups left.
    pub(super) fn subscriber_left(&mut self, id: SubscriptionId, now: Tick) {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.leave(id, now);
            self.needs_reconcile |= sentinel.due() <= now;
        }
    }

    pub(super) fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.iter_mut().flatten()
    }

    /// Returns whether work must be passed on, once.
    pub(super) fn take_passed_on(&mut self) -> bool {
        std::mem::take(&mut self.passed_on)
    }

    /// Returns the interval of the checks where the other relays of a cluster are told of them.
    pub(super) fn announced_interval(&self) -> Option<Duration> {
        self.config.cluster.then_some(self.config.sentinel_interval)
    }

    pub(super) fn checked_by_peer(&mut self, now: Tick) {
        if let Some(sentinel) = &mut self.sentinel
            && !planted!(LinkCheckIgnored)
        {
            sentinel.checked_by_peer(now);
        }
    }

    pub(super) fn group(&mut self, member_id: MemberId) -> Option<&mut Group> {
        self.groups.get_mut(member_id.group as usize)?.as_mut()
    }

    pub(super) fn report(&mut self, member_id: MemberId, report: MemberReport, now: Tick) {
        if let Some(group) = self.group(member_id) {
            group.report(member_id.slot, report, now);
            self.needs_reconcile = true;
        }
    }

    /// A check was reported: the sentinel's interval restarts. Returns how many others to ask, where the
    /// subscriber with this id was asked and found more than its capacity.
    pub(super) fn check_reported(
        &mut self,
        id: Option<SubscriptionId>,
        report: MemberReport,
        capacity: u32,
        now: Tick,
    ) -> u64 {
        let Some(sentinel) = &mut self.sentinel else {
            return 0;
        };
        let was_asked = id.is_some_and(|id| sentinel.is_asked(id));
        sentinel.reported(now);
        let capacity = u64::from(capacity);
        let more = was_asked && report.state == ReportState::Busy && report.depth > capacity;
        if more {
            report.depth.div_ceil(capacity)
        } else {
            0
        }
    }

    pub(super) fn sentinel(&mut self) -> Option<&mut QueueCheck> {
        self.sentinel.as_mut()
    }

    pub(super) fn take_assignment(&mut self, member_id: MemberId) -> Option<Assignment> {
        self.group(member_id)?.take(member_id.slot)
    }

    /// Runs the due work, and forgets groups whose retention ended. Returns whether a listener outside
    /// of groups, of which there are `others`, is to be asked.
    pub(super) fn run_due(&mut self, head: &QueueHead, others: usize, now: Tick) -> CheckTurn {
        self.each_active(|group| group.note_counted(&head.counters, now));
        self.now = now;
        let timer_due = self.reconcile_at <= now;
        if !timer_due && !std::mem::take(&mut self.needs_reconcile) {
            self.reconcile_at = self.reconcile_at.min(self.next_due());
            return CheckTurn::Nobody;
        }
        self.needs_reconcile = false;
        let mut passed_on = false;
        self.each_active(|group| {
            group.run_due(now);
            passed_on |= group.take_passed_on();
        });
        self.passed_on |= passed_on;
        let turn = self.begin_check(others, now);
        while let Some((until, at)) = self.retained.first().copied().filter(|(at, _)| *at <= now) {
            self.retained.remove(&(until, at));
            self.forget_group(at);
        }
        // Moved later only when the timers have fired: most redeliveries are covered long before.
        let due = self.next_due();
        self.reconcile_at = if timer_due {
            due
        } else {
            self.reconcile_at.min(due)
        };
        turn
    }

    /// Assigns each group's pending work, to `limit` members at most; returns whether more is left.
    pub(super) fn assign(
        &mut self,
        entry: &QueueEntry,
        head: &QueueHead,
        mut limit: usize,
        batch: &mut WakeBatch,
    ) -> bool {
        let (mut more, now) = (false, self.now);
        let (mut due, mut passed_on) = (Tick::NEVER, false);
        self.each_active(|group| {
            let counted = head.wake_reason(group.position());
            if group.has_work_to_assign(counted.is_some()) {
                more |= group.assign(entry, head, counted, now, &mut limit, batch);
                group.assign_check(entry, head.counters.sequence, now, batch);
                // A parked redelivery goes on.
                due = due.min(group.due());
                passed_on |= group.take_passed_on();
            }
        });
        self.passed_on |= passed_on;
        self.reconcile_at = self.reconcile_at.min(due);
        more
    }

    /// Returns whether no group needs this entry: all members match the queue by a pattern only,
    /// and are up to date.
    pub(super) fn is_idle(&self, head: &QueueHead) -> bool {
        // A retained group keeps its position.
        let mut groups = self.groups.iter().flatten();
        self.retained.is_empty() && groups.all(|group| group.is_idle(&head.counters))
    }

    /// Begins a check, where that is due. One listener is asked: a member of the next group, or, after
    /// each group has had its turn in vain, a listener outside of groups.
    fn begin_check(&mut self, others: usize, now: Tick) -> CheckTurn {
        let Some(sentinel) = self.sentinel.as_mut().filter(|check| check.due() <= now) else {
            return CheckTurn::Nobody;
        };
        if self.active.is_empty() && others == 0 {
            sentinel.wait_for_listener();
            return CheckTurn::Nobody;
        }
        sentinel.restart(now);
        let is_turn_of_others = sentinel.unanswered % (self.active.len() + 1) == self.active.len();
        sentinel.unanswered += 1;
        match is_turn_of_others {
            true => CheckTurn::Others,
            false => CheckTurn::Groups,
        }
    }

    /// Asks a member of the next group whose turn it is; returns whether one can be asked.
    pub(super) fn check_groups(&mut self, head: &Counters, now: Tick) -> bool {
        let last = self.last_checked_group;
        let (before, after) = (self.active.range(..=last), self.active.range(last + 1..));
        for at in after.chain(before) {
            let group = self.groups[*at as usize].as_mut().expect("it has members");
            if group.check(head, now) {
                self.last_checked_group = *at;
                return true;
            }
        }
        false
    }

    fn each_active(&mut self, mut each: impl FnMut(&mut Group)) {
        for at in &self.active {
            if let Some(group) = &mut self.groups[*at as usize] {
                each(group);
            }
        }
    }

    fn next_due(&self) -> Tick {
        let sentinel = self.sentinel.as_ref().map_or(Tick::NEVER, QueueCheck::due);
        let retained = self
            .retained
            .first()
            .map_or(Tick::NEVER, |(until, _)| *until);
        let active = self.active.iter();
        let groups = active.filter_map(|at| self.groups[*at as usize].as_ref());
        let due = groups.map(Group::due).min().unwrap_or(Tick::NEVER);
        sentinel.min(retained).min(due)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let left = self.names.len() as u64;
        self.config.groups.fetch_sub(left, Ordering::Relaxed);
    }
}
