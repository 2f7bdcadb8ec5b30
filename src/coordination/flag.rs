//! Durable global flags: they park a fleet and release it.
//!
//! A flag is a blob whose existence means "set". `Flags` first writes the blob durably and then
//! notifies the watchers. A watcher first registers and then reads the store, so its first state is
//! never stale. `WatchRegistry` decides without I/O which states watchers receive and when. The
//! functions here run the store requests for it and wait for nothing else. The wall clock is an
//! argument. The registry's lock is the only lock. It is a leaf and is never held across an
//! `.await`.

mod background;
mod blobs;
pub(crate) mod document;
mod entry;
mod registry;
#[cfg(all(feature = "relay", feature = "nats"))]
mod remote_acks;
mod remote_writes;
mod store_flags;
mod watch;
mod writes;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex},
    task::Waker,
    time::SystemTime,
};

use tokio::sync::Notify;

#[cfg(feature = "sweep")]
pub(crate) use self::document::{ENDED_FOLDER, FOLDER};
#[cfg(all(feature = "relay", feature = "nats"))]
pub(crate) use self::remote_acks::AskAcks;
pub use self::store_flags::{StoreFlag, StoreFlags};
#[cfg(feature = "relay")]
pub(crate) use self::watch::WatchStream;
pub(crate) use self::{
    background::start,
    registry::{WatcherView, WatchersQuery},
    watch::WatchGuard,
};
use self::{
    blobs::FlagBlobs,
    document::{EndedSet, StoredFlag},
    registry::WatchRegistry,
};
use crate::{
    base::{clock::Clock, fault::planted, fnv::fnv1a, sync::lock},
    error::{Error, ErrorKind, Result},
    store::{BlobStore, ETag, PageOptions},
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
    /// Limit of acknowledgements of all flags together: 16 MB. Further ones are refused.
    pub(crate) max_acks: usize,
}

impl Default for FlagsConfig {
    fn default() -> Self {
        Self {
            max_flags: 10_000,
            max_watched_flags: 10_000,
            max_acks: 1_000_000,
        }
    }
}

/// A listener id, hashed: 8 bytes instead of up to 128. Two ids among 100,000 collide with a
/// probability of 3e-10, and the count is then too low by one. A client that chooses an id which
/// collides gains nothing: it may acknowledge under any id.
///
/// The hash is the same on all relays of a cluster, which count a listener once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AckKey(u64);

impl AckKey {
    fn of(listener: &ListenerId) -> Self {
        Self(fnv1a(listener.as_str().bytes()))
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
    /// Serialize the reads and local writes of each flag, so that watchers see them in the order in
    /// which they reached the store. Of a thousand watchers that register at once, the first two
    /// reads synchronize all. Some flags share a lock. It guards no data.
    locks: [tokio::sync::Mutex<()>; LOCKS],
    /// Flags may have changed in the store: the watched ones are read before the next interval.
    refresh_requested: Notify,
    /// A flag was written here, for the other relays of the cluster.
    written: Notify,
    /// Observers may have to receive new counts of acknowledgements.
    acks_changed: Notify,
}

/// Reads at once wait for different locks as a rule, and one that hangs delays a sixty-fourth of the
/// flags.
const LOCKS: usize = 64;

impl Flags {
    pub(crate) fn new(store: Arc<dyn BlobStore>, config: FlagsConfig) -> Self {
        let inner = Inner {
            blobs: FlagBlobs { store },
            registry: Mutex::new(WatchRegistry::new(config)),
            clock: Clock::new(),
            locks: [const { tokio::sync::Mutex::const_new(()) }; LOCKS],
            refresh_requested: Notify::new(),
            written: Notify::new(),
            acks_changed: Notify::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Reads a flag from the store.
    ///
    /// # Errors
    /// Any error of the store.
    pub(crate) async fn get(&self, name: &FlagName, wall: SystemTime) -> Result<FlagState> {
        let found = self.inner.blobs.read(name).await?;
        let state = found.and_then(|found| found.active(wall));
        Ok(state.unwrap_or_else(|| self.inner.registry(|registry| registry.unset(name))))
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
        let token = (!page_token.is_empty()).then(|| page_token.to_owned());
        let page = PageOptions { size, token };
        let (found, next) = self.inner.blobs.page(prefix, &page).await?;
        let active = |found: StoredFlag| found.active(wall);
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
        wall: SystemTime,
    ) -> Result<WatchGuard> {
        self.inner.registry(|registry| registry.admit_watch(name))?;
        Ok(self.watch(name, listener, acks, wall))
    }

    /// Registers a watcher, to which no limit applies. With `acks` the watcher
    /// receives acknowledgements and is not counted.
    pub(crate) fn watch(
        &self,
        name: &FlagName,
        listener: ListenerId,
        acks: bool,
        wall: SystemTime,
    ) -> WatchGuard {
        let now = self.inner.clock.now();
        let id = self.inner.registry(|registry| {
            let id = registry.register(name, acks, wall);
            if !acks {
                registry.entry(name).stream_opened(&listener, now);
            }
            id
        });
        WatchGuard {
            flags: self.clone(),
            name: name.clone(),
            listener,
            id,
            shown: !acks,
        }
    }

    /// Lists the listeners of watched flags, by flag and listener.
    pub(crate) fn list_watchers(&self, query: &WatchersQuery) -> Vec<WatcherView> {
        let now = self.inner.clock.now();
        self.inner
            .registry(|registry| registry.list_watchers(query, now))
    }

    /// Counts the streams that watch a flag.
    pub(crate) fn watchers(&self) -> u64 {
        self.inner.registry(|registry| registry.watchers())
    }

    /// Counts that a listener has seen a generation. Returns `false` if this relay does not know that
    /// generation as the newest one; then it is not counted.
    ///
    /// # Errors
    /// `Exhausted` if too many are remembered; then it is not counted.
    pub(crate) fn ack(
        &self,
        name: &FlagName,
        generation: u64,
        listener: &ListenerId,
    ) -> Result<bool> {
        let key = AckKey::of(listener);
        self.inner
            .registry(|registry| registry.ack(name, generation, key))
    }

    /// Reads the flag, and then counts that a listener has seen a generation: the listener may have
    /// moved here, with its relay's end.
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
        // It keeps the flag known until the acknowledgement is counted.
        let watch = self.watch_within_limit(name, listener.clone(), true, wall)?;
        watch.sync(wall).await?;
        self.ack(name, generation, listener).map(drop)
    }

    /// Waits until observers may have to receive new counts of acknowledgements.
    pub(crate) async fn acks_changed(&self) {
        self.inner.acks_changed.notified().await;
    }

    /// Sends the newest counts of acknowledgements to the observers.
    pub(crate) fn publish_acks(&self) {
        self.inner.registry(WatchRegistry::publish_acks);
    }
}

impl Inner {
    /// Uses the registry under its lock, and wakes watchers after it.
    fn registry<T>(&self, using: impl FnOnce(&mut WatchRegistry) -> T) -> T {
        let mut registry = lock(&self.registry);
        let output = using(&mut registry);
        let wakers = std::mem::take(&mut registry.wakers);
        let acks_changed = registry.acks_changed;
        drop(registry);
        wakers.into_iter().for_each(Waker::wake);
        if acks_changed {
            self.acks_changed.notify_one();
        }
        output
    }

    /// Waits for the flag's lock, which is held while a request to the store runs.
    async fn lock(&self, name: &FlagName) -> tokio::sync::MutexGuard<'_, ()> {
        let [hash, ..] = fnv1a(name.as_str().bytes()).to_le_bytes();
        self.locks[usize::from(hash) % LOCKS].lock().await
    }

    /// Waits for the flag's lock before a read.
    async fn lock_to_read(&self, name: &FlagName) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if planted!(FlagReadDuringWrite) {
            return None;
        }
        Some(self.lock(name).await)
    }

    /// Reads a flag for its watchers. The caller holds the flag's lock.
    async fn read(&self, name: &FlagName, wall: SystemTime) -> Result<()> {
        let began = self.registry(WatchRegistry::next_sequence);
        let (ended, found) = self.read_both(name, began).await?;
        // Asked after the read: a store may find out by its first requests.
        let can_remove = self.blobs.store.conditional_delete();
        self.registry(|registry| {
            registry.finish_read(name, began, found, ended, wall, can_remove);
        });
        Ok(())
    }

    /// Reads both blobs of a flag, for a read or write that began at this sequence number. The newest
    /// set that is over comes first: it is the base of the watchers that wait for their first read. In
    /// the other order a set and its clearing between the two would seem to be over before the read.
    ///
    /// A flag without a blob may have been cleared between the two, by a relay that dies before it
    /// tells. So both are read until no set has ended between them.
    async fn read_both(
        &self,
        name: &FlagName,
        began: u64,
    ) -> Result<((Option<EndedSet>, Option<ETag>), Option<StoredFlag>)> {
        let mut ended = self.blobs.ended(name).await?;
        self.registry(|registry| registry.note_base(name, ended.0.as_ref(), began));
        loop {
            let found = self.blobs.read(name).await?;
            if found.is_some() {
                return Ok((ended, found));
            }
            let again = self.blobs.ended(name).await?;
            let number = |ended: &Option<EndedSet>| ended.as_ref().map(|ended| ended.number);
            // One that was deleted meanwhile, because it is old, still counts.
            if number(&again.0) <= number(&ended.0) {
                return Ok((ended, None));
            }
            ended = again;
        }
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
