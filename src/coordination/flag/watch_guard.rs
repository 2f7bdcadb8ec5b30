//! One watcher of one flag, registered until it is dropped.

use std::{fmt, task::Waker, time::SystemTime};

use super::{Event, Flags, registry::Registered};
use crate::{
    error::Result,
    types::{FlagName, ListenerId},
};

/// A registered watcher. [`WatchGuard::sync`] reads the store after the registration.
pub(crate) struct WatchGuard {
    flags: Flags,
    name: FlagName,
    listener: ListenerId,
    id: u64,
    /// Whether operators are shown this watcher. Observers of acknowledgements are not shown.
    shown: bool,
    duplicate: bool,
}

impl WatchGuard {
    /// Wraps a new registration and wakes the observers of the number of watchers.
    pub(super) fn new(
        flags: Flags,
        name: FlagName,
        listener: ListenerId,
        acks: bool,
        registered: Registered,
    ) -> Self {
        registered.wakers.wake();
        Self {
            flags,
            name,
            listener,
            id: registered.id,
            shown: !acks,
            duplicate: registered.duplicate,
        }
    }

    /// Returns whether another stream already watched the flag under the same listener id.
    pub(crate) fn is_duplicate(&self) -> bool {
        self.duplicate
    }

    /// Shows the listener as away, because this watch's stream is about to end. A stream that
    /// replaces it is then no duplicate.
    pub(crate) fn mark_away(&mut self) {
        if std::mem::take(&mut self.shown) {
            let inner = &self.flags.inner;
            let now = inner.clock.now();
            inner.registry().mark_away(&self.name, &self.listener, now);
        }
    }

    /// Makes the present state known: by a read of the store, or a local write, that began after this
    /// watcher registered (R20: a fresh read). The read may be this watcher's own or another
    /// watcher's. Nothing is sent before.
    ///
    /// # Errors
    /// `Unavailable` for any error of the store. It may be called again.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn sync(&self, wall: SystemTime) -> Result<()> {
        self.sync_future(wall).await
    }

    /// Like [`WatchGuard::sync`], for a driver that holds this watch elsewhere.
    pub(crate) fn sync_future(
        &self,
        wall: SystemTime,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let (flags, name, id) = (self.flags.clone(), self.name.clone(), self.id);
        async move { sync(&flags, &name, id, wall).await }
    }

    /// Returns whether the present state is known.
    pub(crate) fn is_synced(&self) -> bool {
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

async fn sync(flags: &Flags, name: &FlagName, id: u64, wall: SystemTime) -> Result<()> {
    let inner = &flags.inner;
    let is_synced = || inner.registry().is_synced(name, id);
    if is_synced() {
        return Ok(());
    }
    let _guard = inner.lock_to_read(name).await;
    // The loop ends: only a set of another relay that is heard during a read invalidates it.
    while !is_synced() {
        // A watcher survives any error of the store: only a request can be refused for good.
        let read = inner.read(name, wall).await;
        read.map_err(|error| inner.unavailable(name, "cannot be watched now", error))?;
    }
    Ok(())
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.mark_away();
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
