//! C15: a relay ends in good order, by the production parts: its streams end within the drain's
//! span, notifications are refused, timers go to other relays, and the machine leaves when all
//! causes are confirmed. The order of the steps is that of `Node::shutdown`.

use std::time::Duration;

use super::{
    plan::Trouble,
    world::{Event, World},
};
use crate::{base::clock::Tick, relay::cluster::TimerHandOver, types::Drain};

/// The drain of a run.
pub(super) struct Draining {
    /// By the relay's clock.
    pub(super) drain: Drain,
    pub(super) step: Step,
    pub(super) hand_over: Option<TimerHandOver>,
    /// Counts the requests; a late answer to an earlier one is ignored.
    pub(super) requests: u64,
    /// The troubles before it (C7).
    pub(super) troubles: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Streams end within the span.
    Streams,
    /// Notifications are refused. The remaining streams are closed at this time.
    Closing(Tick),
    /// The subscriptions of ended streams are detached, until this time at most.
    Detaching(Tick),
    HandOver,
    Leaving,
}

/// As in production: the interval of checks, and the wait for closed streams.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
const DETACHED_WITHIN: Duration = Duration::from_secs(1);
/// Streams that their clients do not read are closed after this time.
const GRACE: Duration = Duration::from_millis(300);

impl Draining {
    /// Returns whether notifications are refused.
    pub(super) fn refuses_notifications(&self) -> bool {
        self.step != Step::Streams
    }
}

impl World {
    /// The messages of a relay that drains are late: its last frames wait for the confirmation of
    /// those before.
    fn is_late_at_the_end(&mut self, relay: usize, span: Duration) {
        let late = span + Duration::from_secs(3);
        self.broker.ports[relay].late_until = self.now + late;
        for other in 0..self.relays.len() {
            self.cut_off(other, late + Duration::from_secs(7));
        }
    }

    /// The drain begins: new streams are refused, and the open ones end within its span.
    pub(super) fn drain_begins(&mut self, relay: usize, span: Duration) {
        let now = self.local(relay);
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
        if self.rng.u32(0..4) == 0 {
            self.is_late_at_the_end(relay, span);
        }
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
}
