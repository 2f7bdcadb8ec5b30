//! The events that a watcher receives, with a state that all watchers of a flag share.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;

use crate::types::{FlagEvent, FlagState, Goodbye};

/// An event for a watcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The first state, and each change of it.
    State(Arc<SharedState>),
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

/// A state that is encoded once for all watchers.
pub(crate) struct SharedState {
    state: FlagState,
    encoded: OnceLock<Bytes>,
}

impl SharedState {
    pub(super) fn new(state: FlagState) -> Arc<Self> {
        Arc::new(Self {
            state,
            encoded: OnceLock::new(),
        })
    }

    /// Returns the encoded state. `encode` is called once.
    pub(crate) fn encoded(&self, encode: impl FnOnce(&FlagState) -> Bytes) -> Bytes {
        self.encoded.get_or_init(|| encode(&self.state)).clone()
    }
}

impl std::ops::Deref for SharedState {
    type Target = FlagState;

    fn deref(&self) -> &FlagState {
        &self.state
    }
}

impl PartialEq for SharedState {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state
    }
}

impl Eq for SharedState {}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl From<Event> for FlagEvent {
    fn from(event: Event) -> Self {
        match event {
            Event::State(shared) => Self::State(shared.state.clone()),
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
