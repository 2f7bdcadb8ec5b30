//! The durable global flag: parks a fleet, and releases it.
//!
//! A flag is a blob whose existence means set. `Flags` writes it durably first and tells the
//! watchers then; a watcher is registered first, and told the present state when the store was
//! read after that. What may be told when is decided by the board, without I/O; the functions here
//! carry it between the board and the store, and wait for nothing but the store. The wall clock is
//! an argument. Locks: the board's only, a leaf, held across no wait.

mod acks;
mod board;
mod body;
mod event;
mod expiry;
mod feed;
mod local;
mod presence;
mod refresh;
mod runner;
mod set_flags;
mod store_flag;
mod store_flags;
mod topic;
mod turns;
mod wakers;
mod watch;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    task::{Poll, Waker},
    time::SystemTime,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

pub(crate) use self::body::FOLDER;
use self::{
    board::{Board, Written, judge},
    body::{Body, Version, blob_name, flag_names},
    store_flags::check_prefix,
    turns::Turns,
};
pub(crate) use self::{
    event::Event,
    feed::{Feed, FeedConfig, Next},
    local::LocalWatch,
    presence::{WatcherView, WatchersQuery},
    runner::{FlagTimers, start},
    wakers::Told,
    watch::Watch,
};
pub use self::{store_flag::StoreFlag, store_flags::StoreFlags};
use crate::{
    clock::Clock,
    error::{Error, ErrorKind, Result},
    fault::{Fault, planted},
    store::{Blob, BlobStore, ETag, PageOptions},
    sync::lock,
    words::{FlagName, FlagState, Limits, ListenerId, UnleashOptions},
};

/// Reads the wall clock; tests and simulations have their own.
pub(crate) type Wall = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// How flags behave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlagsConfig {
    /// Flags that may be set at one time. About 3 KiB each at most, where they end by themselves.
    pub(crate) max_flags: usize,
    /// Distinct flags that clients may watch at one time: about 3 KiB each at most.
    pub(crate) max_watched_flags: usize,
    /// Acknowledgements of one flag and generation; further ones are refused. As many as a relay
    /// has connections by default; at about 16 bytes each, 1.6 MB.
    pub(crate) max_acks_per_flag: usize,
    /// Acknowledgements of all flags together: 16 MB. A flag may use at most as much of the room as
    /// it leaves free.
    pub(crate) max_acks: usize,
    /// Up to so many watched flags are refreshed by a read each, more by a list of the store.
    pub(crate) refresh_reads: usize,
    pub(crate) fault: Fault,
}

impl Default for FlagsConfig {
    fn default() -> Self {
        Self {
            max_flags: 10_000,
            max_watched_flags: 10_000,
            max_acks_per_flag: 100_000,
            max_acks: 1_000_000,
            refresh_reads: 8,
            fault: Default::default(),
        }
    }
}

/// The flags of a store, and those who watch them; clones are the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Flags {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<dyn BlobStore>,
    board: Mutex<Board>,
    /// For the times that operators are shown; nothing is decided by it.
    clock: Clock,
    /// Local writes of one flag come one after the other, so that they are told in the order in
    /// which they reached the store.
    writes: Turns,
    /// So do reads: of a thousand watchers that come at once, the first two reads settle all.
    reads: Turns,
    refresh_reads: usize,
    fault: Fault,
}

/// A local write that has begun; where it is given up half-way, the board hears that too.
struct Write<'a> {
    inner: &'a Inner,
    name: &'a FlagName,
    began: u64,
    ended: bool,
}

/// Reads of flags that a list or a refresh has under way at one time. A page of 1,000 flags takes 32
/// round trips; a store on a cloud takes thousands of requests a second.
const READS_AT_ONCE: usize = 32;

/// Attempts at a write that another writer of the same flag keeps getting in the way of.
const ATTEMPTS: u32 = 16;

impl Flags {
    pub(crate) fn new(store: Arc<dyn BlobStore>, config: FlagsConfig) -> Self {
        let removes = store.capabilities().conditional_delete;
        let inner = Inner {
            store,
            board: Mutex::new(Board::new(removes, &config)),
            clock: Clock::new(),
            writes: Turns::default(),
            reads: Turns::default(),
            refresh_reads: config.refresh_reads,
            fault: config.fault,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Sets a flag durably, then tells its watchers; returns how many. A flag that is set keeps
    /// its generation, and what the options leave out.
    ///
    /// # Errors
    /// `Invalid`; `Exhausted` where too many flags are set, and nothing was done; `Unavailable` where
    /// the store failed: nobody was told, and it may have happened all the same.
    ///
    /// # Cancel safety
    /// Where it is dropped half-way the flag may be set; the watchers hear of it by the next
    /// [`Flags::refresh`].
    pub(crate) async fn unleash(
        &self,
        name: &FlagName,
        options: &UnleashOptions,
        wall: SystemTime,
    ) -> Result<(FlagState, u32)> {
        Ok(self.set(name, options, wall).await?.tell().await)
    }

    /// Does what [`Flags::unleash`] does, but for the waking of the watchers.
    pub(crate) async fn set(
        &self,
        name: &FlagName,
        options: &UnleashOptions,
        wall: SystemTime,
    ) -> Result<Told<(FlagState, u32)>> {
        options.check()?;
        let _turn = self.inner.writes.take(name).await;
        // What was tried in vain, as it seemed.
        let mut tried: Option<Written> = None;
        let mut new = false;
        for _ in 0..ATTEMPTS {
            let write = Write::begin(&self.inner, name);
            let found = self.inner.find(name).await.map_err(|error| {
                let doing = match tried {
                    // The conflict may have been with our own write, repeated on its way.
                    Some(_) => "may or may not be set, and nobody was told: `flag get` tells",
                    None => "was not set, and nobody was told: it could not be read first",
                };
                self.inner.unavailable(name, doing, error)
            })?;
            if found.is_none() {
                new |= self.inner.board().admit_set(name)?;
            }
            let (current, etag) = found.unzip();
            // A network that repeats a request brings back the second answer: it was our own write
            // that was in the way. Nobody else writes this generation with this time.
            if let Some(own) = tried.take_if(|own| current.as_ref() == own.state()) {
                return Ok(write.end(own));
            }
            let (body, written) = self.inner.setting(name, current, options, wall);
            if planted!(self.inner.fault, FlagTellsBeforeDurable) {
                Write::begin(&self.inner, name)
                    .end(written.clone())
                    .tell()
                    .await;
            }
            match self.inner.put(name, &body, etag.as_ref()).await {
                Ok(_) => return Ok(write.end(written)),
                Err(error) if error.kind() == ErrorKind::Conflict => tried = Some(written),
                Err(error) => {
                    let doing = match is_refusal(&error) {
                        true if new => {
                            self.inner.board().set.remove(name);
                            "was not set, and nobody was told"
                        }
                        true => "was not set, and nobody was told",
                        false => "may or may not be set, and nobody was told: `flag get` tells",
                    };
                    return Err(self.inner.unavailable(name, doing, error));
                }
            }
        }
        let message = format!("flag `{name}` was not set: others keep changing it");
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// Clears a flag durably, then tells its watchers. One that is not set is no error.
    ///
    /// # Errors
    /// `Unavailable` as for [`Flags::unleash`].
    pub(crate) async fn leash(&self, name: &FlagName) -> Result<FlagState> {
        let (state, _) = self.clear(name).await?.tell().await;
        Ok(state)
    }

    /// Does what [`Flags::leash`] does, but for the waking of the watchers; returns how many are
    /// told.
    pub(crate) async fn clear(&self, name: &FlagName) -> Result<Told<(FlagState, u32)>> {
        let _turn = self.inner.writes.take(name).await;
        let write = Write::begin(&self.inner, name);
        match self.inner.store.delete(&blob_name(name), None).await {
            Ok(_) => {
                self.inner.board().set.remove(name);
                Ok(write.end(Written::Unset))
            }
            Err(error) => {
                let doing = match is_refusal(&error) {
                    true => "was not cleared, and nobody was told",
                    false => "may or may not be cleared, and nobody was told: `flag get` tells",
                };
                Err(self.inner.unavailable(name, doing, error))
            }
        }
    }

    /// Reads a flag from the store.
    ///
    /// # Errors
    /// Whatever kept the store from answering.
    pub(crate) async fn get(&self, name: &FlagName, wall: SystemTime) -> Result<FlagState> {
        let found = self.inner.read(name).await?;
        let state = judge(found.map(|(state, _)| state), wall);
        Ok(state.unwrap_or_else(|| self.inner.board().unset(name)))
    }

    /// Lists the flags that are set, by name, and returns the next page's token; a page may hold
    /// fewer than it could. A page size of 0 is the default.
    ///
    /// # Errors
    /// `Invalid` for a prefix, size or token that is none; whatever kept the store from answering.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        page_size: u32,
        page_token: &str,
        wall: SystemTime,
    ) -> Result<(Vec<FlagState>, Option<String>)> {
        check_prefix(prefix)?;
        let size = match usize::try_from(page_size).unwrap_or(usize::MAX) {
            0 => Limits::PAGE,
            size if size <= Limits::PAGE_MAX => size,
            _ => return Err(Error::invalid("page_size", "must be at most 1000")),
        };
        let token = Some(page_token).filter(|token| !token.is_empty());
        let page = PageOptions {
            size,
            token: token.map(str::to_owned),
        };
        let page = self
            .inner
            .store
            .list(&format!("{FOLDER}{prefix}"), &page)
            .await?;
        // What else is kept beside the flags is none.
        let names = flag_names(page.entries).into_iter();
        let reads = names.map(|name| async move { self.inner.read(&name).await });
        let found: Vec<_> = stream::iter(reads)
            .buffered(READS_AT_ONCE)
            .try_collect()
            .await?;
        let set = found.into_iter().flatten();
        let flags = set.filter_map(|(state, _)| judge(Some(state), wall));
        Ok((flags.collect(), page.next))
    }

    /// Registers a client's watcher, as [`Flags::watch`] does, if the flag is watched already or
    /// further ones may be.
    ///
    /// # Errors
    /// `Exhausted`, naming the limit.
    pub(crate) fn watch_within_limit(
        &self,
        name: &FlagName,
        listener: ListenerId,
        acks: bool,
    ) -> Result<Watch> {
        let mut board = self.inner.board();
        board.admit_watch(name)?;
        let registered = board.register(name, &listener, acks, self.inner.clock.now());
        drop(board);
        Ok(Watch::new(
            self.clone(),
            name.clone(),
            listener,
            acks,
            registered,
        ))
    }

    /// Registers a watcher; with `acks` one that is told of acknowledgements, and not counted. It is
    /// for this process's own code, to which no limit applies.
    pub(crate) fn watch(&self, name: &FlagName, listener: ListenerId, acks: bool) -> Watch {
        let now = self.inner.clock.now();
        let registered = self.inner.board().register(name, &listener, acks, now);
        Watch::new(self.clone(), name.clone(), listener, acks, registered)
    }

    /// Lists the listeners that watch flags, or did, by flag and listener.
    pub(crate) fn list_watchers(&self, query: &WatchersQuery) -> Vec<WatcherView> {
        self.inner
            .board()
            .list_watchers(query, self.inner.clock.now())
    }

    /// Counts the streams that watch a flag.
    pub(crate) fn watchers(&self) -> u64 {
        self.inner.board().watchers()
    }

    /// Counts that a listener has seen a generation. Late ones are no error, and not counted.
    ///
    /// # Errors
    /// `Exhausted` where too many are remembered; it is not counted then.
    pub(crate) fn ack(
        &self,
        name: &FlagName,
        generation: u64,
        listener: &ListenerId,
    ) -> Result<()> {
        let wakers = self.inner.board().ack(name, generation, listener)?;
        wakers.wake();
        Ok(())
    }

    /// Waits until observers are to be told of acknowledgements.
    pub(crate) fn poll_acks_changed(&self, waker: &Waker) -> Poll<()> {
        self.inner.board().poll_acks_changed(waker)
    }

    /// Tells observers of acknowledgements of the flags that are due: of all since the last time, the
    /// newest counts. Returns the flags, and how many observers of each are told.
    pub(crate) async fn publish_acks(
        &self,
        due: impl Fn(&FlagName) -> bool,
    ) -> Vec<(FlagName, usize)> {
        let (told, wakers) = self.inner.board().publish_acks(due);
        wakers.wake_in_slices().await;
        told
    }
}

impl Inner {
    fn board(&self) -> MutexGuard<'_, Board> {
        lock(&self.board)
    }

    /// Reads a flag's blob, be it over or not.
    async fn find(&self, name: &FlagName) -> Result<Option<(FlagState, ETag)>> {
        let blob = self.store.get(&blob_name(name)).await?;
        Ok(blob.map(|blob| (body::state(name, &blob), blob.etag)))
    }

    /// Reads a flag's blob for a caller that asked for nothing but that.
    async fn read(&self, name: &FlagName) -> Result<Option<(FlagState, ETag)>> {
        let blob = self.read_blob(name).await?;
        Ok(blob.map(|blob| (body::state(name, &blob), blob.etag)))
    }

    async fn read_blob(&self, name: &FlagName) -> Result<Option<Blob>> {
        self.store.get(&blob_name(name)).await.map_err(|error| {
            let message = format!("flag `{name}` could not be read from {}", self.store);
            Error::new(error.kind(), message).with_source(error)
        })
    }

    /// Reads a flag's blob and lets the board judge whether that counts.
    async fn observe(&self, name: &FlagName, wall: SystemTime) -> Result<()> {
        let reading = self.board().read_begins();
        let blob = self.read_blob(name).await?;
        let found = blob.map(|blob| {
            let state = body::state(name, &blob);
            (state, Version::new(blob.etag, blob.last_modified))
        });
        let wakers = self.board().read_ends(name, reading, found, wall);
        wakers.wake_in_slices().await;
        Ok(())
    }

    /// Returns what is to be written where this is there now, and what that is told as.
    fn setting(
        &self,
        name: &FlagName,
        current: Option<FlagState>,
        options: &UnleashOptions,
        wall: SystemTime,
    ) -> (Body, Written) {
        match judge(current, wall) {
            Some(state) => {
                let body = Body::new(state.generation, options, Some(&state), wall);
                let written = Written::Kept(body.state(name));
                (body, written)
            }
            None => {
                let generation = self.board().new_generation(wall);
                let body = Body::new(generation, options, None, wall);
                let written = Written::Unleashed(body.state(name));
                (body, written)
            }
        }
    }

    async fn put(&self, name: &FlagName, body: &Body, etag: Option<&ETag>) -> Result<ETag> {
        let name = blob_name(name);
        match etag {
            Some(etag) => self.store.update(&name, body.content(), etag).await,
            None => self.store.create(&name, body.content()).await,
        }
    }

    #[cold]
    fn unavailable(&self, name: &FlagName, what: &str, error: Error) -> Error {
        if error.kind() == ErrorKind::Unsupported {
            let message = format!("flag `{name}` {what}: {}", error.message());
            return Error::new(ErrorKind::Unsupported, message).with_source(error);
        }
        let message = format!("flag `{name}` {what} ({} failed)", self.store);
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    }
}

impl<'a> Write<'a> {
    fn begin(inner: &'a Inner, name: &'a FlagName) -> Self {
        let began = inner.board().write_begins();
        Self {
            inner,
            name,
            began,
            ended: false,
        }
    }

    /// Tells the watchers what the write has left in the store.
    fn end(mut self, written: Written) -> Told<(FlagState, u32)> {
        self.ended = true;
        let ended = self
            .inner
            .board()
            .write_ends(self.name, self.began, written);
        let (state, watching, wakers) = ended;
        let outcome = (state, watching);
        Told { outcome, wakers }
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.inner.board().write_is_lost(self.name);
        }
    }
}

/// Returns whether the store has said that it did nothing.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Denied
            | ErrorKind::Exhausted
            | ErrorKind::Invalid
            | ErrorKind::NotFound
            | ErrorKind::Unsupported
    )
}
