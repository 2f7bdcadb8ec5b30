//! Troubles close to a resume number: numbers that are stated while the fan-out stalls, and numbers
//! that arrive behind unread wake-ups.

use std::time::Duration;

use super::{
    net::ConnId,
    world::{Event, World},
};
use crate::base::clock::Tick;

impl World {
    /// The fan-out stalls, a notification is counted, then the stream states its resume number, and the
    /// connection breaks before the fan-out goes on.
    pub(super) fn state_before_walk(&mut self, listener: usize) {
        let Some(conn) = self.resuming(listener) else {
            return;
        };
        let number_at = self.heartbeat(listener) + Duration::from_millis(500);
        let until = self.until_in(number_at + Duration::from_secs(1));
        self.stall_fanout(until);
        self.put_for(listener);
        self.after(number_at, Event::BreakStream(conn));
    }

    /// An application that takes no wake-up: a notification arrives, then the stream's resume
    /// number, and the connection breaks.
    pub(super) fn leave_unread(&mut self, listener: usize) {
        let Some(conn) = self.resuming(listener) else {
            return;
        };
        let number_at = self.heartbeat(listener) + Duration::from_millis(500);
        let until = self.until_in(number_at + Duration::from_secs(5));
        self.stall_app(listener, until);
        self.put_for(listener);
        self.after(number_at, Event::BreakStream(conn));
    }

    /// Returns the listener's connection, where this run has such troubles.
    fn resuming(&mut self, listener: usize) -> Option<ConnId> {
        let conn = self.listeners[listener].conn;
        conn.filter(|_| self.plan.resumes && !self.is_held())
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
