//! A flag watch's client side: which states it hands over.
//!
//! The relay tells the present state first on every stream; what the application has seen already
//! is not handed over twice.

use std::collections::VecDeque;

use super::link::{Link, LinkConfig, Outage, Step};
use crate::{
    clock::Tick,
    error::Error,
    words::{ConnectionState, FlagEvent, FlagState},
};

/// The watch's state machine.
#[derive(Debug)]
pub(crate) struct WatchSession {
    link: Link,
    arrived: VecDeque<FlagEvent>,
    seen: Option<FlagState>,
}

impl WatchSession {
    pub(crate) fn new(config: LinkConfig) -> Self {
        Self {
            link: Link::new(config),
            arrived: VecDeque::new(),
            seen: None,
        }
    }

    /// Hands over the next state or acknowledgement.
    pub(crate) fn next_event(&mut self) -> Option<FlagEvent> {
        loop {
            let event = self.arrived.pop_front()?;
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

    /// Returns what to do next, where nothing is to be handed over.
    pub(crate) fn step(&mut self, now: Tick) -> Step {
        self.link.step(now)
    }

    /// The stream is open.
    pub(crate) fn opened(&mut self, now: Tick) {
        self.link.opened(now);
    }

    /// A message arrived.
    pub(crate) fn received(&mut self, event: FlagEvent, now: Tick, rng: &mut fastrand::Rng) {
        self.link.heard(now);
        match event {
            FlagEvent::Goodbye(goodbye) => self.link.goodbye(now, goodbye, rng),
            FlagEvent::State(_) | FlagEvent::Acks { .. } => self.arrived.push_back(event),
            FlagEvent::Heartbeat | FlagEvent::Unknown => {}
        }
    }

    /// The relay stated no heartbeat of its own on this stream: it is the one asked for.
    pub(crate) fn beats(&mut self, heartbeat: std::time::Duration) {
        self.link.beats(heartbeat);
    }

    /// The stream broke or could not be opened. Returns the error where it is final.
    pub(crate) fn broken(
        &mut self,
        now: Tick,
        error: Option<&Error>,
        rng: &mut fastrand::Rng,
    ) -> Option<Error> {
        self.link.broken(now, error, rng)
    }

    /// The time has come that the last step named. Returns whether to drop the stream.
    pub(crate) fn elapsed(&mut self, now: Tick, rng: &mut fastrand::Rng) -> bool {
        self.link.elapsed(now, rng)
    }

    /// Returns an outage that is to be logged now.
    pub(crate) fn outage(&mut self, now: Tick) -> Option<Outage> {
        self.link.outage(now)
    }

    pub(crate) fn state(&self) -> ConnectionState {
        self.link.state()
    }
}
