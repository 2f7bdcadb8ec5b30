//! The events that a watcher receives, with a state that all watchers of a flag share.

use std::sync::Arc;

use crate::types::{FlagEvent, FlagState, Goodbye};

/// An event for a watcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The first state, and each change of it.
    State(Arc<FlagState>),
    /// New counts of acknowledgements.
    Acks(Acks),
    /// Nothing changed.
    Heartbeat,
    /// The stream ends.
    Goodbye(Goodbye),
}

/// Counts of acknowledgements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acks {
    pub(crate) generation: u64,
    pub(crate) acknowledged: u32,
    pub(crate) watchers: u32,
}

impl From<Event> for FlagEvent {
    fn from(event: Event) -> Self {
        match event {
            Event::State(shared) => Self::State((*shared).clone()),
            Event::Acks(acks) => Self::Acks {
                generation: acks.generation,
                acknowledged: acks.acknowledged,
                watchers: acks.watchers,
            },
            Event::Heartbeat => Self::Heartbeat,
            Event::Goodbye(goodbye) => Self::Goodbye(goodbye),
        }
    }
}
