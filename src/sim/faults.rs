//! Troubles: their kinds, targets and durations.

use std::time::Duration;

use super::{
    net::{Client, ConnId},
    plan::Trouble,
    publisher::Publisher,
    world::{Event, World},
};
use crate::base::clock::Tick;

impl World {
    /// The next trouble, and after a gap the one after it.
    pub(super) fn trouble(&mut self) {
        if self.healed {
            return;
        }
        let gap = self.plan.trouble_gap;
        self.within_millis(gap, Event::Trouble);
        if self.plan.troubles.is_empty() || self.is_held() {
            return;
        }
        let trouble = self.plan.troubles[self.rng.usize(0..self.plan.troubles.len())];
        if self.plan.aimed && self.rng.bool() {
            self.operate();
            self.within_millis(100, Event::Strike(trouble));
        } else {
            self.strike(trouble);
            if self.plan.aimed && !self.is_held() {
                self.operate();
            }
        }
    }

    pub(super) fn strike(&mut self, trouble: Trouble) {
        use Trouble as T;
        if self.healed {
            return;
        }
        self.totals.troubles += 1;
        self.log.note(self.now, "trouble", &[trouble as u64]);
        self.log.say(|| format!("{trouble:?}"));
        let listener = self.rng.usize(0..self.listeners.len());
        let publisher = self.some_publisher();
        let life = self.listeners[listener].life;
        match trouble {
            T::Reset | T::ResetUnseen | T::SilentBoth | T::SilentDown | T::SilentUp => {
                self.break_some_conn(trouble, listener, publisher);
            }
            T::Partition => {
                let until = self.until(500, 40_000);
                if self.rng.bool() {
                    prolong(&mut self.listeners[listener].partition_until, until);
                    self.impair(listener, until);
                    self.unanswered(listener, until);
                } else {
                    prolong(&mut self.publishers[publisher].partition_until, until);
                    self.impair_publisher(publisher, until);
                }
            }
            T::PauseListener => {
                let until = self.until(1_000, 60_000);
                self.pause_listener(listener, until);
            }
            T::PausePublisher => {
                let until = self.until(1_000, 20_000);
                prolong(&mut self.publishers[publisher].paused_until, until);
                self.impair_publisher(publisher, until);
            }
            T::PauseRelay => {
                let until = self.until(1_000, 60_000);
                prolong(&mut self.relay.paused_until, until);
                self.impair_all(until);
            }
            T::RelayCrash | T::RelayVanish => {
                self.relay.vanished = trouble == T::RelayVanish;
                self.relay_crashes();
                self.within_millis(20_000, Event::RelayStarts);
            }
            T::RelayDrain => self.drain(),
            T::RelayRestored => self.restore(),
            T::ListenerCrash => self.listener_crashes(listener, life),
            T::ListenerLeave => self.listener_leaves(listener),
            T::PublisherCrash => self.publisher_crashes(publisher),
            T::FanoutStall => {
                let until = self.until(500, 8_000);
                self.stall_fanout(until);
                if self.plan.may(T::Reset) {
                    self.state_before_walk(listener);
                }
            }
            T::TableFull => self.fill_table(),
            T::SlowReader => {
                let until = self.until(500, 20_000);
                let amid = self.rng.bool();
                self.stall_reader(listener, amid, until);
            }
            T::AppStall => {
                let until = self.until(500, self.plan.stall);
                self.stall_app(listener, until);
                if self.plan.may(T::Reset) {
                    self.leave_unread(listener);
                }
            }
            T::FleetStops => self.stop_fleet(),
            T::StoreAway => {
                let until = self.until(2_000, 90_000);
                prolong(&mut self.outages.store, until);
            }
            T::Postponing => {
                let until = self.until(2_000, 90_000);
                prolong(&mut self.outages.handlers, until);
            }
            // These happen by themselves, where the seed allows them.
            T::ReportsLost
            | T::WalksLost
            | T::CrashHolding
            | T::GetsFail
            | T::GetsHang
            | T::HandlersHang
            | T::PauseBusy
            | T::CallsFail => {}
        }
    }

    pub(super) fn stall_fanout(&mut self, until: Tick) {
        prolong(&mut self.relay.fanout_stalled_until, until);
        self.impair_all(until);
    }

    pub(super) fn stall_app(&mut self, listener: usize, until: Tick) {
        prolong(&mut self.listeners[listener].stalled_until, until);
        self.impair(listener, until);
    }

    /// A listener is frozen for a while, and its stream with it.
    pub(super) fn pause_listener(&mut self, listener: usize, until: Tick) {
        prolong(&mut self.listeners[listener].paused_until, until);
        self.scaled_paused(listener);
        self.impair(listener, until);
        self.unanswered(listener, until);
    }

    /// All troubles end: crashed nodes start again, frozen nodes continue.
    pub(super) fn heal(&mut self) {
        self.log.note(self.now, "heal", &[]);
        self.healed = true;
        let now = self.now;
        self.at(now, Event::RelayStarts);
        for number in 0..self.listeners.len() {
            self.at(now, Event::ListenerStarts(number));
        }
        for number in 0..self.publishers.len() {
            self.at(now, Event::PublisherStarts(number));
        }
    }

    fn break_some_conn(&mut self, trouble: Trouble, listener: usize, publisher: usize) {
        let of_listener = self.rng.u32(0..4) != 0;
        let conn = if of_listener {
            self.listeners[listener].conn
        } else {
            self.publishers[publisher].conn
        };
        let Some(id) = conn else { return };
        if self.conns[id].reset {
            return;
        }
        self.break_with_others(trouble, listener, id);
        if of_listener {
            self.impair(listener, self.now);
        } else {
            self.impair_publisher(publisher, self.now + Duration::from_secs(30));
        }
    }

    fn break_with_others(&mut self, trouble: Trouble, listener: usize, id: ConnId) {
        self.log.note(self.now, "breaks", &[id as u64]);
        for (other, listener) in self.break_others(trouble, id) {
            self.break_conn(trouble, other);
            self.impair(listener, self.now);
        }
        if trouble == Trouble::Reset {
            self.expect_back(listener, id);
        }
        self.break_conn(trouble, id);
    }

    /// The connection of one stream breaks, and both ends see it.
    pub(super) fn break_stream(&mut self, id: ConnId) {
        let Client::Listener(listener, _) = self.conns[id].client else {
            return;
        };
        if self.healed || self.conns[id].reset || self.listeners[listener].conn != Some(id) {
            return;
        }
        self.totals.troubles += 1;
        self.break_with_others(Trouble::Reset, listener, id);
        self.impair(listener, self.now);
    }

    fn break_conn(&mut self, trouble: Trouble, id: ConnId) {
        match trouble {
            Trouble::Reset => self.reset(id, true),
            Trouble::ResetUnseen => self.reset(id, false),
            Trouble::SilentDown => self.silence(id, false, true),
            Trouble::SilentUp => self.silence(id, true, false),
            _ => self.silence(id, true, true),
        }
    }

    /// A visible break of a stream that has lasted: the stream is back within 3 s (W1).
    fn expect_back(&mut self, number: usize, id: ConnId) {
        let now = self.now;
        let conn = &self.conns[id];
        if conn.welcomed
            && !self.may_be_refused()
            && now.since(conn.opened_at) >= Duration::from_secs(11)
        {
            self.listeners[number].connected_by = now + Duration::from_secs(3);
        }
    }

    /// The relay shuts down in good order, and comes back.
    fn drain(&mut self) {
        let Some(hub) = self.relay.hub.clone() else {
            return;
        };
        self.relay.draining = true;
        hub.wake_all();
        self.after_millis(1_500, Event::RelayStops);
        let wait = 1_600 + self.rng.u64(0..10_000);
        self.after_millis(wait, Event::RelayStarts);
    }

    /// The relay is restored from a copy of its first moment, with its epoch, while no call runs.
    fn restore(&mut self) {
        let busy = self.queues.open().any(|id| {
            let queue = self.queues.messages[id].queue;
            !self.queues.list[queue].forbidden
        });
        // A frozen publisher may have a request in flight.
        let speaks = |p: &Publisher| p.session.has_work() || p.paused_until > self.now;
        let speaks = self.publishers.iter().any(speaks);
        let away = self.relay.hub.is_none() || self.relay.draining;
        let unknown = self
            .listeners
            .iter()
            .any(|listener| !listener.released.is_empty());
        if busy || speaks || away || unknown {
            return;
        }
        self.held = true;
        self.relay.restore_next = true;
        self.relay_crashes();
        self.within_millis(2_000, Event::RelayStarts);
    }

    /// The relay's ping gets no answer until then: it may end the stream before.
    fn unanswered(&mut self, listener: usize, until: Tick) {
        let wait = Duration::from_millis(self.rng.u64(10_000..20_000));
        if let Some(id) = self.listeners[listener].conn
            && self.now + wait < until
        {
            self.after(wait, Event::RelayBroken(id));
        }
    }

    /// A listener's client does not read for a while: it has stopped in the middle of a frame, or
    /// between two.
    pub(super) fn stall_reader(&mut self, listener: usize, amid: bool, until: Tick) {
        let conn = self.listeners[listener].conn;
        if let Some(stream) = conn.and_then(|id| self.relay.streams.get_mut(&id)) {
            match amid {
                true => prolong(&mut stream.unsent_until, until),
                false => prolong(&mut stream.blocked_until, until),
            }
            self.impair(listener, until);
        }
    }

    /// Chooses until when a trouble lasts; none outlasts the time of troubles.
    pub(super) fn until(&mut self, from: u64, to: u64) -> Tick {
        // Short ones are as likely as long ones.
        let longest = if self.rng.bool() {
            to
        } else {
            to.min(from * 3)
        };
        let span = Duration::from_millis(self.rng.u64(from..longest));
        (self.now + span).min(Tick::default() + self.plan.active)
    }

    pub(super) fn impair_all(&mut self, until: Tick) {
        for number in 0..self.listeners.len() {
            self.impair(number, until);
        }
        for number in 0..self.publishers.len() {
            self.impair_publisher(number, until);
        }
    }

    fn impair_publisher(&mut self, number: usize, until: Tick) {
        let publisher = &mut self.publishers[number];
        publisher.ok_from = publisher.ok_from.max(until);
    }
}

/// A second trouble of a kind never ends the first one early.
fn prolong(end: &mut Tick, until: Tick) {
    *end = until.max(*end);
}
