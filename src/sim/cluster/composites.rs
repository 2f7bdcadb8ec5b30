//! Troubles that need several steps at the right times, and that chance alone rarely makes.

use std::time::Duration;

use super::{
    plan::{Trouble, Work},
    world::{Event, World},
};

impl World {
    /// A break that isolates no relay, with work in it and nothing else for a while before and after.
    pub(super) fn short_break(&mut self, relay: usize) {
        let span = Duration::from_millis(self.rng.u64(50..2_300)).max(self.shortest_span());
        self.totals.count(Trouble::ShortBreak.name(), 1);
        self.after_millis(10_000, Event::Cut(relay, span));
        self.be_quiet(20_000);
    }

    /// A relay is away; another one is cut off. In that time the first one starts, gives an OK and
    /// dies.
    pub(super) fn come_and_go(&mut self, relay: usize) {
        let other = (relay + 1) % self.relays.len();
        self.keep_down(relay, 8_500);
        self.after_millis(8_000, Event::Cut(other, Duration::from_secs(7)));
        self.aim(relay, 11_000, 12_800);
        self.after_millis(13_000, Event::RelayCrashes(relay));
        self.be_quiet(40_000);
    }

    /// A relay is away; when it starts, another one does not receive its first frames.
    pub(super) fn meet_late(&mut self, relay: usize) {
        let other = (relay + 1) % self.relays.len();
        self.keep_down(relay, 8_310);
        let cut = Event::Cut(other, Duration::from_millis(2_200));
        self.after_millis(8_300, cut);
        self.aim(relay, 9_400, 10_450);
        self.be_quiet(25_000);
    }

    /// Ends a relay, whose peers then know that it is missing.
    fn keep_down(&mut self, relay: usize, millis: u64) {
        self.relays[relay].down_until = self.now + Duration::from_millis(millis);
        self.relay_crashes(relay);
    }

    pub(super) fn be_quiet(&mut self, millis: u64) {
        self.quiet_until = self.now + Duration::from_millis(millis);
    }

    /// A relay's OK during a short break of another one, and its end before that break is over.
    pub(super) fn die_in_break(&mut self, relay: usize) {
        let other = (relay + 1) % self.relays.len();
        let span = self.rng.u64(1_500..2_300);
        let trouble = match self.rng.bool() {
            true => Trouble::Break,
            false => Trouble::BreakDown,
        };
        self.cut(other, Duration::from_millis(span), trouble);
        self.aim(relay, 200, span - 200);
        let last = self.rng.u64(10..180);
        self.after_millis(span - last, Event::RelayCrashes(relay));
        self.be_quiet(15_000);
    }

    /// The members of a group leave a relay, another one dies, and members return.
    pub(super) fn empty_group(&mut self, relay: usize) {
        let count = self.relays.len();
        let dying = (relay + 1) % count;
        self.break_streams(relay);
        self.after_millis(2_500, Event::RelayCrashes(dying));
        for other in (0..count).filter(|other| *other != relay) {
            for round in 0..3 {
                let at = 13_000 + 5_000 * round;
                self.after_millis(at, Event::BreakStreams(other));
            }
        }
        self.be_quiet(45_000);
    }

    /// A relay is restored. Notifications follow before its frames have their old numbers again.
    pub(super) fn restore(&mut self, relay: usize) {
        if self.relays[relay].run.is_none() {
            return;
        }
        self.relays[relay].restore_next = true;
        self.relay_crashes(relay);
        self.aim(relay, 300, 4_000);
        if self.rng.bool() {
            // The first heartbeats do not arrive everywhere.
            let other = (relay + 1) % self.relays.len();
            let cut = Event::Cut(other, Duration::from_millis(2_200));
            self.after_millis(100, cut);
            self.be_quiet(20_000);
        }
    }

    /// A copy of a relay's machine starts in the place of another relay that is away.
    pub(super) fn clone_relay(&mut self, relay: usize) {
        let other = (relay + 1) % self.relays.len();
        if self.relays[relay].run.is_none() {
            return;
        }
        if self.plan.loses_silently() {
            // What the other one counted may be lost with it: a limit of the promise.
            self.excuse_promises_of(other);
        }
        self.relay_crashes(other);
        self.relays[other].epoch = self.relays[relay].epoch;
        self.relays[relay].epoch_is_alone = false;
        self.relays[other].restore_next = true;
        self.forgive_listeners_of(relay);
    }

    /// Publishers prefer this relay for a while, and there is work for them.
    fn aim(&mut self, relay: usize, from: u64, to: u64) {
        self.after_millis(from, Event::Aim(Some(relay)));
        for _ in 0..3 {
            let at = self.rng.u64(from..to);
            self.after_millis(at + 1, Event::Operate(Work::Put));
        }
        self.after_millis(to, Event::Aim(None));
    }

    /// Listeners whose sequences may be of a memory that is gone.
    pub(super) fn forgive_listeners_of(&mut self, relay: usize) {
        for number in 0..self.listeners.len() {
            let one = &self.listeners[number];
            let knows = one.relay == relay || one.ok_from > self.now || !self.is_well(number);
            if knows && one.session.is_some() {
                self.listeners[number].distrusts_sequences();
            }
        }
    }

    /// A restored relay starts: the sequences of its life may be of a memory that is gone.
    pub(super) fn forgive_listeners_with(&mut self, epoch: u128) {
        for listener in &mut self.listeners {
            if listener.session.is_some() && listener.welcomed_by == epoch {
                listener.distrusts_sequences();
            }
        }
    }

    /// The streams of a relay break about when its own connection is back.
    pub(super) fn break_streams(&mut self, relay: usize) {
        for number in 0..self.listeners.len() {
            let conn = self.listeners[number].conn;
            if let Some(id) = conn.filter(|id| self.conns[*id].relay == relay) {
                self.reset_conn(id);
            }
        }
    }

    /// A relay drains. Before it there is work that the relay has to hand over, or that is due when
    /// the relay is about to leave.
    pub(super) fn drain_soon(&mut self, relay: usize) {
        if self.rng.u32(0..3) == 0 {
            return self.drain_in_break(relay);
        }
        let span = [0, 1_000, 3_000, 10_000][self.rng.usize(0..4)];
        let at = self.rng.u64(100..1_500);
        for _ in 0..self.rng.usize(0..4) {
            let put = self.rng.u64(1..at);
            let due = match self.rng.bool() {
                true => at + span + self.rng.u64(0..1_500),
                false => put + self.rng.u64(200..15_000),
            };
            let delay = Duration::from_millis(due - put);
            self.after_millis(put, Event::PutFor(relay, delay));
        }
        self.after_millis(at, Event::Drain(relay, Duration::from_millis(span)));
        if self.rng.bool() {
            self.be_quiet(18_000 + span);
        }
    }

    /// A relay drains while nothing that it sends arrives, and its timers fire: it must not leave
    /// before these causes are confirmed.
    fn drain_in_break(&mut self, relay: usize) {
        let begins = 300;
        for _ in 0..2 {
            let put = self.rng.u64(100..200);
            let delay = begins - put + self.rng.u64(0..20);
            self.after_millis(put, Event::PutFor(relay, Duration::from_millis(delay)));
        }
        let span = Duration::from_millis(self.rng.u64(400..1_800));
        let span = span.max(self.shortest_span());
        self.after_millis(begins - 5, Event::Cut(relay, span));
        self.after_millis(begins, Event::Drain(relay, Duration::ZERO));
        self.be_quiet(18_000);
    }

    /// Puts a message, and notifies this relay of it.
    pub(super) fn put_for(&mut self, relay: usize, delay: Duration) {
        let queue = self.rng.usize(0..self.queues.list.len());
        if !self.is_forgiving(queue) {
            self.put_at(queue, relay, delay);
        }
    }
}
