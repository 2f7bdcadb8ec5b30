//! A flag watch's client side: the states it hands over.
//!
//! Every stream begins with the flag's current state. A state that repeats the one before it is not
//! handed over.

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
    /// The newest state that arrived.
    newest: Option<FlagState>,
}

impl WatchSession {
    pub(crate) fn new(config: ReconnectConfig) -> Self {
        Self {
            reconnect: Reconnect::new(config),
            undelivered: VecDeque::new(),
            newest: None,
        }
    }

    /// Hands over the next state or acknowledgement.
    pub(crate) fn next_event(&mut self) -> Option<FlagEvent> {
        self.undelivered.pop_front()
    }

    pub(crate) fn received(&mut self, event: FlagEvent, now: Tick, rng: &mut fastrand::Rng) {
        self.reconnect.on_message(now);
        match event {
            FlagEvent::Goodbye(goodbye) => self.reconnect.goodbye(now, goodbye, rng),
            FlagEvent::State(state) if self.newest.as_ref() == Some(&state) => {}
            FlagEvent::State(ref state) => {
                self.newest = Some(state.clone());
                self.undelivered.push_back(event);
            }
            FlagEvent::Acks { .. } => self.undelivered.push_back(event),
            FlagEvent::Heartbeat | FlagEvent::Unknown => {}
        }
    }
}
