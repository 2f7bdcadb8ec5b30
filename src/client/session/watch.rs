//! A flag watch's client side: the states it hands over.
//!
//! Every stream begins with the flag's current state. A state that the application has already seen
//! is not handed over again.

use std::collections::VecDeque;

use super::reconnect::{Outage, Reconnect, ReconnectConfig, ReconnectStep};
use crate::{
    base::clock::Tick,
    error::Error,
    types::{ConnectionState, FlagEvent, FlagState},
};

/// The watch's state machine.
#[derive(Debug)]
pub(crate) struct WatchSession {
    reconnect: Reconnect,
    undelivered: VecDeque<FlagEvent>,
    seen: Option<FlagState>,
}

impl WatchSession {
    pub(crate) fn new(config: ReconnectConfig) -> Self {
        Self {
            reconnect: Reconnect::new(config),
            undelivered: VecDeque::new(),
            seen: None,
        }
    }

    /// Hands over the next state or acknowledgement.
    pub(crate) fn next_event(&mut self) -> Option<FlagEvent> {
        loop {
            let event = self.undelivered.pop_front()?;
            let FlagEvent::State(state) = &event else {
                return Some(event);
            };
            if self.seen.as_ref() == Some(state) {
                continue;
            }
            self.seen = Some(state.clone());
            return Some(event);
        }
    }

    /// Returns the next step. Call it when no event is left to hand over.
    pub(crate) fn step(&mut self, now: Tick) -> ReconnectStep {
        self.reconnect.step(now)
    }

    pub(crate) fn opened(&mut self, now: Tick) {
        self.reconnect.opened(now);
    }

    pub(crate) fn received(&mut self, event: FlagEvent, now: Tick, rng: &mut fastrand::Rng) {
        self.reconnect.on_message(now);
        match event {
            FlagEvent::Goodbye(goodbye) => self.reconnect.goodbye(now, goodbye, rng),
            FlagEvent::State(_) | FlagEvent::Acks { .. } => self.undelivered.push_back(event),
            FlagEvent::Heartbeat | FlagEvent::Unknown => {}
        }
    }

    /// Sets the heartbeat that the request asked for. A flag's stream has no Welcome that states
    /// one.
    pub(crate) fn set_heartbeat(&mut self, heartbeat: std::time::Duration) {
        self.reconnect.set_heartbeat(heartbeat);
    }

    /// The stream broke or could not be opened. Returns the error if it is final.
    pub(crate) fn broken(
        &mut self,
        now: Tick,
        error: Option<&Error>,
        rng: &mut fastrand::Rng,
    ) -> Option<Error> {
        self.reconnect.broken(now, error, rng)
    }

    /// The time of the last step has passed. Returns whether the driver must drop the stream.
    pub(crate) fn elapsed(&mut self, now: Tick, rng: &mut fastrand::Rng) -> bool {
        self.reconnect.elapsed(now, rng)
    }

    /// Returns an outage that is due for a log line.
    pub(crate) fn outage(&mut self, now: Tick) -> Option<Outage> {
        self.reconnect.outage(now)
    }

    pub(crate) fn state(&self) -> ConnectionState {
        self.reconnect.state()
    }
}
