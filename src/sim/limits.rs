//! The relay's limits as troubles: a table without room for new queues, requests of a bounded size.

use std::{collections::BTreeMap, time::Duration};

use super::{
    oracle::SOON,
    plan::{Plan, Shape, Trouble},
    world::World,
};
use crate::{
    clock::Tick,
    error::{Error, ErrorKind, Result},
    words::{Notification, Position, SubscribeOptions},
};

/// The queues that a relay has no room for, each until then.
pub(super) type FullTable = BTreeMap<usize, Tick>;

/// What a subscribe request may hold of positions, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct PositionRoom {
    /// As the client knows it.
    pub(super) known: usize,
    /// As the relay has it.
    pub(super) taken: usize,
}

/// An entry that was refused is sent again within this after there is room: the longest back-off,
/// and the pauses between probes.
const RETRIED: Duration = Duration::from_secs(16);

impl World {
    /// The relay has no room for some queues for a while. Not where there are hundreds: a burst
    /// over all of them takes longer to be sent in halves than the checks allow.
    pub(super) fn fill_table(&mut self) {
        // A burst over hundreds of queues takes longer to be sent in halves than a check allows.
        let until = self.until(5_000, 40_000);
        for _ in 0..self.rng.usize(1..=2) {
            let queue = self.rng.usize(0..self.plan.queues.len());
            let end = self.full.entry(queue).or_default();
            *end = until.max(*end);
        }
    }

    /// Returns by when a publisher sends again what it has set aside of this queue.
    pub(super) fn retried_by(&self, queue: usize) -> Option<Tick> {
        Some(*self.full.get(&queue)? + RETRIED)
    }

    pub(super) fn check_room(&self, notifications: &[Notification]) -> Result<()> {
        let refused = |notification: &Notification| {
            let queue = self.queues.find(&notification.queue);
            let until = queue.and_then(|queue| self.full.get(&queue));
            until.is_some_and(|until| self.now < *until)
        };
        if notifications.iter().any(refused) {
            let message = "queues: the limit is reached";
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(())
    }

    pub(super) fn check_size(&self, options: &SubscribeOptions) -> Result<()> {
        let bytes: usize = options.positions.iter().map(Position::encoded).sum();
        match self.plan.room {
            Some(room) if bytes > room.taken => {
                let message = format!("request: the limit is {} bytes", room.taken);
                Err(Error::new(ErrorKind::Exhausted, message))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a stream that began without some places may still tell of their queues.
    pub(super) fn is_being_told(&self, listener: usize) -> bool {
        let few = self.plan.room.is_some() || self.plan.few.is_some();
        few && self.listeners[listener].ok_from + SOON > self.now
    }

    /// Returns whether a listener may be refused for the size of its request before it is taken.
    pub(super) fn may_be_too_large(&self) -> bool {
        self.plan.room.is_some_and(|room| room.known > room.taken)
    }
}

impl Plan {
    /// Has the run meet limits: the table is full at times, the listeners share connections, or
    /// there is room for a few positions only, which the client may not know.
    pub(super) fn limit(&mut self, rng: &mut fastrand::Rng) {
        let small = matches!(self.shape, Shape::Sparse | Shape::Fleet);
        if small && rng.bool() {
            self.troubles.push(Trouble::TableFull);
        }
        if small && rng.u32(0..4) != 0 {
            self.shared = Some(rng.usize(2..=3));
            self.troubles.push(Trouble::SlowReader);
        }
        if rng.u32(0..4) == 0 || self.shape == Shape::Wide {
            let taken = rng.usize(0..400);
            let known = if rng.bool() { taken } else { 1 << 20 };
            self.room = Some(PositionRoom { known, taken });
        }
    }
}

impl PositionRoom {
    /// Returns the request's limit as the listener knows it.
    pub(super) fn request_bytes(self, options: &SubscribeOptions) -> usize {
        options.encoded_without_positions() + self.known
    }
}
