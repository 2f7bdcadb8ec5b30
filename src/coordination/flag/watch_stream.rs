//! The messages of one watch's stream: states, acknowledgements, heartbeats, Goodbye.
//!
//! A state machine. Its driver polls it only when the stream is ready to send. A heartbeat is sent
//! only when no event is pending (R6: a heartbeat proves that nothing is pending). The first state
//! counts as pending, so there is no heartbeat before the store has been read.

use std::task::Waker;

use super::{Event, WatchGuard};
use crate::{
    base::clock::Tick,
    types::{Drain, StreamAction, StreamLifecycle},
};

/// The messages of one stream. Its driver also awaits [`WatchGuard::sync`].
#[derive(Debug)]
pub(crate) struct WatchStream {
    watch: WatchGuard,
    lifecycle: StreamLifecycle,
}

impl WatchStream {
    pub(crate) fn new(watch: WatchGuard, lifecycle: StreamLifecycle) -> Self {
        Self { watch, lifecycle }
    }

    /// Returns the watch, so that tests can synchronize it.
    #[cfg(test)]
    pub(crate) fn watch(&self) -> &WatchGuard {
        &self.watch
    }

    /// Returns the next action. `drain` means that the relay shuts down.
    pub(crate) fn next(
        &mut self,
        now: Tick,
        drain: Option<Drain>,
        waker: &Waker,
    ) -> StreamAction<Event> {
        if self.lifecycle.ended {
            return StreamAction::End;
        }
        // Before any Goodbye. R21: a set is never conflated away, and no other stream knows of this
        // one.
        if let Some(event) = self.watch.next_event(waker) {
            self.lifecycle.sent_at = now;
            return StreamAction::Send(event);
        }
        if let Some(goodbye) = self.lifecycle.goodbye(now, drain) {
            self.watch.hide();
            return StreamAction::Send(Event::Goodbye(goodbye));
        }
        if !self.watch.is_synced() {
            return StreamAction::Wait(self.lifecycle.ends_at);
        }
        if now >= self.lifecycle.heartbeat_at() {
            self.lifecycle.sent_at = now;
            return StreamAction::Send(Event::Heartbeat);
        }
        StreamAction::Wait(self.lifecycle.heartbeat_at().min(self.lifecycle.ends_at))
    }
}
