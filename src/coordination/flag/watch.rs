//! A watch of a flag, registered until it is dropped, and the stream of a client that has one.

use std::{task::Waker, time::SystemTime};

use super::Flags;
#[cfg(feature = "relay")]
use crate::{
    base::clock::Tick,
    types::{Drain, StreamAction, StreamLifecycle},
};
use crate::{
    base::text::opaque_debug,
    error::Result,
    types::{FlagEvent, FlagName, ListenerId},
};

/// A watcher, registered until it is dropped. [`WatchGuard::sync`] reads the store after the
/// registration.
pub(crate) struct WatchGuard {
    pub(super) flags: Flags,
    pub(super) name: FlagName,
    pub(super) listener: ListenerId,
    pub(super) id: u64,
    /// Whether operators are shown this watcher. Observers of acknowledgements are not shown.
    pub(super) shown: bool,
}

/// The messages of one watch's stream: states, acknowledgements, heartbeats, Goodbye. Its driver polls
/// it only when the stream is ready to send, and also awaits [`WatchGuard::sync`].
///
/// A heartbeat is sent only when no event is pending (R6: a heartbeat proves that nothing is
/// pending). The first state counts as pending, so there is no heartbeat before the store has been
/// read.
#[cfg(feature = "relay")]
#[derive(Debug)]
pub(crate) struct WatchStream {
    watch: WatchGuard,
    lifecycle: StreamLifecycle,
}

impl WatchGuard {
    /// Shows the listener no longer, because this watch's stream is about to end.
    pub(super) fn hide(&mut self) {
        if std::mem::take(&mut self.shown) {
            self.flags
                .inner
                .registry(|registry| registry.entry(&self.name).stream_closed(&self.listener));
        }
    }

    /// Makes the present state known: by a read of the store, or a local write, that began after this
    /// watcher registered (R20: a fresh read). The read may be this watcher's own or another
    /// watcher's. Nothing is sent before. The future does not borrow the watch, so that a driver may
    /// hold the two apart.
    ///
    /// # Errors
    /// `Unavailable` for any error of the store. It may be called again.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) fn sync(&self, wall: SystemTime) -> impl Future<Output = Result<()>> + Send + use<> {
        let (flags, name, id) = (self.flags.clone(), self.name.clone(), self.id);
        async move {
            let inner = &flags.inner;
            let is_synced = || inner.registry(|registry| registry.is_synced(&name, id));
            if is_synced() {
                return Ok(());
            }
            let _guard = inner.lock_to_read(&name).await;
            if is_synced() {
                return Ok(());
            }
            // A watcher survives any error of the store: only a request can be refused for good.
            let read = inner.read(&name, wall).await;
            read.map_err(|error| inner.unavailable(&name, "cannot be watched now", error))
        }
    }

    /// Takes the next event. If there is none, `waker` is woken when one is ready.
    pub(crate) fn next_event(&self, waker: &Waker) -> Option<FlagEvent> {
        self.flags
            .inner
            .registry(|registry| registry.next_event(&self.name, self.id, waker))
    }

    /// Counts that this watcher's listener has seen a generation.
    #[cfg(test)]
    pub(crate) fn ack(&self, generation: u64) -> Result<()> {
        let counted = self.flags.ack(&self.name, generation, &self.listener);
        counted.map(drop)
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.hide();
        self.flags
            .inner
            .registry(|registry| registry.unregister(&self.name, self.id));
    }
}

opaque_debug!(WatchGuard: name, listener);

#[cfg(feature = "relay")]
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
    ) -> StreamAction<FlagEvent> {
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
            return StreamAction::Send(FlagEvent::Goodbye(goodbye));
        }
        let (name, id) = (&self.watch.name, self.watch.id);
        let inner = &self.watch.flags.inner;
        if !inner.registry(|registry| registry.is_synced(name, id)) {
            return StreamAction::Wait(self.lifecycle.ends_at);
        }
        if now >= self.lifecycle.heartbeat_at() {
            self.lifecycle.sent_at = now;
            return StreamAction::Send(FlagEvent::Heartbeat);
        }
        StreamAction::Wait(self.lifecycle.heartbeat_at().min(self.lifecycle.ends_at))
    }
}
