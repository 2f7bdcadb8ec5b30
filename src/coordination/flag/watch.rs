//! A watch of a flag, registered until it is dropped; and one for the relay's own process.

use std::{
    fmt,
    future::poll_fn,
    task::{Poll, Waker},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use super::{Event, Flags, WallClock};
use crate::{
    base::backoff::Backoff,
    error::Result,
    types::{FlagName, FlagState, FlagWatch, ListenerId},
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
            let mut registry = self.flags.inner.registry();
            registry.stream_closed(&self.name, &self.listener);
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
            if inner.registry().is_synced(&name, id) {
                return Ok(());
            }
            let _guard = inner.lock_to_read(&name).await;
            if inner.registry().is_synced(&name, id) {
                return Ok(());
            }
            // A watcher survives any error of the store: only a request can be refused for good.
            let read = inner.read(&name, wall).await;
            read.map_err(|error| inner.unavailable(&name, "cannot be watched now", error))
        }
    }

    /// Returns whether the present state is known.
    pub(super) fn is_synced(&self) -> bool {
        self.flags.inner.registry().is_synced(&self.name, self.id)
    }

    /// Takes the next event. If there is none, `waker` is woken when one is ready.
    pub(crate) fn next_event(&self, waker: &Waker) -> Option<Event> {
        let mut registry = self.flags.inner.registry();
        registry.next_event(&self.name, self.id, waker)
    }

    /// Counts that this watcher's listener has seen a generation.
    ///
    /// # Errors
    /// `Exhausted` if too many are remembered.
    pub(crate) fn ack(&self, generation: u64) -> Result<()> {
        self.flags.ack(&self.name, generation, &self.listener)
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.hide();
        let wakers = self.flags.inner.registry().unregister(&self.name, self.id);
        wakers.wake();
    }
}

impl fmt::Debug for WatchGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchGuard")
            .field("name", &self.name)
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

impl LocalWatch {
    pub(crate) fn new(
        flags: &Flags,
        name: &FlagName,
        listener: ListenerId,
        wall: WallClock,
    ) -> Self {
        let watch = flags.watch(name, listener, false);
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
                    Some(Event::State(state)) => return Poll::Ready(FlagState::clone(&state)),
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
