//! A flag watch's client side: the states it hands over.
//!
//! Every stream begins with the flag's current state. A state that the application has already seen
//! is not handed over again.

use std::collections::VecDeque;

use super::reconnect::{Reconnect, ReconnectConfig};
use crate::{
    base::clock::Tick,
    types::{FlagEvent, FlagState},
};

/// The watch's state machine.
#[derive(Debug)]
pub(crate) struct WatchSession {
    pub(crate) reconnect: Reconnect,
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

    pub(crate) fn received(&mut self, event: FlagEvent, now: Tick, rng: &mut fastrand::Rng) {
        self.reconnect.on_message(now);
        match event {
            FlagEvent::Goodbye(goodbye) => self.reconnect.goodbye(now, goodbye, rng),
            FlagEvent::State(_) | FlagEvent::Acks { .. } => self.undelivered.push_back(event),
            FlagEvent::Heartbeat | FlagEvent::Unknown => {}
        }
    }
}
