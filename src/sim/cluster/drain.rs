//! C15: a relay ends in good order, by the production parts: its streams end within the drain's
//! span, notifications are refused, timers go to other relays, and the machine leaves when all
//! causes are confirmed. The order of the steps is that of `Node::shutdown`.

use std::time::Duration;

use prost::Message as _;

use super::{
    plan::{Trouble, Work},
    relay::Run,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind, Result},
    relay::cluster::{TimerHandOver, TimersReply},
    sim::oracle::later,
    types::{
        Drain,
        cluster::{HandedTimer, LifeId},
    },
    wire::{
        link::{PeerRequest, TimersRequest, peer_request::Call},
        peer_request_from_wire, timers_from_wire,
    },
};

/// The drain of a run.
pub(super) struct Draining {
    /// By the relay's clock.
    pub(super) drain: Drain,
    step: Step,
    hand_over: Option<TimerHandOver>,
    /// Counts the requests; a late answer to an earlier one is ignored.
    requests: u64,
    /// The troubles before it (C7).
    troubles: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Streams end within the span.
    Streams,
    /// Notifications are refused. The remaining streams are closed at this time.
    Closing(Tick),
    /// The subscriptions of ended streams are detached, until this time at most.
    Detaching(Tick),
    HandOver,
    Leaving,
}

/// A request of a relay that drains to another one, and the way of its answer.
#[derive(Debug)]
pub(super) struct TimersCall {
    from: (usize, u64),
    number: u64,
    to: LifeId,
    request: Vec<u8>,
}

/// The result of a request.
#[derive(Debug)]
pub(super) struct TimersResult {
    call: TimersCall,
    /// The relay and its run that have acknowledged it.
    taken_by: Option<(usize, u64)>,
}

/// The drain, as the machine's last output states it, and the end of the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Departure {
    pub(super) relay: usize,
    pub(super) run: u64,
    pub(super) life: LifeId,
    pub(super) told: bool,
    troubles: u64,
}

/// As in production: the interval of checks, the wait for closed streams, and for a reply.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
const DETACHED_WITHIN: Duration = Duration::from_secs(1);
const REPLY_WITHIN: Duration = Duration::from_secs(1);
/// Streams that their clients do not read are closed after this time.
const GRACE: Duration = Duration::from_millis(300);
/// A client that closes its connection of the broker waits for its last messages.
const FLUSHED_WITHIN: Duration = Duration::from_secs(1);
/// Longer than a relay takes to miss another one.
const MISSED: Duration = Duration::from_secs(7);

impl TimersResult {
    pub(super) fn relay(&self) -> usize {
        self.call.from.0
    }
}

impl Draining {
    /// Returns whether notifications are refused.
    pub(super) fn refuses_notifications(&self) -> bool {
        self.step != Step::Streams
    }
}

impl World {
    /// A relay drains. Before, and during it, there is work that it has to hand over.
    pub(super) fn drain_soon(&mut self, relay: usize) {
        let at = self.rng.u64(100..1_500);
        if self.rng.bool() {
            self.aimed_at = Some(relay);
            for _ in 0..2 {
                let put = self.rng.u64(1..at);
                self.after_millis(put, Event::Operate(Work::PutDelayed));
            }
            self.after_millis(at, Event::Aim(None));
        }
        self.after_millis(at, Event::Drain(relay));
        if self.rng.bool() {
            self.be_quiet(25_000);
        }
    }

    /// The drain begins: new streams are refused, and the open ones end within its span.
    pub(super) fn drain_begins(&mut self, relay: usize) {
        let now = self.local(relay);
        let span = Duration::from_millis([0, 1_000, 3_000, 10_000][self.rng.usize(0..4)]);
        if !self.may_drain(relay) {
            return;
        }
        self.begins(Trouble::Drain, relay);
        let (life, troubles) = (self.relays[relay].life, self.troubles);
        let Some(run) = &mut self.relays[relay].run else {
            return;
        };
        run.draining = Some(Draining {
            drain: Drain { began: now, span },
            step: Step::Streams,
            hand_over: None,
            requests: 0,
            troubles,
        });
        run.hub.wake_all();
        self.after(CHECK_INTERVAL, Event::DrainStep(relay, life));
        self.listener_may_crash(relay, span);
    }

    /// A listener that is busy at a relay that drains: the relay hands a timer for its message over.
    fn listener_may_crash(&mut self, relay: usize, span: Duration) {
        let there = |conn: Option<usize>| conn.is_some_and(|id| self.conns[id].relay == relay);
        let mut there = (0..self.listeners.len()).filter(|one| there(self.listeners[*one].conn));
        let (Some(number), true) = (there.next(), self.rng.bool()) else {
            return;
        };
        let within = u64::try_from(span.as_millis())
            .expect("a short time")
            .max(5);
        let life = self.listeners[number].life;
        self.within_millis(within, Event::ListenerDies(number, life));
    }

    /// Drains one relay at a time, and no copy of another one.
    fn may_drain(&self, relay: usize) -> bool {
        let others = self.relays.iter().filter_map(|relay| relay.run.as_ref());
        let none = others.clone().all(|run| run.draining.is_none());
        let here = &self.relays[relay];
        !self.healed && none && others.count() >= 2 && here.run.is_some() && here.epoch_is_alone
    }

    pub(super) fn drain_step(&mut self, relay: usize, life: u64) {
        let now = self.local(relay);
        let Some(run) = self.relays[relay].run_of(life) else {
            return;
        };
        let Some(draining) = &mut run.draining else {
            return;
        };
        let told = run.streams.is_empty();
        match draining.step {
            Step::Streams if told || now >= draining.drain.began + draining.drain.span => {
                draining.step = Step::Closing(now + GRACE);
            }
            Step::Closing(at) if told || now >= at => {
                draining.step = Step::Detaching(now + DETACHED_WITHIN);
                self.close_streams(relay);
            }
            Step::Detaching(at) if !run.hub.has_deferred_work() || now >= at => {
                draining.step = Step::HandOver;
                let lives = run.node.present_lives(now);
                draining.hand_over = Some(TimerHandOver::new(&run.hub, lives, now));
                return self.hand_over(relay);
            }
            Step::Streams | Step::Closing(_) | Step::Detaching(_) => {}
            Step::HandOver | Step::Leaving => return,
        }
        self.after(CHECK_INTERVAL, Event::DrainStep(relay, life));
    }

    /// Closes the remaining streams, and the connections of publishers.
    fn close_streams(&mut self, relay: usize) {
        let Some(run) = &mut self.relays[relay].run else {
            return;
        };
        let left: Vec<_> = run.streams.keys().copied().collect();
        for waiting in std::mem::take(&mut run.unanswered) {
            self.send_answer(waiting.attempt, false);
        }
        for id in left {
            self.stream_ends(id);
        }
    }

    /// Sends the next request of the hand-over, or leaves.
    fn hand_over(&mut self, relay: usize) {
        let now = self.local(relay);
        let life = self.relays[relay].life;
        let Some(run) = &mut self.relays[relay].run else {
            return;
        };
        let Some(draining) = &mut run.draining else {
            return;
        };
        let Some(hand_over) = &mut draining.hand_over else {
            return;
        };
        let Some((to, request)) = hand_over.next_request(now) else {
            let lost = hand_over.handed_over().lost;
            draining.step = Step::Leaving;
            run.node.begin_leaving(now);
            if lost > 0 {
                self.totals.count("timers lost", lost);
                self.forget_delayed_of(relay, life);
            }
            return self.take_outputs(relay);
        };
        draining.requests += 1;
        let call = TimersCall {
            from: (relay, life),
            number: draining.requests,
            to,
            request: encoded(request),
        };
        self.send_timers(call);
    }

    fn send_timers(&mut self, call: TimersCall) {
        let (from, number) = (call.from, call.number);
        let to = self.run_with(call.to);
        let way = to.and_then(|to| self.request_way(from.0, to));
        if let Some((to, way)) = to.zip(way) {
            self.after(way, Event::TimersCall(to, Box::new(call)));
        }
        self.after(REPLY_WITHIN, Event::TimersLate(from.0, from.1, number));
    }

    fn run_with(&self, life: LifeId) -> Option<usize> {
        let is = |run: &Run| run.life_id() == life;
        let mut relays = self.relays.iter();
        relays.position(|relay| relay.run.as_ref().is_some_and(is))
    }

    /// A relay takes over timers, or refuses them.
    pub(super) fn timers_asked(&mut self, to: usize, call: TimersCall) {
        let (now, run_of_to) = (self.local(to), self.relays[to].life);
        let Some(run) = &self.relays[to].run else {
            return;
        };
        if run.life_id() != call.to {
            return;
        }
        let taken = take_over(run, &call.request, now);
        self.log.note(
            self.now,
            "timers",
            &[call.from.0 as u64, to as u64, u64::from(taken.is_ok())],
        );
        let taken_by = taken.is_ok().then_some((to, run_of_to));
        if let Some(way) = self.request_way(to, call.from.0) {
            let result = TimersResult { call, taken_by };
            self.after(way, Event::TimersResult(Box::new(result)));
        }
    }

    pub(super) fn timers_answered(&mut self, result: &TimersResult) {
        let (relay, life) = result.call.from;
        if !self.awaits(relay, life, result.call.number) {
            return;
        }
        if let Some(by) = result.taken_by {
            self.handed_over(relay, life, by, &result.call.request);
        }
        let reply = match result.taken_by {
            Some(_) => TimersReply::Taken,
            None => TimersReply::Refused,
        };
        self.replied(relay, reply);
    }

    /// A request has no reply.
    pub(super) fn timers_late(&mut self, relay: usize, life: u64, number: u64) {
        if self.awaits(relay, life, number) {
            self.replied(relay, TimersReply::Missing);
        }
    }

    /// Returns whether the relay waits for the reply to this request.
    fn awaits(&mut self, relay: usize, life: u64, number: u64) -> bool {
        let run = self.relays[relay].run_of(life);
        let draining = run.and_then(|run| run.draining.as_ref());
        draining.is_some_and(|one| one.step == Step::HandOver && one.requests == number)
    }

    fn replied(&mut self, relay: usize, reply: TimersReply) {
        let now = self.local(relay);
        let run = self.relays[relay].run.as_mut();
        if let Some(draining) = run.and_then(|run| run.draining.as_mut())
            && let Some(hand_over) = &mut draining.hand_over
        {
            hand_over.replied(reply, now);
            // A further answer to this request changes nothing.
            draining.requests += 1;
        }
        self.hand_over(relay);
    }

    /// Another relay owes the delayed wake-ups from now on.
    fn handed_over(&mut self, relay: usize, life: u64, by: (usize, u64), request: &[u8]) {
        let timers = timers_of(request).expect("it was taken over");
        self.totals.count("timers handed over", timers.len() as u64);
        let queues = timers.iter().map(|timer| &timer.increment.queue);
        let queues: Vec<_> = queues.filter_map(|queue| self.queues.find(queue)).collect();
        for note in self.oracle.open.values_mut() {
            let Some(promise) = note
                .promise
                .as_mut()
                .filter(|one| one.delayed && (one.relay, one.life) == (relay, life))
            else {
                continue;
            };
            if queues.contains(&note.queue) {
                (promise.relay, promise.life) = by;
                // The other relay has its own grid of times, and another clock.
                let left = promise.due.since(self.now);
                promise.due = self.now + later(left + left / 25);
            }
        }
    }

    /// The machine has left the cluster: the process ends when the client has written its messages.
    pub(super) fn leaves(&mut self, relay: usize, told: bool) {
        let run_number = self.relays[relay].life;
        let Some(run) = &self.relays[relay].run else {
            return;
        };
        let troubles = run.draining.as_ref().map_or(0, |one| one.troubles);
        let departure = Departure {
            relay,
            run: run_number,
            life: run.life_id(),
            told,
            troubles,
        };
        let written = self.broker.ports[relay].written_at().max(self.now);
        let at = written.min(self.now + FLUSHED_WITHIN) + Duration::from_millis(1);
        self.at(at, Event::Departs(departure));
    }

    /// The process of a relay that has left ends.
    pub(super) fn departs(&mut self, departure: Departure) {
        let Departure {
            relay, run, told, ..
        } = departure;
        if self.relays[relay].run_of(run).is_none() {
            return;
        }
        self.log
            .note(self.now, "departs", &[relay as u64, u64::from(told)]);
        self.ends(relay);
        match told {
            true => self.relay_has_left(departure),
            false => self.relay_has_died(relay),
        }
    }

    /// A relay that has left in a calm time puts nothing off: no relay has to notice its end.
    fn relay_has_left(&mut self, departure: Departure) {
        let number = departure.relay;
        self.totals.count("relays left", 1);
        let calm = |relay: &super::relay::Relay| relay.whole_from <= self.now;
        let all_calm = self.relays.iter().all(calm);
        if all_calm && self.troubles == departure.troubles {
            self.after(MISSED, Event::LeftSettled(departure));
        }
        self.relay_has_left_calmly(number, all_calm);
    }

    /// C7: a relay that has left is not missing.
    pub(super) fn check_left(&mut self, departure: Departure) {
        if self.troubles != departure.troubles {
            return;
        }
        for (number, relay) in self.relays.iter().enumerate() {
            let old = relay.started_at + MISSED + MISSED < self.now;
            let Some(run) = relay.run.as_ref().filter(|_| old) else {
                continue;
            };
            let mut peers = run.node.peers(self.local(number));
            let left = peers.any(|peer| peer.life == departure.life && peer.left);
            drop(peers);
            if !left {
                let gone = departure.relay;
                return self.violate(|| {
                    format!("C7: relay {gone} has left, and relay {number} counts it as missing")
                });
            }
        }
        self.totals.count("departures checked", 1);
    }
}

fn encoded(request: TimersRequest) -> Vec<u8> {
    let call = Some(Call::Timers(request));
    PeerRequest { call }.encode_to_vec()
}

fn timers_of(request: &[u8]) -> Result<Vec<HandedTimer>> {
    match peer_request_from_wire(request)? {
        Some(Call::Timers(request)) => timers_from_wire(request),
        other => panic!("not a request of timers: {other:?}"),
    }
}

/// As `Relay::take_over_timers`.
fn take_over(run: &Run, request: &[u8], now: Tick) -> Result<()> {
    if run.draining.is_some() {
        return Err(Error::new(
            ErrorKind::Unavailable,
            "the relay is shutting down",
        ));
    }
    run.hub.take_over_timers(&timers_of(request)?, now)
}
