//! Durable global flags: they park a fleet and release it.
//!
//! A flag is a blob whose existence means "set". `Flags` first writes the blob durably and then
//! notifies the watchers. A watcher first registers and then reads the store, so its first state is
//! never stale. `WatchRegistry` decides without I/O which states watchers receive and when. The
//! functions here run the store requests for it and wait for nothing else. The wall clock is an
//! argument. The registry's lock is the only lock. It is a leaf and is never held across an
//! `.await`.

#[cfg(all(feature = "relay", feature = "nats"))]
mod ack_queries;
mod acks;
mod background;
mod blobs;
pub(crate) mod document;
mod entry;
mod event;
mod expiry;
#[cfg(all(feature = "relay", feature = "nats"))]
mod hints;
mod keyed_mutex;
mod local;
mod presence;
mod refresh;
mod registry;
#[cfg(all(feature = "relay", feature = "nats"))]
mod remote_acks;
mod set_flags;
mod store_flag;
mod store_flags;
mod wakers;
mod watch_guard;
#[cfg(feature = "relay")]
mod watch_stream;
mod writes;

#[cfg(test)]
mod tests;

use tokio::sync::Notify;

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Waker},
    time::SystemTime,
};

use futures_util::TryStreamExt as _;

#[cfg(feature = "sweep")]
pub(crate) use self::document::{ENDED_FOLDER, FOLDER};
#[cfg(feature = "relay")]
pub(crate) use self::watch_stream::WatchStream;
#[cfg(all(feature = "relay", feature = "nats"))]
pub(crate) use self::{
    ack_queries::{AckQuery, AskAcks, RemoteAcks},
    acks::{AckKey, KnownAcks},
    hints::FlagHints,
};
pub(crate) use self::{
    background::{FlagTimers, start},
    event::Event,
    local::LocalWatch,
    presence::{WatcherView, WatchersQuery},
    watch_guard::WatchGuard,
};
use self::{
    blobs::FlagBlobs,
    document::{EndRule, EndedSet, StoredFlag, Version},
    keyed_mutex::{KeyedGuard, KeyedMutex},
    registry::WatchRegistry,
};
pub use self::{store_flag::StoreFlag, store_flags::StoreFlags};
use crate::{
    base::{clock::Clock, fault::planted, sync::lock},
    error::{Error, ErrorKind, Result},
    store::{BlobStore, PageOptions},
    types::{FlagName, FlagState, Limits, ListenerId},
};

/// Reads the wall clock. Tests and simulations supply their own.
pub(crate) type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// How flags behave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlagsConfig {
    /// Limit of flags that are set at one time. A flag with an expiry costs at most about 3 KiB.
    pub(crate) max_flags: usize,
    /// Limit of distinct flags that clients watch at one time. Each costs at most about 3 KiB.
    pub(crate) max_watched_flags: usize,
    /// Limit of acknowledgements of one flag and generation; further ones are refused. The default
    /// equals a relay's default limit of connections. At about 16 bytes each it is 1.6 MB.
    pub(crate) max_acks_per_flag: usize,
    /// Limit of acknowledgements of all flags together: 16 MB. One flag may use at most as much of
    /// the room as it leaves free.
    pub(crate) max_acks: usize,
}

impl Default for FlagsConfig {
    fn default() -> Self {
        Self {
            max_flags: 10_000,
            max_watched_flags: 10_000,
            max_acks_per_flag: 100_000,
            max_acks: 1_000_000,
        }
    }
}

/// The flags of a store and their watchers. Clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct Flags {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    blobs: FlagBlobs,
    registry: Mutex<WatchRegistry>,
    /// Only for the times that operators are shown. It decides nothing.
    clock: Clock,
    /// Serializes the reads and local writes of each flag, so that watchers see them in the order in
    /// which they reached the store. Of a thousand watchers that register at once, the first two
    /// reads synchronize all.
    locks: KeyedMutex,
    /// Watched flags have changed, or all may have: they are read before the next interval.
    refresh_requested: Notify,
    /// Whether all watched flags may have changed.
    resync: AtomicBool,
    /// The writes for the other relays; empty where the relay is alone.
    #[cfg(all(feature = "relay", feature = "nats"))]
    hints: std::sync::OnceLock<FlagHints>,
}

impl Flags {
    pub(crate) fn new(store: Arc<dyn BlobStore>, config: FlagsConfig) -> Self {
        let can_remove_expired = store.capabilities().conditional_delete;
        let inner = Inner {
            blobs: FlagBlobs { store },
            registry: Mutex::new(WatchRegistry::new(can_remove_expired, &config)),
            clock: Clock::new(),
            locks: KeyedMutex::default(),
            resync: AtomicBool::new(false),
            refresh_requested: Notify::new(),
            #[cfg(all(feature = "relay", feature = "nats"))]
            hints: std::sync::OnceLock::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// A relay without other relays tells no other one of its writes.
    #[cfg(not(all(feature = "relay", feature = "nats")))]
    #[allow(clippy::unused_self, reason = "as in a cluster")]
    fn note_set(&self, _state: &FlagState) {}

    #[cfg(not(all(feature = "relay", feature = "nats")))]
    #[allow(clippy::unused_self, reason = "as in a cluster")]
    fn note_cleared(&self, _ended: &EndedSet) {}

    /// Reads all watched flags that have changed soon: another relay may have written one.
    pub(crate) fn refresh_soon(&self) {
        self.inner.resync.store(true, Ordering::Relaxed);
        self.inner.refresh_requested.notify_one();
    }

    /// Waits until watched flags must be read before the next interval.
    pub(crate) async fn refresh_requested(&self) {
        self.inner.refresh_requested.notified().await;
    }

    /// Reads the flags for which [`Flags::refresh_requested`] became ready. Returns whether a request
    /// was sent to the store.
    ///
    /// # Errors
    /// As [`Flags::refresh`], which is to be called then.
    pub(crate) async fn refresh_as_requested(&self, wall: SystemTime) -> Result<bool> {
        match self.inner.resync.swap(false, Ordering::Relaxed) {
            true => self.refresh(wall).await,
            false => self.read_requested(wall).await,
        }
    }

    /// Reads a flag from the store.
    ///
    /// # Errors
    /// Any error of the store.
    pub(crate) async fn get(&self, name: &FlagName, wall: SystemTime) -> Result<FlagState> {
        let found = self.inner.blobs.read(name).await?;
        let state = found.and_then(|found| found.active(EndRule::SetAt, wall));
        Ok(state.unwrap_or_else(|| self.inner.registry().unset(name)))
    }

    /// Lists the flags that are set, by name, and returns the next page's token. A page may hold
    /// fewer flags than its size. A page size of 0 selects the default.
    ///
    /// # Errors
    /// `Invalid` for a malformed prefix, size or token; any error of the store.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        page_size: u32,
        page_token: &str,
        wall: SystemTime,
    ) -> Result<(Vec<FlagState>, Option<String>)> {
        let size = match usize::try_from(page_size).unwrap_or(usize::MAX) {
            0 => Limits::PAGE,
            size if size <= Limits::PAGE_MAX => size,
            _ => return Err(Error::invalid("page_size", "must be at most 1000")),
        };
        let token = Some(page_token).filter(|token| !token.is_empty());
        let token = token.map(str::to_owned);
        let blobs = &self.inner.blobs;
        let (listed, next) = blobs.page(prefix, &PageOptions { size, token }).await?;
        let found: Vec<_> = blobs.read_listed(listed).try_collect().await?;
        let active = |found: StoredFlag| found.active(EndRule::SetAt, wall);
        Ok((found.into_iter().filter_map(active).collect(), next))
    }

    /// Registers a client's watcher like [`Flags::watch`], within the limit of watched flags. A
    /// flag that is already watched takes no further room.
    ///
    /// # Errors
    /// `Exhausted`, naming the limit.
    pub(crate) fn watch_within_limit(
        &self,
        name: &FlagName,
        listener: ListenerId,
        acks: bool,
    ) -> Result<WatchGuard> {
        let mut registry = self.inner.registry();
        registry.admit_watch(name)?;
        let registered = registry.register(name, &listener, acks, self.inner.clock.now());
        drop(registry);
        Ok(WatchGuard::new(
            self.clone(),
            name.clone(),
            listener,
            acks,
            registered,
        ))
    }

    /// Registers a watcher of this process, to which no limit applies. With `acks` the watcher
    /// receives acknowledgements and is not counted.
    pub(crate) fn watch(&self, name: &FlagName, listener: ListenerId, acks: bool) -> WatchGuard {
        let now = self.inner.clock.now();
        let registered = self.inner.registry().register(name, &listener, acks, now);
        WatchGuard::new(self.clone(), name.clone(), listener, acks, registered)
    }

    /// Lists the present and recent listeners of watched flags, by flag and listener.
    pub(crate) fn list_watchers(&self, query: &WatchersQuery) -> Vec<WatcherView> {
        self.inner
            .registry()
            .list_watchers(query, self.inner.clock.now())
    }

    /// Counts the streams that watch a flag.
    pub(crate) fn watchers(&self) -> u64 {
        self.inner.registry().watchers()
    }

    /// Counts that a listener has seen a generation. A late acknowledgement is no error and is not
    /// counted.
    ///
    /// # Errors
    /// `Exhausted` if too many are remembered; then it is not counted.
    pub(crate) fn ack(
        &self,
        name: &FlagName,
        generation: u64,
        listener: &ListenerId,
    ) -> Result<()> {
        let wakers = self.inner.registry().ack(name, generation, listener)?;
        wakers.wake();
        Ok(())
    }

    /// Returns whether this relay knows a generation as the flag's newest one.
    pub(crate) fn knows_generation(&self, name: &FlagName, generation: u64) -> bool {
        self.inner.registry().knows_generation(name, generation)
    }

    /// Counts that a listener has seen a generation. Reads the flag first if this relay does not
    /// know that generation: the listener may have moved here, with its relay's end.
    ///
    /// # Errors
    /// As [`Flags::ack`]; `Unavailable` if the flag cannot be read. It is not counted then.
    ///
    /// # Cancel safety
    /// Safe: it may be called again.
    pub(crate) async fn ack_any(
        &self,
        name: &FlagName,
        generation: u64,
        listener: &ListenerId,
        wall: SystemTime,
    ) -> Result<()> {
        if self.knows_generation(name, generation) {
            return self.ack(name, generation, listener);
        }
        // It keeps the flag known until the acknowledgement is counted.
        let watch = self.watch_within_limit(name, listener.clone(), true)?;
        watch.sync(wall).await?;
        watch.ack(generation)
    }

    /// Ready when observers must receive new counts of acknowledgements.
    pub(crate) fn poll_acks_changed(&self, waker: &Waker) -> Poll<()> {
        self.inner.registry().poll_acks_changed(waker)
    }

    /// Sends the newest counts of acknowledgements to the observers of the flags that are due.
    /// Returns these flags with the number of observers woken for each.
    pub(crate) async fn publish_acks(
        &self,
        due: impl Fn(&FlagName) -> bool,
    ) -> Vec<(FlagName, usize)> {
        let (told, wakers) = self.inner.registry().publish_acks(due);
        wakers.wake_in_slices().await;
        told
    }
}

impl Inner {
    fn registry(&self) -> MutexGuard<'_, WatchRegistry> {
        lock(&self.registry)
    }

    /// Waits for the flag's lock before a read.
    async fn lock_to_read(&self, name: &FlagName) -> Option<KeyedGuard<'_>> {
        if planted!(FlagReadDuringWrite) {
            return None;
        }
        Some(self.locks.lock(name).await)
    }

    /// Reads a flag: first the newest set that is over, and then the flag. In the other order a set
    /// and its clearing between the two would seem to be over before the read. The caller holds the
    /// flag's lock.
    async fn read(&self, name: &FlagName, wall: SystemTime) -> Result<()> {
        let began = self.registry().next_sequence();
        let (_, ended_version) = self.read_ended(name, began).await?;
        let found = self.blobs.read(name).await?;
        let versions = (found.as_ref().map(StoredFlag::version), ended_version);
        let read = (found, Some(versions));
        let wakers = self.registry().finish_read(name, began, read, wall);
        wakers.wake_in_slices().await;
        Ok(())
    }

    /// Reads and notes the flag's newest set that is over, for a read or write that began at this
    /// sequence number. Returns it, and the version of its blob.
    async fn read_ended(
        &self,
        name: &FlagName,
        began: u64,
    ) -> Result<(Option<EndedSet>, Option<Version>)> {
        let (ended, version) = self.blobs.ended(name).await?;
        let noted = self.registry().note_ended(name, ended.as_ref(), began);
        noted.wake_in_slices().await;
        Ok((ended, version))
    }

    #[cold]
    fn unavailable(&self, name: &FlagName, what: &str, error: Error) -> Error {
        if error.kind() == ErrorKind::Unsupported {
            let message = format!("flag `{name}` {what}: {}", error.message());
            return Error::new(ErrorKind::Unsupported, message).with_source(error);
        }
        let message = format!("flag `{name}` {what} ({} failed)", self.blobs.store);
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    }
}
