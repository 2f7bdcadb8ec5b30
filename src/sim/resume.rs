//! Troubles close to a resume number: comparisons that take several steps, and numbers that arrive
//! behind unread wake-ups.

use std::time::Duration;

use super::{
    net::ConnId,
    plan::Plan,
    world::{Event, World},
};
use crate::base::clock::Tick;

/// The maximum wait of a comparison's step in milliseconds: two of them stay within the tenth
/// of a heartbeat by which a stream may be late.
const STEP_WAITS: u64 = 80;

impl Plan {
    /// Has comparisons take three steps.
    pub(super) fn compare_in_steps(&mut self) {
        self.compare_step = Some(self.queues.len().div_ceil(3));
    }
}

impl World {
    /// A stream yields, now and then long enough for a notification to arrive. The fan-out reaches
    /// the stream late, and its connection breaks before.
    pub(super) fn yield_gap(&mut self, id: ConnId) -> Duration {
        let short = Duration::from_micros(self.rng.u64(1..300));
        let rare = self.plan.compare_step.is_none() || self.rng.u32(0..8) != 0;
        if rare || self.healed || self.is_held() {
            return short;
        }
        let listener = self.relay.streams[&id].listener;
        self.put_for(listener);
        let wait = self.rng.u64(STEP_WAITS / 2..=STEP_WAITS);
        let told_at = self.until_in(Duration::from_millis(wait + 300));
        self.stall_fanout(told_at);
        let breaks = wait + self.rng.u64(20..200);
        self.after_millis(breaks, Event::BreakStream(id));
        Duration::from_millis(wait)
    }

    /// An application that takes no wake-up: a notification arrives, then the stream's resume
    /// number, and the connection breaks.
    pub(super) fn leave_unread(&mut self, listener: usize) {
        let conn = self.listeners[listener].conn;
        let Some(conn) = conn.filter(|_| self.plan.compare_step.is_some() && !self.is_held())
        else {
            return;
        };
        let number_at = self.heartbeat(listener) + Duration::from_millis(500);
        let until = self.until_in(number_at + Duration::from_secs(5));
        self.stall_app(listener, until);
        self.put_for(listener);
        self.after(number_at, Event::BreakStream(conn));
    }

    /// Puts a message into a queue that the listener listens on.
    fn put_for(&mut self, listener: usize) {
        let wanted = |queue: &usize| {
            let address = &self.queues.list[*queue].address;
            self.listeners[listener].wants(address)
        };
        let wanted: Vec<usize> = (0..self.plan.queues.len()).filter(wanted).collect();
        if !wanted.is_empty() {
            let queue = wanted[self.rng.usize(0..wanted.len())];
            let publisher = self.some_publisher();
            self.put(publisher, queue);
        }
    }

    /// Returns when a trouble of this span ends; none outlasts the time of troubles.
    fn until_in(&self, span: Duration) -> Tick {
        (self.now + span).min(Tick::default() + self.plan.active)
    }
}
