//! The invariants of such listeners.

use std::time::Duration;

use super::{
    super::{plan::Trouble, queue::MessageId, reports::ANSWER, world::World},
    LOOKED, MAX_TASKS, POLLED, Scaled,
};
use crate::base::clock::Tick;

impl World {
    /// Checks the additional invariants of these listeners. R8: one with messages counts as
    /// busy. R18: every wake-up ends in a get. W4: a listener without a stream polls.
    pub(in crate::sim) fn check_scaled(&mut self, number: usize) {
        let (now, listener) = (self.now, &self.listeners[number]);
        if listener.session.is_none() || listener.leaving || listener.paused_until > now {
            return;
        }
        let from = listener.paused_until.max(listener.started_at);
        let alone = listener.alone_since.map(|since| since.max(from));
        let mut wrong = None;
        for (queue, scaled) in &listener.scaled {
            let seen = scaled.looked_at.max(scaled.excused_until);
            let seen = seen.max(scaled.hangs_until).max(scaled.depth_at);
            let batch = self.plan.listeners[number].batch;
            if let Some(alone) = alone
                && scaled.has_places(batch)
                && now > alone.max(seen) + POLLED
            {
                wrong = Some(format!(
                    "W4: listener {number} has no stream, and does not look into queue {queue}: \
                     {:?}",
                    scaled.scaler
                ));
            }
            if let Some(message) = self.held_in_secret(number, *queue, scaled) {
                wrong = Some(format!(
                    "R8: listener {number} holds message {message} of queue {queue}, and the relay \
                     takes it to be idle: {:?}",
                    scaled.scaler
                ));
            }
        }
        if let Some(wrong) = wrong {
            self.violate(|| wrong);
        }
    }

    /// Returns a message that is in flight for long although the relay does not know of it.
    fn held_in_secret(&self, number: usize, queue: usize, scaled: &Scaled) -> Option<MessageId> {
        const LONG: Duration = Duration::from_millis(2_500);
        let listener = &self.listeners[number];
        let quiet = self.plan.may(Trouble::ReportsLost)
            || !self.is_well(number)
            || self.was_full()
            || self.now < listener.ok_from + LONG
            || self.now < listener.partition_until + ANSWER + LONG
            || self.now < listener.stalled_until.max(self.relay.paused_until) + LONG;
        if quiet {
            return None;
        }
        let stream = self.relay.streams.get(&listener.conn?)?;
        let place = stream.places.get(&queue).copied().unwrap_or_default();
        if place.is_busy(stream, self.now) {
            return None;
        }
        let held = scaled.held.values().flatten();
        held.map(|(id, _)| *id)
            .find(|id| self.now > self.queues.messages[*id].got_at + LONG)
    }
}

impl Scaled {
    /// Returns whether there is room for one more message.
    pub(super) fn has_places(&self, batch: usize) -> bool {
        let full = |held: &&Vec<_>| held.len() >= batch;
        self.held.values().filter(full).count() < MAX_TASKS
    }

    /// Returns whether its gets fail or hang at the moment.
    pub(in crate::sim) fn is_excused(&self, now: Tick) -> bool {
        now < self.excused_until.max(self.hangs_until) + LOOKED
    }

    /// Returns whether no slot is free for another task.
    pub(in crate::sim) fn is_full(&self) -> bool {
        self.scaler.active().0 >= MAX_TASKS
    }

    /// Returns whether the queue was polled since, or need not or cannot be polled now. That is so
    /// if it was polled when the message was due by tasks that have work since, if no task has a
    /// free place, if the queue fails, or if one task has work (or only one is allowed) and the
    /// next get hangs.
    pub(in crate::sim) fn has_looked(
        &self,
        batch: usize,
        due: Tick,
        from: Tick,
        now: Tick,
    ) -> bool {
        let stuck = now < self.hangs_until && (!self.held.is_empty() || self.is_full());
        let seen = !self.held.is_empty() && self.looked_at >= due;
        self.looked_at >= from
            || seen
            || !self.has_places(batch)
            || stuck
            || now < self.excused_until + LOOKED
    }
}
