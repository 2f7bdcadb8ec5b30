//! What a listener does, for who looks on while another part of the program holds it.

use std::{fmt, sync::Arc};

use super::{shared::Shared, state::QueryState};
use crate::histogram::HistogramSnapshot;

/// Looks on at a [`Listener`](super::Listener): a cheap clone that neither keeps it running nor ends
/// it. After its end the figures stay what they were.
#[derive(Clone)]
pub struct ListenerMonitor(Arc<Shared>);

impl ListenerMonitor {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self(Arc::clone(shared))
    }

    /// Returns what the listener does just now, without a depth: asks nobody.
    pub fn state(&self) -> QueryState {
        self.0.state()
    }

    /// Returns whether the listener was told to end.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.is_cancelled()
    }

    /// Returns how long handling took, of all messages or batches so far.
    pub(crate) fn handling_times(&self) -> HistogramSnapshot {
        self.0.counters.handling.times()
    }
}

impl fmt::Debug for ListenerMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
