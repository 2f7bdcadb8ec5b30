//! The workload and the troubles, each with the time until which the promise is put off.

use std::time::Duration;

use super::{
    check::{HEARD, HEARD_AFTER_DEATH, HEARD_ALL},
    plan::{Trouble, Work},
    world::{Event, World},
};
use crate::sim::plan::address;

/// A relay that was cut off for longer than this may be isolated: its newest own heartbeat was sent
/// up to a second earlier.
const MAY_ISOLATE: Duration = Duration::from_millis(2_300);
/// A peer whose messages are lost for this long may be missing.
const MAY_BE_MISSING: Duration = Duration::from_millis(3_000);
/// Between two cuts with this distance each peer is heard.
const BETWEEN_CUTS: Duration = Duration::from_millis(1_200);
/// A relay is missing after four heartbeats, within this time.
const MISSING: Duration = Duration::from_secs(8);
/// The other server may not know of the interest for this long.
const INTEREST: Duration = Duration::from_millis(500);

impl World {
    /// The next operation, and after a gap the one after it.
    pub(super) fn work(&mut self) {
        if self.healed || self.plan.works.is_empty() {
            return;
        }
        let gap = self.plan.work_gap;
        self.within_millis(gap, Event::Work);
        if self.now < self.quiet_until {
            return;
        }
        let work = self.plan.works[self.rng.usize(0..self.plan.works.len())];
        self.operate(work);
    }

    pub(super) fn operate(&mut self, work: Work) {
        let queue = self.rng.usize(0..self.queues.list.len());
        if self.is_forgiving(queue) {
            return;
        }
        match work {
            Work::Put => self.put(queue, Duration::ZERO),
            Work::PutTwice => {
                self.put(queue, Duration::ZERO);
                self.put(queue, Duration::ZERO);
            }
            Work::Burst => {
                for _ in 0..self.rng.usize(2..20) {
                    let queue = self.rng.usize(0..self.queues.list.len());
                    if !self.is_forgiving(queue) {
                        self.put(queue, Duration::ZERO);
                    }
                }
            }
            Work::PutDelayed => {
                let delay = Duration::from_millis(self.rng.u64(200..15_000));
                self.put(queue, delay);
            }
            Work::FreshQueue => {
                let number = self.queues.list.len();
                let forgives = self.listeners.iter().any(|one| one.forgives);
                let queue = match number < 40 && !forgives {
                    true => self.queues.add(address(&format!("q{number}")), false),
                    false => queue,
                };
                self.put(queue, Duration::ZERO);
            }
        }
    }

    /// Returns whether a listener of the queue may have sequences of a memory that is gone.
    pub(super) fn is_forgiving(&self, queue: usize) -> bool {
        let mut listeners = self.listeners.iter().enumerate();
        listeners.any(|(number, one)| one.forgives && self.wants(number, queue))
    }

    /// The next trouble, often with a second one at the same time.
    pub(super) fn trouble(&mut self) {
        if self.healed || self.plan.troubles.is_empty() {
            return;
        }
        let gap = self.plan.trouble_gap;
        self.within_millis(gap, Event::Trouble);
        if self.now < self.quiet_until {
            return;
        }
        let count = 1 + usize::from(self.rng.u32(0..3) == 0);
        for _ in 0..count {
            let trouble = self.plan.troubles[self.rng.usize(0..self.plan.troubles.len())];
            self.strike(trouble);
        }
        // The next event would hide a lost wake-up.
        if self.rng.bool() {
            let quiet = [8_000, 16_000, 50_000][self.rng.usize(0..3)];
            self.quiet_until = self.now + Duration::from_millis(quiet);
        }
        // Events in the middle of a trouble find most.
        if self.rng.bool() {
            self.within_millis(2_000, Event::Operate(Work::Put));
        }
    }

    pub(super) fn begins(&mut self, trouble: Trouble, relay: usize) {
        self.troubles += 1;
        self.last_trouble = self.now;
        self.totals.count(trouble.name(), 1);
        self.log.note(self.now, trouble.name(), &[relay as u64]);
    }

    fn strike(&mut self, trouble: Trouble) {
        let relay = self.rng.usize(0..self.relays.len());
        let span = self.span();
        let until = self.now + span;
        match trouble {
            Trouble::DropBefore => {
                self.begins(trouble, relay);
                self.broker.ports[relay].drops_up_until = until;
                self.cut_off(relay, span);
            }
            Trouble::DropInClient => {
                self.begins(trouble, relay);
                self.broker.ports[relay].drops_down_until = until;
                self.cut_off(relay, span);
            }
            Trouble::DropBetween | Trouble::Parted => {
                self.begins(trouble, relay);
                match trouble {
                    Trouble::Parted => self.broker.parted_until = until,
                    _ => self.broker.drops_between_until = until,
                }
                (0..self.relays.len()).for_each(|relay| self.cut_off(relay, span));
            }
            Trouble::Delay => {
                self.begins(trouble, relay);
                self.broker.ports[relay].late_until = until;
                let late = span + Duration::from_secs(7);
                (0..self.relays.len()).for_each(|relay| self.cut_off(relay, late));
            }
            Trouble::Break | Trouble::BreakUp | Trouble::BreakDown => {
                self.cut(relay, span, trouble);
            }
            Trouble::ShortBreak => self.short_break(relay),
            Trouble::ServerRestart => self.server_restarts(span),
            Trouble::Copies => {
                self.begins(trouble, relay);
                self.broker.copies_until = self.broker.copies_until.max(until);
            }
            Trouble::Drain => self.drain_soon(relay),
            _ if trouble.ends_relay() || trouble.copies_life() => {
                self.end_relay(trouble, relay);
            }
            Trouble::Pause => self.pause(relay),
            Trouble::StreamBreak | Trouble::SlowReader => self.trouble_stream(trouble),
            Trouble::ListenerCrash => {
                let listener = self.rng.usize(0..self.listeners.len());
                self.begins(trouble, listener);
                self.listener_crashes(listener);
            }
            _ => {}
        }
    }

    fn end_relay(&mut self, trouble: Trouble, relay: usize) {
        // The others happen at their moment: see `strikes`.
        let now = matches!(
            trouble,
            Trouble::Crash
                | Trouble::Restore
                | Trouble::ComesAndGoes
                | Trouble::MetLate
                | Trouble::DeathInBreak
                | Trouble::Clone
                | Trouble::EmptyGroup
        );
        // One that is cut off may take the next frames of a restored one for known ones: a limit of the
        // promise.
        let mut others = self.relays.iter().enumerate();
        let misses = others.any(|(number, one)| number != relay && one.cut_until > self.now);
        if !now || !self.may_crash() || trouble == Trouble::Restore && misses {
            return;
        }
        self.begins(trouble, relay);
        match trouble {
            Trouble::Restore => self.restore(relay),
            Trouble::ComesAndGoes => self.come_and_go(relay),
            Trouble::MetLate => self.meet_late(relay),
            Trouble::DeathInBreak => self.die_in_break(relay),
            Trouble::Clone => self.clone_relay(relay),
            Trouble::EmptyGroup => self.empty_group(relay),
            _ => self.relay_crashes(relay),
        }
    }

    /// Returns whether a trouble happens that has to come at this moment.
    pub(super) fn strikes(&mut self, trouble: Trouble) -> bool {
        self.plan.may(trouble) && !self.healed && self.may_crash() && self.rng.u32(0..12) == 0 && {
            self.begins(trouble, 0);
            true
        }
    }

    pub(super) fn crash_at_once(&mut self, relay: usize) {
        self.at(self.now, Event::RelayCrashes(relay));
    }

    /// One relay always runs.
    fn may_crash(&self) -> bool {
        let running = self.relays.iter().filter(|relay| relay.run.is_some());
        running.count() >= 2
    }

    /// Chooses a duration: short ones are as frequent as long ones.
    fn span(&mut self) -> Duration {
        let longest = [200, 1_500, 3_000, 5_000, 12_000][self.rng.usize(0..5)];
        let span = Duration::from_millis(self.rng.u64(20..=longest));
        span.max(self.shortest_span())
    }

    /// A break that no own message falls into, and that the client does not tell, is noticed by
    /// nothing (limit 2 of the promise).
    pub(super) fn shortest_span(&self) -> Duration {
        match self.plan.events_hidden && self.plan.has_deaths() {
            true => Duration::from_millis(1_500),
            false => Duration::ZERO,
        }
    }

    /// Breaks a relay's connection: both ways, or one.
    pub(super) fn cut(&mut self, relay: usize, span: Duration, trouble: Trouble) {
        self.watch_break(relay, span, trouble);
        self.begins(trouble, relay);
        let until = self.now + span;
        let port = &mut self.broker.ports[relay];
        match trouble {
            Trouble::BreakUp => port.cut_up = true,
            Trouble::BreakDown => port.cut_down = true,
            _ => self.break_connection(relay, span),
        }
        let port = &mut self.broker.ports[relay];
        port.back_at = port.back_at.max(until);
        self.at(until, Event::Connects(relay));
        self.cut_off(relay, span);
        // What happens during a break and about its end finds most.
        let millis = u64::try_from(span.as_millis()).expect("a short time");
        self.within_millis(millis, Event::Operate(Work::Put));
        if self.rng.u32(0..3) == 0 {
            let about = self.rng.u64(millis.saturating_sub(300)..millis + 300);
            self.after_millis(about, Event::BreakStreams(relay));
        }
    }

    fn server_restarts(&mut self, span: Duration) {
        let server = self.rng.usize(0..self.broker.up_from.len());
        self.begins(Trouble::ServerRestart, server);
        let up_from = &mut self.broker.up_from[server];
        *up_from = (*up_from).max(self.now + span);
        for relay in 0..self.relays.len() {
            let port = &self.broker.ports[relay];
            if port.connected && port.server == server {
                let away = Duration::from_millis(self.rng.u64(50..2_000));
                self.break_connection(relay, away);
            }
            self.cut_off(relay, span + Duration::from_secs(2));
        }
    }

    fn pause(&mut self, relay: usize) {
        self.begins(Trouble::Pause, relay);
        let longest = [3_000, 10_000, 60_000][self.rng.usize(0..3)];
        let span = Duration::from_millis(self.rng.u64(1_000..=longest));
        let until = &mut self.relays[relay].paused_until;
        *until = (*until).max(self.now + span);
        self.cut_off(relay, span);
    }

    fn trouble_stream(&mut self, trouble: Trouble) {
        let number = self.rng.usize(0..self.listeners.len());
        let Some(id) = self.listeners[number].conn else {
            return;
        };
        self.begins(trouble, number);
        if trouble == Trouble::StreamBreak {
            return self.reset_conn(id);
        }
        let until = self.now + Duration::from_millis(self.rng.u64(100..5_000));
        let relay = self.conns[id].relay;
        let run = self.relays[relay].run.as_mut();
        if let Some(stream) = run.and_then(|run| run.streams.get_mut(&id)) {
            stream.blocked_until = stream.blocked_until.max(until);
            let listener = &mut self.listeners[number];
            listener.ok_from = listener.ok_from.max(until);
        }
    }

    /// A relay misses messages for this long, or no relay receives its own.
    pub(super) fn cut_off(&mut self, number: usize, span: Duration) {
        let end = self.now + span + INTEREST;
        let deaths = self.last_death.is_some_and(|at| at + MISSING > self.now);
        let relay = &mut self.relays[number];
        // A client that does not tell of its connect sends its next heartbeat up to 1.1 s later.
        let late = match self.plan.events_hidden {
            true => Duration::from_millis(1_100),
            false => Duration::ZERO,
        };
        // A peer may be missing after several short cuts, if its heartbeats fall into them.
        if relay.last_cut_end + BETWEEN_CUTS < self.now {
            relay.cuts_since = self.now;
        }
        relay.last_cut_end = relay.last_cut_end.max(end);
        let in_all = relay.last_cut_end.since(relay.cuts_since);
        let isolates = span + late > MAY_ISOLATE;
        let missing = in_all > MAY_BE_MISSING;
        let bound = match () {
            () if deaths => HEARD_AFTER_DEATH,
            () if isolates || missing => HEARD_ALL,
            () => HEARD,
        };
        if isolates {
            relay.cut_until = relay.cut_until.max(end);
        }
        relay.whole_from = relay.whole_from.max(end + bound);
    }

    pub(super) fn relay_has_started(&mut self, number: usize) {
        // It connects within a second.
        let end = self.now + Duration::from_secs(1) + INTEREST;
        let relay = &mut self.relays[number];
        relay.whole_from = relay.whole_from.max(end + HEARD_ALL);
    }

    pub(super) fn relay_has_died(&mut self, number: usize) {
        self.last_death = Some(self.now);
        let restored = self.relays[number].restore_next;
        if restored {
            // A frame that it sent and that was lost may not be missed any more.
            self.excuse_all();
            self.forgive_listeners_of(number);
        } else if self.is_present(number) {
            self.owe_looks(number);
        } else {
            self.owed_looks.retain(|(relay, ..), _| *relay != number);
        }
        self.put_off(HEARD_AFTER_DEATH);
        self.restarts(number);
    }

    /// A relay that has left is not missed, but where messages are lost it may be.
    pub(super) fn relay_has_left_calmly(&mut self, number: usize, calm: bool) {
        self.last_death = Some(self.now);
        self.owed_looks.retain(|(relay, ..), _| *relay != number);
        if !calm {
            self.put_off(HEARD_AFTER_DEATH);
        }
        self.restarts(number);
    }

    /// The end of a relay puts the promise off at all others.
    fn put_off(&mut self, bound: Duration) {
        for relay in &mut self.relays {
            let heard = relay.cut_until.max(relay.paused_until).max(self.now);
            relay.whole_from = relay.whole_from.max(heard + bound);
        }
    }

    fn restarts(&mut self, number: usize) {
        let longest = match (self.healed, self.relays[number].restore_next) {
            (true, _) => 500,
            (_, true) => 400,
            _ => 12_000,
        };
        self.within_millis(longest, Event::RelayStarts(number));
    }

    /// Returns whether its peers have heard the relay until now, so that its death is noticed.
    fn is_present(&self, number: usize) -> bool {
        let (relay, long) = (&self.relays[number], Duration::from_secs(12));
        let trouble = relay.whole_from.max(relay.started_at + long);
        trouble < self.now && relay.epoch_is_alone
    }

    /// The troubles stop.
    pub(super) fn heal(&mut self) {
        self.healed = true;
        if !self.plan.heals {
            return;
        }
        self.log.note(self.now, "heals", &[]);
        self.heal_flags();
        for relay in 0..self.relays.len() {
            if self.relays[relay].run.is_none() {
                self.within_millis(500, Event::RelayStarts(relay));
            }
        }
    }
}
