//! A watch of a flag, registered until it is dropped: for a client's stream, and for the relay's own
//! process.

use std::{
    fmt,
    future::poll_fn,
    task::{Poll, Waker},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use super::{Flags, WallClock};
#[cfg(feature = "relay")]
use crate::{
    base::clock::Tick,
    types::{Drain, StreamAction, StreamLifecycle},
};
use crate::{
    base::{backoff::Backoff, text::opaque_debug},
    error::Result,
    types::{FlagEvent, FlagName, FlagState, FlagWatch, ListenerId},
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

/// Watches a flag in this process. It is registered on creation.
pub(crate) struct LocalWatch {
    watch: WatchGuard,
    wall: WallClock,
}

/// Back-off after a failed read of the store: first and longest wait.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

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
    ///
    /// # Errors
    /// `Exhausted` if too many are remembered.
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

impl LocalWatch {
    pub(crate) fn new(
        flags: &Flags,
        name: &FlagName,
        listener: ListenerId,
        wall: WallClock,
    ) -> Self {
        let watch = flags.watch(name, listener, false, wall());
        Self { watch, wall }
    }

    /// Reads the store until a read counts. Returns only final errors.
    async fn sync(&self) -> Result<()> {
        let mut backoff = Backoff::new(RETRY_BACKOFF.0, RETRY_BACKOFF.1);
        loop {
            match self.watch.sync((self.wall)()).await {
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "a flag cannot be watched yet");
                    tokio::time::sleep(backoff.next(&mut fastrand::Rng::new())).await;
                }
                synced => return synced,
            }
        }
    }

    /// Waits for the next state and skips other events.
    async fn state(&self) -> FlagState {
        poll_fn(|context| {
            loop {
                match self.watch.next_event(context.waker()) {
                    Some(FlagEvent::State(state)) => return Poll::Ready(state),
                    Some(_) => {}
                    None => return Poll::Pending,
                }
            }
        })
        .await
    }
}

#[async_trait]
impl FlagWatch for LocalWatch {
    async fn next(&mut self) -> Option<Result<FlagState>> {
        tokio::select! {
            biased;
            state = self.state() => Some(Ok(state)),
            // After the synchronization, only states are waited for.
            Err(error) = self.sync() => Some(Err(error)),
        }
    }

    async fn ack(&mut self, generation: u64) -> Result<()> {
        self.watch.ack(generation)
    }
}

impl fmt::Debug for LocalWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalWatch").field(&self.watch).finish()
    }
}
