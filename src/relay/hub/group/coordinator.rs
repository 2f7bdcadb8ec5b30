//! The coordinator of a queue: its groups and its sentinel.
//!
//! It is made with the first member, or with the first subscriber where there is a sentinel. A
//! queue without one pays one comparison. The entry's lock guards all of it. The timers call it no later
//! than its next due time. A notification costs a step for each group.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use super::super::{
    config::{SUBSCRIBERS_PER_STEP, Shared},
    counters::{Counters, QueueHead},
    group::Group,
    pattern::PatternNode,
    queue::QueueEntry,
    queue_check::QueueCheck,
    subscription::{Subscription, WakeBatch},
    sync::Ordering,
};
use crate::{
    base::clock::Tick,
    types::{GroupName, WakeReason},
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
    /// When the coordinator last ran.
    now: Tick,
    /// The messages counted at an earlier report, and when: a later depth may cover them.
    pub(crate) checkpoint: Option<(u64, Tick)>,
}

impl Coordinator {
    pub(crate) fn new(shared: &Arc<Shared>, number: u64, now: Tick) -> Self {
        let sentinel = QueueCheck::new(&shared.config, number, now);
        Self {
            shared: Arc::clone(shared),
            groups: BTreeMap::new(),
            reconcile_at: sentinel.as_ref().map_or(Tick::NEVER, |check| check.due),
            sentinel,
            last_checked_group: None,
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

    /// Adds a member that names the queue; returns `false` where there is no room for its group. A new
    /// group starts at the queue's head, and one member must check.
    pub(crate) fn join(
        &mut self,
        name: &GroupName,
        subscription: &Arc<Subscription>,
        head: &QueueHead,
    ) -> bool {
        if !self.groups.contains_key(name)
            && let Some(group) = self.make_group(name, head)
        {
            group.request_wake(WakeReason::CatchUp);
        }
        let Some(group) = self.group(name) else {
            return false;
        };
        group.members.join_named(subscription);
        true
    }

    /// Sets the nodes of the groups' patterns that match the queue. A group that is new starts at
    /// this head; its members have not checked a queue that was `known` before. Returns the nodes of
    /// groups for which there is no room.
    pub(crate) fn set_nodes(
        &mut self,
        entry: &Arc<QueueEntry>,
        nodes: Vec<Arc<PatternNode>>,
        head: &QueueHead,
        is_known: bool,
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
            group.set_nodes(entry, nodes);
        }
        for (name, nodes) in of_groups {
            match self.make_group(&name, head) {
                Some(group) => {
                    group.set_nodes(entry, nodes);
                    group.unchecked = is_known;
                }
                None => others.extend(nodes),
            }
        }
        others
    }

    /// Makes a group where there is room for one more. Those without members give way.
    fn make_group(&mut self, name: &GroupName, head: &QueueHead) -> Option<&mut Box<Group>> {
        let config = &self.shared.config;
        if self.groups.len() >= config.max_groups_per_queue {
            let has_members = |group: &Group| group.left_at.is_none() || !group.members.is_empty();
            self.groups.retain(|_, group| has_members(group));
        }
        let has_room = self.groups.len() < config.max_groups_per_queue
            && self.shared.groups.load(Ordering::Relaxed) < config.max_groups as u64;
        let make = || Box::new(Group::new(name.clone(), head, &self.shared));
        has_room.then(|| self.groups.entry(name.clone()).or_insert_with(make))
    }

    /// Forgets the groups without members that are kept no longer.
    pub(crate) fn forget_kept(&mut self, now: Tick) {
        self.groups.retain(|_, group| group.is_kept(now));
    }

    /// Returns whether work must be passed on, once.
    pub(crate) fn take_passed_on(&mut self) -> bool {
        let groups = self.groups_mut();
        let taken = groups.map(|group| std::mem::take(&mut group.passed_on));
        taken.fold(false, |any, one| any | one)
    }

    /// Runs the due work, and forgets groups that were kept for long enough. Where a check is due, it
    /// returns whether a listener outside of groups, of which there are `others`, has its turn.
    pub(crate) fn run_due(&mut self, head: &QueueHead, others: usize, now: Tick) -> Option<bool> {
        for (name, group) in &mut self.groups {
            if group.note_members(now)
                && self.last_checked_group.as_ref() == Some(name)
                && let Some(sentinel) = &mut self.sentinel
            {
                sentinel.ask_at_once(now);
            }
        }
        self.forget_kept(now);
        for group in self.active() {
            group.run_due(&head.counters, now);
        }
        self.now = now;
        let turn_of_others = self.begin_check(others, now);
        // Moved later only when the timers have fired: most redeliveries are covered long before.
        if self.reconcile_at <= now {
            self.reconcile_at = Tick::NEVER;
        }
        turn_of_others
    }

    /// Assigns each group's pending work, to the members of one step; returns whether more is left. The
    /// timers call the coordinator when it is due next.
    pub(crate) fn assign(
        &mut self,
        entry: &Arc<QueueEntry>,
        head: &QueueHead,
        batch: &mut WakeBatch,
    ) -> bool {
        let (mut more, mut limit, now) = (false, SUBSCRIBERS_PER_STEP, self.now);
        for group in self.active() {
            for _ in 0..2 {
                if group.members.any_ready() {
                    more |= group.assign(entry, head, now, &mut limit, batch);
                    group.assign_check(entry, head.counters.sequence, now, &mut limit, batch);
                }
                if !group.wait(entry, &head.counters, now) {
                    break;
                }
            }
        }
        self.reconcile_at = self.reconcile_at.min(self.next_due());
        more
    }

    /// Begins a check, where that is due. One listener is asked: a member of the next group, or, after
    /// each group has had its turn in vain, a listener outside of groups.
    fn begin_check(&mut self, others: usize, now: Tick) -> Option<bool> {
        let active = self.active().count();
        let sentinel = self.sentinel.as_mut().filter(|check| check.due <= now)?;
        if active == 0 && others == 0 {
            sentinel.due = Tick::NEVER;
            return None;
        }
        sentinel.restart(now);
        let is_turn_of_others = sentinel.unanswered % (active + 1) == active;
        sentinel.unanswered += 1;
        Some(is_turn_of_others)
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
        let active = self.groups().filter(|group| group.left_at.is_none());
        let sentinel = self.sentinel.iter().map(|check| check.due);
        let due = active.map(Group::due).chain(sentinel).min();
        due.unwrap_or(Tick::NEVER)
    }
}
