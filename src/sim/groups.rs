//! Fleets in the simulation: members of one group, what the relay owes to them, and the sentinel.
//!
//! The model's own opinion, written from the protocol: a message that is due in a fleet's queue is
//! looked for by one member at once; later by a claim time-out for each stream that may have been
//! asked in vain; or where a member that is alive said BUSY, when its lease has ended. A message
//! that nobody told the relay of is found by the sentinel.

use std::{collections::BTreeMap, time::Duration};

use super::{
    net::ConnId,
    oracle::SOON,
    plan::{ListenerPlan, Plan, Trouble, Work, address, seconds},
    queue::{Announced, MessageId},
    scaled::Scaled,
    world::{Event, World},
};
use crate::{
    clock::Tick,
    hub::Pace,
    words::{
        GroupName, QueueAddress, Report, ReportState, Selector, SubscribeOptions, WakeReason,
        WorkDetected,
    },
};

/// What the model knows of fleets in this life of the relay.
#[derive(Debug, Default)]
pub(super) struct Fleets {
    /// Until when a stream is believed to be busy with a queue.
    leases: BTreeMap<(usize, ConnId), Tick>,
    /// When a member's stream ended last, by queue.
    ended: BTreeMap<usize, Tick>,
    /// The greatest sequence that a member reported, by queue.
    covered: BTreeMap<usize, u64>,
    /// The greatest sequence that a member was sent, and the same for REASSIGNED.
    sent: BTreeMap<usize, u64>,
    reassigned: BTreeMap<usize, u64>,
}

/// A wake-up that one listener alone is sent and does not cover goes to another after this: longer
/// than anything takes that works.
const CLAIM: Duration = Duration::from_secs(2);
/// Shorter than a frozen listener's stream lasts.
const LEASE: Duration = Duration::from_secs(4);
/// A report that puts the sentinel off may be late, and repeated once.
const LATE_REPORT: Duration = Duration::from_secs(8);
/// Where reports are lost, it may be repeated more often.
const LOST_REPORTS: Duration = Duration::from_secs(30);

/// Returns the waiting times of a run.
pub(super) fn pace(sentinel: Duration) -> Pace {
    Pace {
        sentinel,
        claim: CLAIM,
        lease: LEASE,
        ..Pace::default()
    }
}

/// Chooses a fleet: some members that share one or two queues, now and then without a group.
pub(super) fn fleet(rng: &mut fastrand::Rng) -> (Vec<ListenerPlan>, Vec<QueueAddress>) {
    let queues: Vec<_> = (0..rng.usize(1..=2))
        .map(|number| address(&format!("l0-{number}")))
        .collect();
    let group = GroupName::new("fleet").expect("a name");
    let grouped = rng.u32(0..5) != 0;
    // Now and then a listener outside of the group.
    let beside = rng.u32(0..4) == 0;
    let plan = |number| {
        let selectors = match rng.u32(0..4) {
            0 => vec![Selector::new("acct", "l0-*").expect("a selector")],
            _ => queues.iter().map(Selector::from).collect(),
        };
        let mut plan = ListenerPlan::new(selectors, rng);
        plan.group = (grouped && !(beside && number == 0)).then(|| group.clone());
        plan.capacity = rng.u32(1..=6);
        plan
    };
    (
        (0..4).map(plan).take(1 + queues.len() * 2).collect(),
        queues,
    )
}

/// Chooses the sentinel's interval: mostly none, because it hides what others miss.
pub(super) fn sentinel(rng: &mut fastrand::Rng) -> Duration {
    match rng.u32(0..8) {
        0 => seconds(5),
        1 | 2 => seconds(25),
        _ => Duration::ZERO,
    }
}

impl Plan {
    /// Now and then makes a fleet in which nothing hides what a busy member leaves behind: each
    /// takes on a whole batch and says so, then dies or freezes at its first messages; and long
    /// after that nothing new wakes anybody.
    pub(super) fn strain(&mut self, rng: &mut fastrand::Rng) {
        match rng.u32(0..6) {
            0 | 1 => {}
            2 => return self.hang(rng),
            _ => return,
        }
        if rng.bool() {
            self.listeners.truncate(2);
        }
        for member in &mut self.listeners {
            (member.mute, member.terse) = (false, false);
            (member.capacity, member.handling) = (6, 3_000);
        }
        self.works = vec![Work::PutBatch];
        self.troubles = vec![match rng.u32(0..3) {
            0 => Trouble::CrashHolding,
            _ => Trouble::PauseBusy,
        }];
        (self.work_gap, self.trouble_gap) = (20_000, 30_000);
        (self.active, self.steady) = (seconds(90), None);
        self.sentinel = Duration::ZERO;
    }
}

impl Plan {
    /// A fleet of one or two members, and a listener outside of the group where there is a sentinel:
    /// members freeze or do not read, and others must be asked in their place.
    fn hang(&mut self, rng: &mut fastrand::Rng) {
        self.listeners.truncate(3);
        let beside = rng.bool();
        let group = GroupName::new("fleet").expect("a name");
        for (number, listener) in self.listeners.iter_mut().enumerate() {
            listener.group = (!(beside && number == 0)).then(|| group.clone());
            (listener.mute, listener.terse) = (false, false);
        }
        self.troubles = vec![Trouble::PauseListener, Trouble::SlowReader];
        self.works = vec![Work::PutBatch];
        self.sentinel = Duration::ZERO;
        if beside {
            self.works = vec![Work::PutUntold];
            self.sentinel = seconds(5);
        }
        (self.work_gap, self.trouble_gap) = (8_000, 6_000);
        (self.active, self.steady) = (seconds(90), None);
    }
}

impl World {
    /// Puts a message of which nobody will ever tell.
    pub(super) fn put_untold(&mut self, queue: usize) {
        let message = self
            .queues
            .put(queue, self.now, self.now, Announced::Nobody);
        let numbers = [queue as u64, message as u64];
        self.log.note(self.now, "put untold", &numbers);
    }

    /// Puts some messages, and notifies of all of them by one event: one member may take them on.
    pub(super) fn put_batch(&mut self, number: usize, queue: usize) {
        if !self.publishers[number].alive {
            return;
        }
        let (now, life) = (self.now, self.publishers[number].life);
        for _ in 0..self.rng.usize(1..=4) {
            let by = Announced::Publisher(number, life);
            let message = self.queues.put(queue, now, now, by);
            self.log
                .note(now, "put", &[number as u64, queue as u64, message as u64]);
            self.publishers[number].along.push(message);
        }
        self.put(number, queue);
    }

    pub(super) fn is_member(&self, listener: usize) -> bool {
        self.plan.listeners[listener].group.is_some()
    }

    /// Adds what a fleet's member states to its subscription.
    pub(super) fn as_member(&self, number: usize, options: SubscribeOptions) -> SubscribeOptions {
        let plan = &self.plan.listeners[number];
        SubscribeOptions {
            group: plan.group.clone(),
            capacity: plan.capacity,
            ..options
        }
    }

    /// A stream is sent a wake-up; returns whether it may bear a sequence that was told before.
    pub(super) fn given(&mut self, listener: usize, queue: usize, entry: &WorkDetected) -> bool {
        self.totals.reassigned += u64::from(entry.reason == WakeReason::Reassigned);
        self.totals.looks += u64::from(entry.reason == WakeReason::Sentinel);
        if !self.is_member(listener) {
            return entry.reason == WakeReason::Sentinel;
        }
        let fleets = &mut self.relay.fleets;
        let sent = fleets.sent.entry(queue).or_default();
        *sent = entry.sequence.max(*sent);
        if entry.reason == WakeReason::Reassigned {
            let reassigned = fleets.reassigned.entry(queue).or_default();
            *reassigned = entry.sequence.max(*reassigned);
        }
        true
    }

    /// A member's report was accepted.
    pub(super) fn member_reported(&mut self, id: ConnId, queue: usize, report: &Report) {
        let (now, head) = (self.now, self.head_of(queue));
        let Some(stream) = self.relay.streams.get(&id) else {
            return;
        };
        let (number, woken) = (stream.listener, stream.woken(queue));
        if !self.is_member(number) || report.state == ReportState::Unspecified {
            return;
        }
        let sequence = if report.sequence > head {
            0
        } else {
            report.sequence
        };
        let fleets = &mut self.relay.fleets;
        let covered = fleets.covered.entry(queue).or_default();
        *covered = sequence.max(*covered);
        let behind = *covered < head;
        match report.state {
            ReportState::Busy => {
                fleets.leases.insert((queue, id), now + LEASE);
                if self.may(Trouble::PauseBusy) && self.rng.u32(0..3) == 0 {
                    let until = self.until(10_000, 40_000);
                    self.pause_listener(number, until);
                }
            }
            _ => _ = self.relay.fleets.leases.remove(&(queue, id)),
        }
        let drained = report.state == ReportState::Drained;
        // A record that was made anew starts at its floor, and nothing is owed of it.
        let newest = self.relay.causes.get(&queue).map(|(sequence, _)| *sequence);
        let behind = behind && newest == Some(head);
        if drained && behind && woken <= Some(sequence) && self.is_settled(number) {
            let (life, soon) = (self.relay.life, SOON / 2);
            self.after(soon, Event::RestCheck(number, id, queue, life, head));
        }
    }

    /// What was counted after a member drained has been handed out by now, unless it is covered
    /// (R15).
    pub(super) fn check_rest(
        &mut self,
        number: usize,
        id: ConnId,
        queue: usize,
        life: u64,
        head: u64,
    ) {
        // It may have been handed to a stream that does not read it just now.
        let in_vain = self.tries(&self.members_of(queue)) > 0;
        if life != self.relay.life || !self.is_settled(number) || in_vain {
            return;
        }
        if self.listeners[number].conn != Some(id) {
            return;
        }
        let fleets = &self.relay.fleets;
        let upto = |map: &BTreeMap<usize, u64>| map.get(&queue).copied().unwrap_or_default();
        let told = self.relay.streams.get(&id).and_then(|s| s.woken(queue));
        let done = upto(&fleets.covered) >= head || upto(&fleets.reassigned) >= head
            // Handed on with what was counted since.
            || upto(&fleets.sent) > head
 || told >= Some(head);
        if !done {
            self.violate(|| {
                format!("R15: a member drained queue {queue}, and {head} is owed to nobody")
            });
        }
    }

    /// A member's stream ended: what it was busy with is another one's.
    pub(super) fn member_was_lost(&mut self, id: ConnId) {
        let now = self.now;
        for queue in 0..self.queues.list.len() {
            self.relay.fleets.leases.remove(&(queue, id));
            self.relay.fleets.ended.insert(queue, now);
        }
    }

    /// A message that is due in a fleet's queue is looked for.
    pub(super) fn check_fleet(&mut self, id: MessageId, due: Tick) {
        let queue = self.queues.messages[id].queue;
        let members = self.members_of(queue);
        if !members.iter().any(|number| self.is_settled(*number)) || self.works(queue, &members) {
            return;
        }
        let busy = self.relay.fleets.leases.iter();
        let believed = busy
            .filter(|((of, _), _)| *of == queue)
            .map(|(_, end)| *end);
        let ended = self.relay.fleets.ended.get(&queue).copied();
        let from = believed
            .chain(ended)
            .fold(self.calm(&members, due), Tick::max);
        let by = from + CLAIM * self.tries(&members) + SOON;
        if self.now > by {
            self.violate(|| {
                format!(
                    "I1: no member looks for message {id} in queue {queue}, due at {:.3} s",
                    due.as_nanos() as f64 / 1e9
                )
            });
        }
    }

    /// A message that nobody told the relay of is found by the sentinel (R11).
    pub(super) fn check_orphan(&mut self, id: MessageId) {
        let now = self.now;
        let message = &self.queues.messages[id];
        if message.announced != Announced::Nobody {
            self.relay.orphans.remove(&id);
            return;
        }
        let since = *self.relay.orphans.entry(id).or_insert(now);
        let (queue, from) = (message.queue, since.max(message.visible_at));
        if self.plan.sentinel.is_zero() {
            return;
        }
        if !self.is_known(queue) {
            // Its interval begins with its entry, which may have been refused for want of room.
            self.relay.orphans.insert(id, now);
            return;
        }
        let listeners = self.listening_on(queue);
        let settled = listeners.iter().any(|number| self.is_settled(*number));
        if !settled || self.works(queue, &listeners) {
            return;
        }
        let from = self.calm(&listeners, from);
        let late = match self.plan.may(Trouble::ReportsLost) {
            true => LOST_REPORTS,
            false => LATE_REPORT,
        };
        let tries = self.tries(&listeners);
        // Silence proves nothing where no queue is known: the next one is asked an interval later.
        let named = listeners.iter().all(|number| {
            let mut selectors = self.plan.listeners[*number].selectors.iter();
            selectors.all(|selector| !selector.is_pattern())
        });
        let rounds = if named { 1 } else { 1 + tries };
        let interval = self.plan.sentinel * 11 / 10;
        if now > from + interval * rounds + CLAIM * tries + late + SOON {
            self.violate(|| format!("R11: nobody looks for message {id} in queue {queue}"));
        }
    }

    /// Returns whether the relay has heard of the queue, or no pattern is concerned: a new queue is
    /// looked for under a pattern's own name only where that knows no other.
    pub(super) fn is_known(&self, queue: usize) -> bool {
        let address = &self.queues.list[queue].address;
        let Some(hub) = &self.relay.hub else {
            return false;
        };
        let known = hub.queues(None, usize::MAX, self.now);
        let concerned = self.listening_on(queue).into_iter().any(|number| {
            let mut selectors = self.plan.listeners[number].selectors.iter();
            selectors.any(|pattern| {
                pattern.is_pattern()
                    && pattern.matches(address)
                    && known.iter().any(|view| pattern.matches(&view.address))
            })
        });
        !concerned || known.iter().any(|view| view.address == *address)
    }

    fn members_of(&self, queue: usize) -> Vec<usize> {
        let mut all = self.listening_on(queue);
        all.retain(|number| self.is_member(*number));
        all
    }

    fn listening_on(&self, queue: usize) -> Vec<usize> {
        let address = &self.queues.list[queue].address;
        let wants = |number: &usize| {
            let selectors = &self.plan.listeners[*number].selectors;
            selectors.iter().any(|selector| selector.matches(address))
        };
        (0..self.listeners.len()).filter(wants).collect()
    }

    /// Returns whether somebody reads the queue who can.
    fn works(&self, queue: usize, listeners: &[usize]) -> bool {
        listeners.iter().any(|number| {
            let listener = &self.listeners[*number];
            let worker = listener.workers.get(&queue);
            let awake = listener.session.is_some() && listener.paused_until <= self.now;
            // With each of its tasks at work it has no slot free to look: the next free one does (R18).
            let full = listener.scaled.get(&queue).is_some_and(Scaled::is_full);
            awake && !listener.leaving && (full || worker.is_some_and(|worker| worker.active))
        })
    }

    /// Returns since when nothing has been wrong with those that are well now.
    fn calm(&self, listeners: &[usize], from: Tick) -> Tick {
        let settled = listeners.iter().filter(|number| self.is_settled(**number));
        let ok = settled.map(|number| self.listeners[*number].ok_from);
        ok.fold(from, Tick::max)
    }

    fn is_settled(&self, number: usize) -> bool {
        self.is_well(number) && self.listeners[number].ok_from <= self.now
    }

    /// Returns how many may be asked in vain: streams whose listeners are not well, and those that
    /// are about to have one.
    fn tries(&self, listeners: &[usize]) -> u32 {
        let well = |number: usize| self.is_settled(number);
        let ghosts = self.relay.streams.iter().filter(|(id, stream)| {
            let current = self.listeners[stream.listener].conn == Some(**id);
            listeners.contains(&stream.listener) && !(current && well(stream.listener))
        });
        let away = listeners.iter().filter(|number| !well(**number)).count();
        u32::try_from(ghosts.count() + away).expect("few")
    }
}
