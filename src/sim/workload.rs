//! The publishers' operations: mostly one message, then silence; sometimes many at once.

use std::time::Duration;

use super::{
    plan::{Shape, Work},
    queue::Announced,
    world::{Event, World},
};

impl World {
    /// The next operation, and after a gap the one after it.
    pub(super) fn work(&mut self) {
        if self.healed {
            return;
        }
        let gap = self.plan.work_gap;
        self.within_millis(gap, Event::Work);
        self.operate();
    }

    pub(super) fn steady(&mut self) {
        let Some(every) = self.plan.steady.filter(|_| !self.healed) else {
            return;
        };
        self.after(every, Event::Steady);
        if !self.is_held() {
            self.put(0, 0);
        }
    }

    /// One of the operations that the seed allows.
    pub(super) fn operate(&mut self) {
        if self.is_held() {
            return;
        }
        let work = self.plan.works[self.rng.usize(0..self.plan.works.len())];
        let (publisher, queue) = (self.some_publisher(), self.some_queue());
        self.log.note(self.now, "work", &[work as u64]);
        match work {
            Work::Put => self.put(publisher, queue),
            Work::PutTwice => {
                self.put(publisher, queue);
                self.put(publisher, queue);
            }
            Work::PutDelayed => self.put_delayed(publisher, queue),
            Work::DelayedPair => {
                self.put_delayed(publisher, queue);
                self.put_delayed(publisher, queue);
                if self.rng.bool() {
                    self.put(publisher, queue);
                }
            }
            Work::Burst => {
                let count = self.plan.queues.len();
                let all = self.plan.shape == Shape::Wide && self.rng.bool();
                let some = if all {
                    count
                } else {
                    self.rng.usize(1..=count.min(8))
                };
                let first = self.rng.usize(0..count);
                for step in 0..some {
                    self.put(publisher, (first + step) % count);
                }
            }
            Work::Forbidden => {
                let forbidden = self.plan.queues.len();
                self.put(publisher, forbidden);
                self.put(publisher, queue);
            }
            Work::PutBatch => self.put_batch(publisher, queue),
            Work::PutUntold => self.put_untold(queue),
            Work::FreshQueue => {
                let listener = self.rng.usize(0..self.listeners.len());
                self.put_into_fresh_queue(publisher, listener);
            }
        }
    }

    /// An event arrives while a stream opens, the subject of rules 4 and 5.
    pub(super) fn race(&mut self, listener: usize) {
        if self.healed || self.rng.u32(0..3) != 0 || self.is_held() {
            return;
        }
        let publisher = self.some_publisher();
        if self.rng.bool() {
            self.put_into_fresh_queue(publisher, listener);
        } else {
            let queue = self.some_queue();
            self.put(publisher, queue);
        }
    }

    pub(super) fn some_publisher(&mut self) -> usize {
        self.rng.usize(0..self.publishers.len())
    }

    /// Returns whether the workload must wait until every listener has connected to a restored
    /// relay: a listener may know sequences of the memory that is gone.
    pub(super) fn is_held(&mut self) -> bool {
        let life = self.relay.life;
        let away = self.listeners.iter().any(|listener| {
            let conn = listener.conn.map(|id| &self.conns[id]);
            let here = conn.is_some_and(|conn| conn.welcomed && conn.relay_life == Some(life));
            listener.session.is_some() && !here
        });
        self.held = self.held && (away || self.relay.hub.is_none());
        self.held
    }

    /// Chooses a queue; now and then a queue whose listener is away.
    fn some_queue(&mut self) -> usize {
        let count = self.plan.queues.len();
        let listener = self.rng.usize(0..self.listeners.len());
        let first = self.rng.usize(0..count);
        let away = !self
            .relay
            .streams
            .values()
            .any(|stream| stream.listener == listener);
        if away && self.rng.bool() {
            let mut queues = (0..count).map(|step| (first + step) % count);
            let of_it = queues
                .find(|queue| self.listeners[listener].wants(&self.queues.list[*queue].address));
            return of_it.unwrap_or(first);
        }
        first
    }

    pub(super) fn put(&mut self, publisher: usize, queue: usize) {
        self.put_with(publisher, queue, Duration::ZERO);
    }

    fn put_delayed(&mut self, publisher: usize, queue: usize) {
        let delay = Duration::from_millis(self.rng.u64(200..20_000));
        self.put_with(publisher, queue, delay);
    }

    /// Puts a message, and notifies after it; in between the publisher may die.
    fn put_with(&mut self, publisher: usize, queue: usize, delay: Duration) {
        if !self.publishers[publisher].alive {
            return;
        }
        let (now, life) = (self.now, self.publishers[publisher].life);
        let by = Announced::Publisher(publisher, life);
        let message = self.queues.put(queue, now, now + delay, by);
        self.log.note(
            now,
            "put",
            &[publisher as u64, queue as u64, message as u64],
        );
        if self.rng.u32(0..3) == 0 {
            self.looks_by_hand(queue);
        }
        let slow = self.rng.u32(0..3) == 0;
        let within = if slow { 100 } else { 3 };
        self.within_millis(within, Event::Says(publisher, life, message));
    }

    /// A new queue that a pattern matches.
    fn put_into_fresh_queue(&mut self, publisher: usize, listener: usize) {
        let address = super::plan::address(&format!("l{listener}-x{}", self.queues.list.len()));
        if self.queues.list.len() >= self.plan.most_queues_in_use()
            || !self
                .listeners
                .iter()
                .any(|listener| listener.wants(&address))
        {
            let queue = self.some_queue();
            return self.put(publisher, queue);
        }
        let queue = self.queues.add(address, false);
        self.put(publisher, queue);
    }
}
