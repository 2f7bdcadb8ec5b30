//! A read-only view of a listener that another part of the program owns.

use std::{fmt, sync::Arc};

use super::{shared::Shared, state::QueryState};

/// A read-only view of a [`Listener`](super::Listener). Clones are cheap, and neither keep the
/// listener running nor end it. After its end the figures stay unchanged.
#[derive(Clone)]
pub struct ListenerMonitor(Arc<Shared>);

impl ListenerMonitor {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self(Arc::clone(shared))
    }

    /// Returns the present state without a depth: makes no call to the queue.
    pub fn state(&self) -> QueryState {
        self.0.state()
    }

    /// Returns whether the listener is stopping.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.is_cancelled()
    }

    /// Returns why the listener polls; `None` while it is pushed, and where no cause is known.
    pub fn cause(&self) -> Option<Arc<str>> {
        crate::base::sync::lock(&self.0.cause).clone()
    }

    /// Returns the handling times of all messages or batches so far.
    #[cfg(feature = "console")]
    pub(crate) fn handling_times(&self) -> crate::base::histogram::HistogramSnapshot {
        self.0.counters.handling.times()
    }
}

impl fmt::Debug for ListenerMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
