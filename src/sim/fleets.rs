//! The relay's duties towards each group of a queue.
//!
//! The model's expectation, written from the protocol: for a due message one member of each group
//! polls at once. It polls later by a claim time-out for each stream that may have been asked in
//! vain, or, if a live member reported BUSY, when the lease has ended. A group receives each event,
//! wakes no more members than its messages need, and redelivers the work that a busy member leaves.

use std::collections::BTreeMap;

use super::{
    groups::{CLAIM, LEASE},
    net::{Client, ConnId},
    oracle::SOON,
    plan::Trouble,
    queue::MessageId,
    scaled::LOOKED,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    types::{
        GroupName, Notification, Report, ReportState, SubscribeOptions, WakeReason, WorkDetected,
    },
};

/// A queue, and a group that shares its wake-ups.
type Fleet = (usize, GroupName);

/// The model's state of fleets in this life of the relay.
#[derive(Debug, Default)]
pub(super) struct Fleets {
    /// Until when a stream counts as busy with a queue.
    leases: BTreeMap<(usize, ConnId), Tick>,
    /// When a wake-up of a queue was last sent to a member's stream.
    told: BTreeMap<(usize, ConnId), Tick>,
    groups: BTreeMap<Fleet, Shared>,
    /// When a listener last reported a queue.
    pub(super) reported: BTreeMap<usize, Tick>,
}

/// One group on one queue.
#[derive(Debug, Default)]
struct Shared {
    /// When a member's stream ended last.
    ended: Option<Tick>,
    /// The greatest sequence that a member reported.
    covered: u64,
    /// The greatest sequence that a member was sent, and the same for REASSIGNED.
    sent: u64,
    reassigned: u64,
    /// The head that a member drained; messages counted since, and members woken for them.
    drained: u64,
    counted: u64,
    woken: u64,
}

/// Timers add messages that the model does not see one by one.
const TIMED: u64 = 1 << 32;

impl Fleets {
    fn of(&mut self, queue: usize, group: &GroupName) -> &mut Shared {
        self.groups.entry((queue, group.clone())).or_default()
    }

    /// Timers of any queues have fired.
    pub(super) fn timed(&mut self) {
        for shared in self.groups.values_mut() {
            shared.counted = shared.counted.saturating_add(TIMED);
        }
    }
}

impl World {
    pub(super) fn group_of(&self, listener: usize) -> Option<&GroupName> {
        self.plan.listeners[listener].group.as_ref()
    }

    pub(super) fn is_member(&self, listener: usize) -> bool {
        self.group_of(listener).is_some()
    }

    /// Adds a fleet member's options to its subscription.
    pub(super) fn as_member(&self, number: usize, options: SubscribeOptions) -> SubscribeOptions {
        let plan = &self.plan.listeners[number];
        SubscribeOptions {
            group: plan.group.clone(),
            capacity: plan.capacity,
            ..options
        }
    }

    /// Returns the groups of a queue, with or without connected members.
    fn groups_of(&self, queue: usize) -> Vec<GroupName> {
        let listening = self.listening_on(queue).into_iter();
        let mut groups: Vec<_> = listening
            .filter_map(|one| self.group_of(one).cloned())
            .collect();
        groups.sort();
        groups.dedup();
        groups
    }

    fn members_of(&self, queue: usize, group: &GroupName) -> Vec<usize> {
        let mut all = self.listening_on(queue);
        all.retain(|number| self.group_of(*number) == Some(group));
        all
    }

    /// A queue was notified: every group needs members for its messages.
    pub(super) fn counted_for_groups(&mut self, queue: usize, notification: &Notification) {
        let needs = notification.messages.max(notification.notifications).max(1);
        for group in self.groups_of(queue) {
            let shared = self.relay.fleets.of(queue, &group);
            shared.counted = shared.counted.saturating_add(needs);
        }
    }

    /// A stream is sent a wake-up; returns whether it may bear a sequence that was told before.
    pub(super) fn given(&mut self, id: ConnId, queue: usize, entry: &WorkDetected) -> bool {
        self.totals.reassigned += u64::from(entry.reason == WakeReason::Reassigned);
        self.totals.looks += u64::from(entry.reason == WakeReason::Sentinel);
        let listener = self.relay.streams[&id].listener;
        let Some(group) = self.group_of(listener).cloned() else {
            return entry.reason == WakeReason::Sentinel;
        };
        let fleets = &mut self.relay.fleets;
        fleets.told.insert((queue, id), self.now);
        let shared = fleets.of(queue, &group);
        shared.sent = entry.sequence.max(shared.sent);
        if entry.reason == WakeReason::Reassigned {
            shared.reassigned = entry.sequence.max(shared.reassigned);
        }
        if entry.reason == WakeReason::Notified && entry.sequence > shared.drained {
            shared.woken += 1;
            let (woken, counted) = (shared.woken, shared.counted);
            if woken > counted {
                self.violate(|| {
                    format!(
                        "R12: {woken} members are woken for {counted} messages in queue {queue}"
                    )
                });
            }
        }
        true
    }

    /// A member's report was accepted.
    pub(super) fn member_reported(&mut self, id: ConnId, queue: usize, report: &Report) {
        let (now, head) = (self.now, self.head_of(queue));
        let Some(stream) = self.relay.streams.get(&id) else {
            return;
        };
        if report.state == ReportState::Unspecified {
            return;
        }
        let (number, woken) = (stream.listener, stream.woken(queue));
        self.relay.fleets.reported.insert(queue, now);
        let Some(group) = self.group_of(number).cloned() else {
            return;
        };
        let sequence = if report.sequence > head {
            0
        } else {
            report.sequence
        };
        let drained = report.state == ReportState::Drained;
        let shared = self.relay.fleets.of(queue, &group);
        shared.covered = sequence.max(shared.covered);
        let behind = shared.covered < head;
        if drained && woken.is_some() && sequence == head {
            (shared.drained, shared.counted, shared.woken) = (head, 0, 0);
        }
        match report.state {
            ReportState::Busy => self.member_is_busy(number, id, queue),
            _ => _ = self.relay.fleets.leases.remove(&(queue, id)),
        }
        // A record that was made anew starts at its floor, and nothing is owed of it.
        let newest = self.relay.causes.get(&queue).map(|(sequence, _)| *sequence);
        let behind = behind && newest == Some(head);
        if drained && behind && woken <= Some(sequence) && self.is_settled(number) {
            let (life, soon) = (self.relay.life, SOON / 2);
            self.after(soon, Event::RestCheck(number, id, queue, life, head));
        }
    }

    /// A member has a lease from now on; it may hang at once.
    fn member_is_busy(&mut self, number: usize, id: ConnId, queue: usize) {
        let end = self.now + LEASE;
        self.relay.fleets.leases.insert((queue, id), end);
        let life = self.relay.life;
        self.at(end + SOON, Event::LapseCheck(id, queue, life, end));
        if self.may(Trouble::PauseBusy) && self.rng.u32(0..3) == 0 {
            let until = self.until(10_000, 40_000);
            self.pause_listener(number, until);
        }
    }

    /// A member's lease has ended without another report: its work was handed on (R14:
    /// BUSY is a lease).
    pub(super) fn check_lapse(&mut self, id: ConnId, queue: usize, life: u64, end: Tick) {
        let lapsed = self.relay.fleets.leases.get(&(queue, id)) == Some(&end);
        if lapsed && life == self.relay.life && !self.is_handed_on(id, queue, end) {
            self.violate(|| {
                format!(
                    "R14: a lease of queue {queue} has lapsed, and no member is told of its work"
                )
            });
        }
    }

    /// A busy member's stream has ended: its work was handed on (R16: the end redelivers at once).
    pub(super) fn check_end(&mut self, id: ConnId, queue: usize, life: u64, end: Tick) {
        if life == self.relay.life && !self.is_handed_on(id, queue, end) {
            self.violate(|| {
                format!(
                    "R16: a busy member of queue {queue} has ended, and no member is told of its work"
                )
            });
        }
    }

    /// Returns whether another member of the group received a wake-up for the queue since, or none
    /// could: no more is required if not all of the others are healthy.
    fn is_handed_on(&self, id: ConnId, queue: usize, since: Tick) -> bool {
        let Client::Listener(number, _) = self.conns[id].client else {
            return true;
        };
        let Some(group) = self.group_of(number) else {
            return true;
        };
        let mut others = self.members_of(queue, group);
        // It may be back on another stream.
        let gone = self.listeners[number].conn != Some(id);
        others.retain(|other| gone || *other != number);
        let can =
            |other: &usize| self.is_settled(*other) && self.listeners[*other].ok_from <= since;
        let ghosts = self.relay.streams.iter();
        let mut ghosts =
            ghosts.filter(|(other, stream)| **other != id && stream.listener == number);
        let in_vain = self.tries(&others) > 0 || ghosts.next().is_some();
        if others.is_empty() || !others.iter().all(can) || in_vain {
            return true;
        }
        let told = self.relay.fleets.told.iter();
        let mut told = told.filter(|((of, stream), at)| {
            let listener = self.relay.streams.get(stream).map(|one| one.listener);
            *of == queue
                && *stream != id
                && **at >= since
                && listener.is_some_and(|one| others.contains(&one))
        });
        told.next().is_some()
    }

    /// Events after a member's drain have been assigned by now, unless they are covered (R15:
    /// they are pending at once).
    pub(super) fn check_rest(
        &mut self,
        number: usize,
        id: ConnId,
        queue: usize,
        life: u64,
        head: u64,
    ) {
        let Some(group) = self.group_of(number).cloned() else {
            return;
        };
        // It may have been handed to a stream that does not read it just now.
        let in_vain = self.tries(&self.members_of(queue, &group)) > 0;
        if life != self.relay.life || !self.is_settled(number) || in_vain {
            return;
        }
        if self.listeners[number].conn != Some(id) {
            return;
        }
        let told = self.relay.streams.get(&id).and_then(|s| s.woken(queue));
        let members = self.members_of(queue, &group);
        let since = self.relay.fleets.told.iter().any(|((of, stream), at)| {
            let listener = self.relay.streams.get(stream).map(|one| one.listener);
            let member = listener.is_some_and(|one| members.contains(&one));
            *of == queue && member && *at + SOON / 2 >= self.now
        });
        let shared = self.relay.fleets.of(queue, &group);
        // It may not have been handed out at all when the member drained.
        let done = since && shared.sent >= head
            || shared.covered >= head || shared.reassigned >= head
            // Redelivered with later events.
            || shared.sent > head
            || told >= Some(head);
        if !done {
            self.violate(|| {
                format!("R15: a member drained queue {queue}, and {head} is owed to no member")
            });
        }
    }

    /// Every group of the queue has been told of this sequence by now, where all of its members are
    /// well.
    pub(super) fn check_groups_told(&mut self, queue: usize, sequence: u64, since: Tick) {
        for group in self.groups_of(queue) {
            let members = self.members_of(queue, &group);
            let can = |one: &usize| self.is_settled(*one) && self.listeners[*one].ok_from <= since;
            if !members.iter().all(can) || self.tries(&members) > 0 {
                continue;
            }
            let shared = self.relay.fleets.of(queue, &group);
            let (sent, covered) = (shared.sent, shared.covered);
            if sent.max(covered) < sequence {
                self.violate(|| {
                    format!(
                        "I1: group {group} of queue {queue} is told of {sent}, not of {sequence}"
                    )
                });
            }
        }
    }

    /// A member subscribed. Where its group is a new one, it must be told of each queue that the
    /// member names (R2: uncertainty becomes a CATCH_UP).
    pub(super) fn member_came(&mut self, id: ConnId, options: &SubscribeOptions) {
        let Client::Listener(number, _) = self.conns[id].client else {
            return;
        };
        let Some(group) = self.group_of(number).cloned() else {
            return;
        };
        let named = options.selectors.iter().filter_map(|one| one.as_address());
        for address in named.collect::<Vec<_>>() {
            let queue = self.queues.find(&address).expect("all queues are known");
            let mut streams = self.relay.streams.iter().filter(|(other, _)| **other != id);
            let there = streams.any(|(_, stream)| {
                let wants = self.listeners[stream.listener].wants(&address);
                wants && self.group_of(stream.listener) == Some(&group)
            });
            let kept = self.plan.keep + SOON;
            let shared = self.relay.fleets.of(queue, &group);
            let is_new = shared.ended.is_none_or(|ended| self.now > ended + kept);
            if is_new && !there {
                let (life, now) = (self.relay.life, self.now);
                self.after(SOON, Event::GroupCheck(id, queue, life, now));
            }
        }
    }

    /// A new group has been told of the queue by now.
    pub(super) fn check_new_group(&mut self, id: ConnId, queue: usize, life: u64, since: Tick) {
        let told = self.relay.fleets.told.get(&(queue, id));
        let Client::Listener(number, _) = self.conns[id].client else {
            return;
        };
        let here = self.listeners[number].conn == Some(id) && life == self.relay.life;
        let Some(group) = self
            .group_of(number)
            .cloned()
            .filter(|_| here && told.is_none())
        else {
            return;
        };
        let members = self.members_of(queue, &group);
        let mut told = self.relay.fleets.told.iter();
        let another = told.any(|((of, other), at)| {
            let client = self.conns[*other].client;
            let member = matches!(client, Client::Listener(one, _) if members.contains(&one));
            *of == queue && *at >= since && member
        });
        let settled = self.is_settled(number) && self.listeners[number].ok_from + SOON <= self.now;
        if another {
        } else if settled && self.tries(&members) == 0 {
            self.violate(|| format!("R2: a new group {group} is told nothing of queue {queue}"));
        } else {
            self.after(SOON, Event::GroupCheck(id, queue, life, since));
        }
    }

    /// A member's stream ended: its work goes to another member.
    pub(super) fn member_was_lost(&mut self, id: ConnId, busy: &[usize]) {
        let (now, life) = (self.now, self.relay.life);
        let Client::Listener(number, _) = self.conns[id].client else {
            return;
        };
        let Some(group) = self.group_of(number).cloned() else {
            return;
        };
        for queue in 0..self.queues.list.len() {
            let lease = self.relay.fleets.leases.remove(&(queue, id));
            if lease.is_some() && busy.contains(&queue) {
                self.after(SOON, Event::EndCheck(id, queue, life, now));
            }
            if self.listeners[number].wants(&self.queues.list[queue].address) {
                self.relay.fleets.of(queue, &group).ended = Some(now);
            }
        }
    }

    /// A member of each group polls for a due message in a fleet's queue.
    pub(super) fn check_fleet(&mut self, id: MessageId, due: Tick) {
        let queue = self.queues.messages[id].queue;
        if self.was_full() && !self.is_remembered(queue) {
            // It is reported under a pattern's name only, which no claim covers.
            return;
        }
        for group in self.groups_of(queue) {
            let members = self.members_of(queue, &group);
            if !members.iter().any(|number| self.is_settled(*number)) || self.works(queue, &members)
            {
                continue;
            }
            let believed = self.relay.fleets.leases.iter();
            let believed = believed.filter(|((of, stream), _)| {
                let one = self.relay.streams.get(stream).map(|one| one.listener);
                *of == queue && one.is_none_or(|one| members.contains(&one))
            });
            let believed: Vec<Tick> = believed.map(|(_, end)| *end).collect();
            let ended = self.relay.fleets.of(queue, &group).ended;
            let from = believed.into_iter().chain(ended);
            let from = from.fold(self.calm(&members, due), Tick::max);
            // A production scaler polls with its tasks.
            let within = match self.plan.attempts.is_own() {
                true => LOOKED,
                false => SOON,
            };
            // A wake-up that comes while a claim is open has the next one.
            let tries = self.tries(&members);
            let by = from + CLAIM * (tries + u32::from(tries > 0)) + within;
            if self.now > by {
                self.violate(|| {
                    format!(
                        "I1: no member looks for message {id} in queue {queue}, due at {:.3} s",
                        due.as_nanos() as f64 / 1e9
                    )
                });
            }
        }
    }
}
