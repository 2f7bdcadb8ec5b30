//! The coordinator of a queue: its groups and its sentinel.
//!
//! It is made with the first member, or with the first subscriber where there is a sentinel. A
//! queue without one pays one byte's comparison. The entry's lock guards all of it. The timers call
//! it no later than its next due time. A notification costs a step for each group.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use super::super::{
    backlog::Checkpoint,
    config::Shared,
    counters::{Counters, QueueHead},
    group::{Group, MemberReport},
    mailbox::{SubscriptionId, WakeBatch},
    pattern::PatternNode,
    queue::QueueEntry,
    queue_check::QueueCheck,
    subscription::Subscription,
    sync::Ordering,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{GroupName, ReportState, WakeReason},
};

/// The groups and the sentinel of one queue.
pub(crate) struct Coordinator {
    shared: Arc<Shared>,
    groups: BTreeMap<GroupName, Box<Group>>,
    pub(crate) sentinel: Option<QueueCheck>,
    /// The group that the sentinel asked last.
    last_checked_group: Option<GroupName>,
    /// The time at which the timers call the coordinator: no later than its next due time.
    pub(crate) reconcile_at: Tick,
    /// C11: work of a group must be passed on to the other relays.
    passed_on: bool,
    /// Membership or a report changed; `reconcile` must run.
    pub(crate) needs_reconcile: bool,
    /// When the coordinator last ran.
    now: Tick,
    /// The messages counted at an earlier report, which a later depth may cover.
    pub(crate) checkpoint: Option<Checkpoint>,
}

/// Whose turn it is to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckTurn {
    /// No check is due.
    Nobody,
    /// That of listeners outside of groups, then that of groups; or the other way round.
    Others,
    Groups,
}

impl Coordinator {
    pub(crate) fn new(shared: &Arc<Shared>, number: u64, now: Tick) -> Self {
        let config = &shared.config;
        let seed = config.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let has_sentinel = !config.sentinel_interval.is_zero();
        let sentinel = has_sentinel.then(|| QueueCheck::new(config, seed, now));
        Self {
            shared: Arc::clone(shared),
            groups: BTreeMap::new(),
            reconcile_at: sentinel.as_ref().map_or(Tick::NEVER, |check| check.due),
            sentinel,
            last_checked_group: None,
            passed_on: false,
            needs_reconcile: false,
            now,
            checkpoint: None,
        }
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values().map(|group| &**group)
    }

    pub(crate) fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.values_mut().map(|group| &mut **group)
    }

    /// Those that have members, as far as this is noted.
    fn active(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups_mut().filter(|group| group.left_at.is_none())
    }

    pub(crate) fn group(&mut self, name: &GroupName) -> Option<&mut Group> {
        self.groups.get_mut(name).map(|group| &mut **group)
    }

    pub(crate) fn members(&self) -> usize {
        self.groups().map(|group| group.members.all.len()).sum()
    }

    /// Returns whether the group is known or there is room for one more. Groups without members
    /// give way.
    pub(crate) fn has_room(&self, name: &GroupName) -> bool {
        let active = self.groups().filter(|group| group.left_at.is_none());
        let has_room = active.count() < self.shared.config.max_groups_per_queue;
        has_room && self.shared.has_room(0) || self.knows(name)
    }

    pub(crate) fn knows(&self, name: &GroupName) -> bool {
        self.groups.contains_key(name)
    }

    /// Adds a member that names the queue. A new group starts at the queue's head, and one member must
    /// check.
    pub(crate) fn join(
        &mut self,
        name: &GroupName,
        subscription: &Arc<Subscription>,
        head: Counters,
        is_unannounced: bool,
    ) {
        self.needs_reconcile = true;
        if !self.knows(name) {
            self.make_group(name, head, is_unannounced)
                .request_wake(WakeReason::CatchUp);
        }
        if let Some(group) = self.group(name) {
            group.members.join_named(subscription);
            group.note_joined();
        }
    }

    /// Sets the nodes of the groups' patterns that match the queue. A group that is new starts at
    /// `position`; its members have not checked a queue that was `known` before. Returns the nodes of
    /// groups for which there is no room.
    pub(crate) fn set_nodes(
        &mut self,
        entry: &Arc<QueueEntry>,
        nodes: Vec<Arc<PatternNode>>,
        position: Counters,
        is_known: bool,
        is_unannounced: bool,
    ) -> Vec<Arc<PatternNode>> {
        let mut of_groups: BTreeMap<GroupName, Vec<Arc<PatternNode>>> = BTreeMap::new();
        let mut others = Vec::new();
        for node in nodes {
            match &node.group {
                Some(name) => of_groups.entry(name.clone()).or_default().push(node),
                None => others.push(node),
            }
        }
        for (name, group) in &mut self.groups {
            let nodes = of_groups.remove(name).unwrap_or_default();
            self.needs_reconcile |= group.set_nodes(entry, nodes);
        }
        for (name, nodes) in of_groups {
            if !self.has_room(&name) {
                others.extend(nodes);
                continue;
            }
            let group = self.make_group(&name, position, is_unannounced);
            group.set_nodes(entry, nodes);
            group.unchecked = is_known;
            self.needs_reconcile = true;
        }
        others
    }

    fn make_group(
        &mut self,
        name: &GroupName,
        position: Counters,
        is_unannounced: bool,
    ) -> &mut Group {
        if self.groups.len() >= self.shared.config.max_groups_per_queue {
            let left = self.groups.iter();
            let left = left.filter_map(|(name, group)| Some((group.kept_since()?, name.clone())));
            if let Some((_, oldest)) = left.min_by_key(|(left_at, _)| *left_at) {
                self.forget_group(&oldest);
            }
        }
        let group = Group::new(name.clone(), position, is_unannounced, &self.shared);
        self.shared.groups.fetch_add(1, Ordering::Relaxed);
        self.groups
            .entry(name.clone())
            .or_insert_with(|| Box::new(group))
    }

    fn forget_group(&mut self, name: &GroupName) {
        if let Some(group) = self.groups.remove(name) {
            self.passed_on |= group.passed_on;
            self.shared.groups.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notes which groups have members. One that has none is kept for a while, unless it took nothing:
    /// then it has no position to keep. Groups with members need the room; a group that comes back
    /// checks the queue.
    fn note_members(&mut self, now: Tick) {
        self.forget_expired(now);
        let mut ended = Vec::new();
        for (name, group) in &mut self.groups {
            if group.note_members(now) {
                ended.push(name.clone());
            }
        }
        for name in &ended {
            if let Some(sentinel) = &mut self.sentinel
                && self.last_checked_group.as_ref() == Some(name)
            {
                sentinel.ask_at_once(now);
            }
            let all = self.shared.groups.load(Ordering::Relaxed);
            let too_many = all > self.shared.config.max_groups as u64 / 2;
            if too_many || !self.groups[name].used {
                self.forget_group(name);
            }
        }
    }

    pub(crate) fn forget_expired(&mut self, now: Tick) {
        let keep = self.shared.config.group_keep;
        let is_expired = |group: &Group| group.kept_since().is_some_and(|at| at + keep <= now);
        if self.groups().any(is_expired) {
            let expired = self.groups.iter().filter(|(_, group)| is_expired(group));
            let expired: Vec<_> = expired.map(|(name, _)| name.clone()).collect();
            expired.iter().for_each(|name| self.forget_group(name));
        }
    }

    /// A listener joined. A check that fell due without listeners is now due within `spread`.
    pub(crate) fn subscriber_joined(&mut self, now: Tick, spread: Duration) {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.join(now, spread);
            self.needs_reconcile |= sentinel.due <= now;
        }
    }

    /// Returns whether the sentinel waits for a listener to ask.
    pub(crate) fn sentinel_waits(&self) -> bool {
        let sentinel = self.sentinel.as_ref();
        sentinel.is_some_and(|check| check.due == Tick::NEVER)
    }

    /// A listener outside of groups left.
    pub(crate) fn subscriber_left(&mut self, id: SubscriptionId, now: Tick) {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.leave(id, now);
            self.needs_reconcile |= sentinel.due <= now;
        }
    }

    /// Returns whether work must be passed on, once.
    pub(crate) fn take_passed_on(&mut self) -> bool {
        let mut passed_on = std::mem::take(&mut self.passed_on);
        for group in self.groups_mut() {
            passed_on |= std::mem::take(&mut group.passed_on);
        }
        passed_on
    }

    /// Returns whether the other relays of a cluster are told of checks.
    pub(crate) fn announces_checks(&self) -> bool {
        self.sentinel.is_some() && self.shared.config.cluster
    }

    pub(crate) fn checked_by_peer(&mut self, now: Tick) {
        if let Some(sentinel) = &mut self.sentinel
            && !planted!(LinkCheckIgnored)
        {
            sentinel.checked_by_peer(now);
        }
    }

    /// A check was reported: the sentinel's interval restarts. Returns how many others to ask, where the
    /// subscriber with this id was asked and found more than its capacity.
    pub(crate) fn check_reported(
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

    /// Runs the due work, and forgets groups that were kept for long enough. Returns whether a listener
    /// outside of groups, of which there are `others`, is to be asked.
    pub(crate) fn run_due(&mut self, head: &QueueHead, others: usize, now: Tick) -> CheckTurn {
        if self.needs_reconcile {
            self.note_members(now);
        }
        self.active()
            .for_each(|group| group.note_counted(&head.counters, now));
        self.now = now;
        let timer_due = self.reconcile_at <= now;
        if !timer_due && !std::mem::take(&mut self.needs_reconcile) {
            self.reconcile_at = self.reconcile_at.min(self.next_due());
            return CheckTurn::Nobody;
        }
        self.needs_reconcile = false;
        self.active().for_each(|group| group.run_due(now));
        let turn = self.begin_check(others, now);
        // Moved later only when the timers have fired: most redeliveries are covered long before.
        if timer_due {
            self.reconcile_at = Tick::NEVER;
        }
        self.reconcile_at = self.reconcile_at.min(self.next_due());
        turn
    }

    /// Assigns each group's pending work, to `limit` members at most; returns whether more is left.
    pub(crate) fn assign(
        &mut self,
        entry: &Arc<QueueEntry>,
        head: &QueueHead,
        mut limit: usize,
        batch: &mut WakeBatch,
    ) -> bool {
        let (mut more, now) = (false, self.now);
        let mut due = Tick::NEVER;
        for group in self.active() {
            for _ in 0..2 {
                let counted = head.wake_reason(&group.position);
                if group.has_work_to_assign(counted.is_some()) {
                    more |= group.assign(entry, head, counted, now, &mut limit, batch);
                    group.assign_check(entry, head.counters.sequence, now, &mut limit, batch);
                }
                if !group.wait(entry, &head.counters, now) {
                    break;
                }
            }
            // A parked redelivery goes on.
            due = due.min(group.due());
        }
        self.reconcile_at = self.reconcile_at.min(due);
        more
    }

    /// Returns whether no group needs this entry: all members match the queue by a pattern only,
    /// and are up to date. One without members is kept for its position.
    pub(crate) fn is_idle(&self, head: &QueueHead) -> bool {
        let is_idle = |group: &Group| group.left_at.is_none() && group.is_idle(&head.counters);
        self.groups().all(is_idle)
    }

    /// Begins a check, where that is due. One listener is asked: a member of the next group, or, after
    /// each group has had its turn in vain, a listener outside of groups.
    fn begin_check(&mut self, others: usize, now: Tick) -> CheckTurn {
        let active = self.active().count();
        let Some(sentinel) = self.sentinel.as_mut().filter(|check| check.due <= now) else {
            return CheckTurn::Nobody;
        };
        if active == 0 && others == 0 {
            sentinel.due = Tick::NEVER;
            return CheckTurn::Nobody;
        }
        sentinel.restart(now);
        let is_turn_of_others = sentinel.unanswered % (active + 1) == active;
        sentinel.unanswered += 1;
        match is_turn_of_others {
            true => CheckTurn::Others,
            false => CheckTurn::Groups,
        }
    }

    /// Asks a member of the next group whose turn it is; returns whether one can be asked.
    pub(crate) fn check_groups(&mut self, head: &Counters, now: Tick) -> bool {
        let after = match &self.last_checked_group {
            Some(last) => Bound::Excluded(last.clone()),
            None => Bound::Unbounded,
        };
        for from in [after, Bound::Unbounded] {
            for (name, group) in self.groups.range_mut((from, Bound::Unbounded)) {
                if group.left_at.is_none() && group.check(head, now) {
                    self.last_checked_group = Some(name.clone());
                    return true;
                }
            }
        }
        false
    }

    fn next_due(&self) -> Tick {
        let sentinel = self.sentinel.as_ref();
        let sentinel = sentinel.map_or(Tick::NEVER, |check| check.due);
        let active = self.groups().filter(|group| group.left_at.is_none());
        let due = active.map(Group::due).min().unwrap_or(Tick::NEVER);
        sentinel.min(due)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let left = self.groups.len() as u64;
        self.shared.groups.fetch_sub(left, Ordering::Relaxed);
    }
}
