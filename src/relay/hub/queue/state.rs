//! The part of a queue entry that its lock guards: the operations on groups and the sentinel.
//!
//! Streams are marked under the lock, and woken after its release. A queue without a group pays for
//! none of this when it is notified.

use std::{sync::Arc, time::Duration};

use super::super::{
    config::SUBSCRIBERS_PER_STEP,
    coordinator::Coordinator,
    counters::QueueHead,
    group::{Group, MemberReport},
    mailbox::WakeBatch,
    pattern::PatternNode,
    queue::{QueueEntry, QueueState},
    subscription::{Owed, Owing, Subscription},
};
use crate::{base::clock::Tick, types::GroupName};

impl QueueState {
    /// Starts the sentinel of a queue that has a listener, unless the sentinel is off.
    pub(crate) fn start_sentinel(&mut self, entry: &QueueEntry, now: Tick, spread: Duration) {
        if !entry.shared.config.sentinel_interval.is_zero() {
            self.coordinator(entry, now).subscriber_joined(now, spread);
        }
    }

    /// A count of a queue with listeners: its sentinel has somebody to ask.
    pub(crate) fn guard(&mut self, entry: &QueueEntry, now: Tick) {
        let waits = |one: &Coordinator| {
            let sentinel = one.sentinel.as_ref();
            sentinel.is_some_and(|check| check.due == Tick::NEVER)
        };
        if self.coordinator.as_deref().is_none_or(waits) && self.listeners() > 0 {
            self.start_sentinel(entry, now, Duration::ZERO);
        }
    }

    /// Sets the nodes of the patterns that match the queue.
    pub(crate) fn set_nodes(
        &mut self,
        entry: &Arc<QueueEntry>,
        nodes: Vec<Arc<PatternNode>>,
        is_known: bool,
        now: Tick,
    ) {
        let by_group = nodes.iter().any(|node| node.group.is_some());
        self.outside.nodes = match by_group || self.grouped {
            true => {
                self.grouped = true;
                // An entry that is new has counted nothing that its groups have not seen.
                let head = self.head();
                let coordinator = self.coordinator(entry, now);
                coordinator.set_nodes(entry, nodes, &head, is_known)
            }
            false => nodes,
        };
    }

    /// Returns the group of a listener, if it is a member here.
    pub(crate) fn group_of(&mut self, listener: &Subscription) -> Option<&mut Group> {
        let name = listener.group.as_ref()?;
        let group = self.coordinator.as_mut()?.group(name)?;
        let is_member =
            group.members.get(listener.id).is_some() || !self.outside.named.contains(listener.id);
        is_member.then_some(group)
    }

    /// Adds a member that names the queue to its group.
    pub(crate) fn join(
        &mut self,
        entry: &QueueEntry,
        name: &GroupName,
        subscription: &Arc<Subscription>,
        (now, spread): (Tick, Duration),
    ) {
        self.grouped = true;
        let head = self.head();
        let coordinator = self.coordinator(entry, now);
        coordinator.join(name, subscription, &head);
        coordinator.subscriber_joined(now, spread);
    }

    /// Returns whether the coordinator has due work, or its check is not in the timers' order yet: a
    /// report has made it.
    pub(crate) fn is_due(&self) -> bool {
        let coordinator = self.coordinator.as_ref();
        coordinator.is_some_and(|one| one.needs_reconcile || self.armed > one.reconcile_at)
    }

    /// Takes a listener's report. Returns how many other listeners are to be asked.
    pub(crate) fn report(
        &mut self,
        listener: &Subscription,
        is_member: bool,
        report: MemberReport,
        now: Tick,
    ) -> u64 {
        let Some(coordinator) = &mut self.coordinator else {
            return 0;
        };
        let mut more = 0;
        if report.polled {
            more = coordinator.check_reported(listener, is_member, report, now);
        }
        let group = listener.group.as_ref().filter(|_| is_member);
        if let Some(group) = group.and_then(|name| coordinator.group(name)) {
            group.report(listener.id, report, now);
            coordinator.needs_reconcile = true;
        }
        if report.polled && coordinator.announces_checks() {
            self.note_check(now);
        }
        more
    }

    /// Asks more listeners outside of groups to check.
    pub(crate) fn ask_more(
        &mut self,
        entry: &Arc<QueueEntry>,
        more: u64,
        now: Tick,
        batch: &mut WakeBatch,
    ) {
        let coordinator = self.coordinator.as_mut();
        let Some(sentinel) = coordinator.and_then(|one| one.sentinel.as_mut()) else {
            return;
        };
        for one in sentinel.choose_more(&self.outside, more, now) {
            one.owe(entry, self, Owed::Check, batch);
        }
    }

    /// Asks the next listener outside of groups; returns whether there is one.
    fn ask(&mut self, entry: &Arc<QueueEntry>, now: Tick, batch: &mut WakeBatch) -> bool {
        // One that has ended is in the list for a moment longer.
        for _ in 0..=self.outside.len() {
            let coordinator = self.coordinator.as_mut();
            let sentinel = coordinator.and_then(|one| one.sentinel.as_mut());
            let chosen = sentinel.and_then(|sentinel| sentinel.choose(&self.outside, now));
            let Some(chosen) = chosen else {
                return false;
            };
            if chosen.owe(entry, self, Owed::Check, batch) != Owing::Ended {
                return true;
            }
        }
        false
    }

    /// Runs the due work of groups and sentinel, and assigns pending work; returns whether more is
    /// left to assign.
    pub(crate) fn reconcile(
        &mut self,
        entry: &Arc<QueueEntry>,
        now: Tick,
        batch: &mut WakeBatch,
    ) -> bool {
        let (head, others) = (self.head(), self.outside.len());
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        // A turn that nobody can take goes to the next one.
        if let Some(turn_of_others) = coordinator.run_due(&head, others, now)
            && !(turn_of_others && self.ask(entry, now, batch))
        {
            let coordinator = self.coordinator.as_mut();
            let by_group = coordinator.is_some_and(|one| one.check_groups(&head.counters, now));
            if !by_group && !turn_of_others {
                self.ask(entry, now, batch);
            }
        }
        let coordinator = self.coordinator.as_ref();
        let left = coordinator.is_some_and(|one| one.groups().next().is_none());
        if self.grouped && left {
            self.grouped = false;
            self.left_at = now;
            self.drop_unused_coordinator();
        }
        self.grouped && self.assign(entry, batch)
    }

    /// Assigns the groups' pending work, up to the limit of one step.
    pub(crate) fn assign(&mut self, entry: &Arc<QueueEntry>, batch: &mut WakeBatch) -> bool {
        let head = self.head();
        let Some(coordinator) = &mut self.coordinator else {
            return false;
        };
        coordinator.assign(entry, &head, SUBSCRIBERS_PER_STEP, batch)
    }

    pub(crate) fn head(&self) -> QueueHead {
        let known = self.announced.as_ref();
        QueueHead {
            counters: self.counters,
            notified: self.notified,
            timed: known.map_or(u64::MAX, |known| known.timed),
            has_increments: self.own_causes() > 0,
        }
    }

    /// Returns the coordinator for listeners that join: a group that was kept for long enough is new
    /// to them.
    fn coordinator(&mut self, entry: &QueueEntry, now: Tick) -> &mut Coordinator {
        let new = || Box::new(Coordinator::new(&entry.shared, entry.number(), now));
        let coordinator = self.coordinator.get_or_insert_with(new);
        coordinator.forget_expired(now);
        coordinator
    }

    /// Drops the coordinator where no listener needs it. A sentinel stays for as long as the queue
    /// is remembered.
    pub(crate) fn drop_unused_coordinator(&mut self) {
        let coordinator = self.coordinator.as_ref();
        let stays = coordinator.is_some_and(|one| one.sentinel.is_some() || one.passed_on);
        if !self.grouped && self.outside.is_empty() && !stays {
            self.coordinator = None;
        }
    }
}
