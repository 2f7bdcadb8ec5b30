//! Fleets in the simulation: members of groups that share queues, and the sentinel.
//!
//! The sentinel finds messages without a notification (R11: each queue is checked once per
//! interval). The relay's duties towards a group are in `fleets`.

use std::time::Duration;

use super::{
    oracle::SOON,
    plan::{ListenerPlan, Plan, Shape, Trouble, Work, address, seconds},
    queue::{Announced, MessageId},
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    relay::hub::HubConfig,
    types::{GroupName, QueueAddress, Selector},
};

/// A wake-up that its single receiver does not cover goes to another listener after this time:
/// longer than any healthy handling.
pub(super) const CLAIM: Duration = Duration::from_secs(2);
/// Shorter than a frozen listener's stream lasts.
pub(super) const LEASE: Duration = Duration::from_secs(4);
/// A report that puts the sentinel off may be late, and repeated once.
const LATE_REPORT: Duration = Duration::from_secs(8);
/// Where reports are lost, it may be repeated more often.
const LOST_REPORTS: Duration = Duration::from_secs(30);

/// Returns the waiting times of a run.
pub(super) fn pace(sentinel: Duration, keep: Duration) -> HubConfig {
    HubConfig {
        sentinel_interval: sentinel,
        group_keep: keep,
        claim_timeout: CLAIM,
        busy_lease: LEASE,
        ..HubConfig::default()
    }
}

/// Chooses a fleet: some members that share one or two queues, of one group or two; now and then
/// without a group.
pub(super) fn fleet(rng: &mut fastrand::Rng) -> (Vec<ListenerPlan>, Vec<QueueAddress>) {
    let queues: Vec<_> = (0..rng.usize(1..=2))
        .map(|number| address(&format!("l0-{number}")))
        .collect();
    let grouped = rng.u32(0..5) != 0;
    // Now and then a listener outside of the groups, and a second group.
    let beside = rng.u32(0..4) == 0;
    let groups = 1 + usize::from(rng.u32(0..3) == 0);
    let plan = |number| {
        let selectors = match rng.u32(0..4) {
            0 => vec![Selector::new("acct", "l0-*").expect("a selector")],
            _ => queues.iter().map(Selector::from).collect(),
        };
        let mut plan = ListenerPlan::new(selectors, rng);
        plan.group = (grouped && !(beside && number == 0)).then(|| group(number % groups));
        plan.capacity = rng.u32(1..=6);
        plan
    };
    let count = (queues.len() * 2 + groups).min(5);
    ((0..count).map(plan).collect(), queues)
}

/// Returns the name of a fleet's group.
fn group(number: usize) -> GroupName {
    GroupName::new(["fleet", "other"][number]).expect("a name")
}

/// Chooses for how long a group without members is remembered: mostly for longer than a run.
pub(super) fn keep(rng: &mut fastrand::Rng) -> Duration {
    match rng.u32(0..3) {
        0 => seconds(rng.u64(2..12)),
        _ => seconds(600),
    }
}

/// Chooses the sentinel's interval: mostly none, because a sentinel hides the faults of other
/// parts.
pub(super) fn sentinel(rng: &mut fastrand::Rng) -> Duration {
    match rng.u32(0..8) {
        0 => seconds(5),
        1 | 2 => seconds(25),
        _ => Duration::ZERO,
    }
}

impl Plan {
    /// Now and then makes a fleet in which no later event hides the messages that a busy member
    /// leaves. Each member takes a whole batch and reports it, then crashes or freezes at its first
    /// messages. Long after that no new event wakes a member.
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
    /// A fleet of two or three members, or a listener outside of the group where there is a
    /// sentinel: members freeze, hang or do not read, and others must be asked in their place.
    fn hang(&mut self, rng: &mut fastrand::Rng) {
        self.listeners.truncate(3);
        let beside = rng.bool();
        for (number, listener) in self.listeners.iter_mut().enumerate() {
            listener.group = (!(beside && number == 0)).then(|| group(0));
            (listener.mute, listener.terse) = (false, false);
        }
        // Unread streams and hanging applications, in turn: a wake-up that waits for one stream
        // must go to another one.
        let unread = rng.bool();
        let first = match unread {
            true => Trouble::SlowReader,
            false => Trouble::PauseListener,
        };
        self.troubles = vec![first, Trouble::SlowReader, Trouble::AppStall];
        self.stall = 60_000;
        self.works = vec![Work::PutBatch, Work::Put];
        self.sentinel = Duration::ZERO;
        if beside {
            self.works = vec![Work::PutUntold];
            self.sentinel = seconds(5);
        }
        if unread {
            self.listeners.iter_mut().for_each(|one| one.capacity = 1);
        }
        let gap = if unread { 3_000 } else { 6_000 };
        (self.work_gap, self.trouble_gap) = (8_000, gap);
        (self.active, self.steady) = (seconds(90), None);
    }
}

impl Plan {
    /// A fleet whose members stop together, again and again, and in which little else happens.
    pub(super) fn hang_all(&mut self, rng: &mut fastrand::Rng) {
        self.hang(rng);
        self.troubles = vec![Trouble::FleetStops];
        (self.work_gap, self.trouble_gap, self.aimed) = (40_000, 30_000, false);
        for listener in &mut self.listeners {
            listener.capacity = rng.u32(1..=2);
            // A short heartbeat interval: a heartbeat is the frame in which the client stops.
            listener.heartbeat = seconds(5);
        }
    }
}

impl World {
    /// All members of the fleet stop at once. If there is no other listener, they stop in the
    /// middle of a frame, then a message is put, and one member continues soon: wake-ups that the
    /// others are given when they read again must go to this member.
    pub(super) fn stop_fleet(&mut self) {
        let members = (0..self.listeners.len()).filter(|number| self.is_member(*number));
        let members: Vec<_> = members.collect();
        let alone = members.len() == self.listeners.len();
        let spared = alone.then(|| members[self.rng.usize(0..members.len())]);
        let amid = alone || self.rng.bool();
        for number in members {
            if amid {
                let until = self.until(7_000, 12_000);
                self.stall_reader(number, true, until);
            }
            if spared != Some(number) {
                let until = self.until(20_000, self.plan.stall);
                self.stall_app(number, until);
            }
        }
        self.after(Duration::from_millis(5_200), Event::Operate);
    }

    /// Puts a message that is never notified.
    pub(super) fn put_untold(&mut self, queue: usize) {
        let message = self
            .queues
            .put(queue, self.now, self.now, Announced::Unannounced);
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

    /// The sentinel finds a message without a notification (R11: each queue is checked once per
    /// interval).
    pub(super) fn check_orphan(&mut self, id: MessageId) {
        let now = self.now;
        let message = &self.queues.messages[id];
        if message.announced != Announced::Unannounced {
            self.relay.orphans.remove(&id);
            return;
        }
        let since = *self.relay.orphans.entry(id).or_insert(now);
        let (queue, from) = (message.queue, since.max(message.visible_at));
        if self.plan.sentinel.is_zero() {
            return;
        }
        if !self.is_known(queue) {
            // Its interval begins with its entry, which may have been refused by a full relay.
            self.relay.orphans.insert(id, now);
            return;
        }
        let listeners = self.listening_on(queue);
        let settled = listeners.iter().any(|number| self.is_settled(*number));
        if !settled || self.works(queue, &listeners) {
            return;
        }
        // The interval begins again with each report.
        let reported = self.relay.fleets.reported.get(&queue);
        let from = reported.map_or(from, |at| from.max(*at));
        let from = self.calm(&listeners, from);
        let tries = self.tries(&listeners);
        // One that hangs costs an interval: the next one is asked then.
        let rounds = 1 + tries;
        let interval = self.plan.sentinel * 11 / 10;
        // A machine reports later than it looks.
        let late = match self.plan.shape {
            Shape::Fleet => Duration::ZERO,
            _ if self.plan.may(Trouble::ReportsLost) => LOST_REPORTS,
            _ => LATE_REPORT,
        };
        // A machine whose last task leaves after its report is believed to poll (R11: a
        // polling listener is not asked).
        let scaled = listeners.iter().any(|one| self.listeners[*one].is_scaled());
        let believed = if scaled { interval * 2 } else { Duration::ZERO };
        if now > from + interval * rounds + believed + late + SOON {
            self.violate(|| format!("R11: no listener looks for message {id} in queue {queue}"));
        }
    }

    /// Returns whether the relay knows the queue, or no pattern is concerned: the sentinel checks
    /// under a pattern's own name only if the pattern has no known queue.
    pub(super) fn is_known(&self, queue: usize) -> bool {
        let address = &self.queues.list[queue].address;
        let Some(hub) = &self.relay.hub else {
            return false;
        };
        let known = hub.queues("", usize::MAX, self.now);
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

    pub(super) fn listening_on(&self, queue: usize) -> Vec<usize> {
        let address = &self.queues.list[queue].address;
        let wants = |number: &usize| {
            let selectors = &self.plan.listeners[*number].selectors;
            selectors.iter().any(|selector| selector.matches(address))
        };
        (0..self.listeners.len()).filter(wants).collect()
    }

    /// Returns whether a healthy listener reads the queue.
    pub(super) fn works(&self, queue: usize, listeners: &[usize]) -> bool {
        listeners.iter().any(|number| {
            let listener = &self.listeners[*number];
            let worker = listener.workers.get(&queue);
            let awake = listener.session.is_some() && listener.paused_until <= self.now;
            // With each of its tasks at work it has no slot free for a get: the next free one gets
            // (R18: every wake-up ends in a get).
            let full = listener.scaled.get(&queue).is_some_and(|scaled| {
                scaled.is_full() || self.plan.attempts.is_own() && scaled.is_excused(self.now)
            });
            awake && !listener.leaving && (full || worker.is_some_and(|worker| worker.active))
        })
    }

    /// Returns since when the now healthy listeners have been healthy.
    pub(super) fn calm(&self, listeners: &[usize], from: Tick) -> Tick {
        let settled = listeners.iter().filter(|number| self.is_settled(**number));
        let ok = settled.map(|number| self.listeners[*number].ok_from);
        ok.fold(from, Tick::max)
    }

    pub(super) fn is_settled(&self, number: usize) -> bool {
        self.is_well(number) && self.listeners[number].ok_from <= self.now
    }

    /// Returns how many streams may be asked in vain: those of unhealthy listeners, and those that
    /// such listeners are about to open.
    pub(super) fn tries(&self, listeners: &[usize]) -> u32 {
        let well = |number: usize| self.is_settled(number);
        let ghosts = self.relay.streams.iter().filter(|(id, stream)| {
            let current = self.listeners[stream.listener].conn == Some(**id);
            listeners.contains(&stream.listener) && !(current && well(stream.listener))
        });
        let away = listeners.iter().filter(|number| !well(**number)).count();
        u32::try_from(ghosts.count() + away).expect("few")
    }
}
