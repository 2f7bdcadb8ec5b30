//! C15: the timers of a relay that drains go to another relay, in requests over the broker.

use std::time::Duration;

use prost::Message as _;

use super::{
    drain::Step,
    relay::Run,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind, Result},
    relay::cluster::TimersReply,
    sim::oracle::later,
    types::cluster::{HandedTimer, LifeId},
    wire::{
        link::{PeerRequest, TimersRequest, peer_request::Call},
        peer_request_from_wire, timers_from_wire,
    },
};

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

/// As in production: the wait for a reply.
const REPLY_WITHIN: Duration = Duration::from_secs(1);

impl TimersResult {
    pub(super) fn relay(&self) -> usize {
        self.call.from.0
    }
}

impl World {
    /// Sends the next request of the hand-over, or leaves.
    pub(super) fn hand_over(&mut self, relay: usize) {
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
            if self.relays[by.0].run_of(by.1).is_none() {
                // It has died since its answer.
                self.forget_delayed_of(by.0, by.1);
            }
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
