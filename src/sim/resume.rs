//! Listeners that state few positions, so that the relay's resume number stands for most queues.

use std::{collections::BTreeSet, time::Duration};

use super::{
    net::ConnId,
    plan::Plan,
    world::{Event, World},
};
use crate::{base::clock::Tick, types::SubscribeOptions};

/// The settings of such a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct FewPositions {
    /// Positions that a listener keeps at most.
    pub(super) positions: usize,
    /// Cursors that the relay compares in one step.
    pub(super) compare_step: usize,
}

/// The maximum wait of a comparison's step in milliseconds: two of them stay within the tenth
/// of a heartbeat by which a stream may be late.
const STEP_WAITS: u64 = 80;

impl Plan {
    /// Has listeners state few positions, and comparisons take three steps.
    pub(super) fn state_few(&mut self, rng: &mut fastrand::Rng) {
        self.few = Some(FewPositions {
            positions: rng.usize(0..=1),
            compare_step: self.queues.len().div_ceil(3),
        });
    }
}

impl World {
    /// A stream yields, now and then long enough for a notification to arrive. The fan-out reaches
    /// the stream late, and its connection breaks before.
    pub(super) fn yield_gap(&mut self, id: ConnId) -> Duration {
        let short = Duration::from_micros(self.rng.u64(1..300));
        let rare = self.plan.few.is_none() || self.rng.u32(0..8) != 0;
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
        let Some(conn) = conn.filter(|_| self.plan.few.is_some() && !self.is_held()) else {
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

    /// A listener subscribes without some of its positions. If it states no resume number, the
    /// relay reports those queues again. If it does, sums are not compared with earlier ones.
    pub(super) fn forget_unstated(&mut self, listener: usize, options: &SubscribeOptions) {
        let plan = &self.plan;
        if plan.room.is_none() && plan.few.is_none() && plan.max_queues.is_none() {
            return;
        }
        let stated = options.positions.iter().filter_map(|position| {
            let address = position.queue.as_address()?;
            self.queues.find(&address)
        });
        let stated: BTreeSet<usize> = stated.collect();
        let tokens = &mut self.listeners[listener].tokens;
        if options.resume.is_empty() {
            tokens.retain(|queue, _| stated.contains(queue));
        }
        for (queue, told) in tokens {
            told.stated &= stated.contains(queue);
        }
    }
}
