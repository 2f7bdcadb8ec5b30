//! The durable global flag: parks a fleet, and releases it.
//!
//! A flag is a blob whose existence means set. `Flags` writes it durably first and tells the
//! watchers then; a watcher is registered first, and told the present state when the store was
//! read after that. What may be told when is decided by the board, without I/O; the functions here
//! carry it between the board and the store, and wait for nothing but the store. The wall clock is
//! an argument. Locks: the board's only, a leaf, held across no wait.

mod board;
mod body;
mod expiry;
mod feed;
mod local;
mod runner;
mod store_flag;
mod store_flags;
mod topic;
mod turns;
mod watch;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::SystemTime,
};

use self::{
    board::{Board, Written, judge},
    body::{Body, FOLDER, blob_name},
    store_flags::check_prefix,
    turns::Turns,
};
pub(crate) use self::{
    feed::{Feed, FeedConfig, Next},
    local::LocalWatch,
    runner::{FlagTimers, start},
    watch::Watch,
};
pub use self::{store_flag::StoreFlag, store_flags::StoreFlags};
use crate::{
    error::{Error, ErrorKind, Result},
    fault::{Fault, planted},
    store::{BlobStore, ETag, PageOptions},
    sync::lock,
    words::{FlagName, FlagState, Limits, ListenerId, UnleashOptions},
};

/// Reads the wall clock; tests and simulations have their own.
pub(crate) type Wall = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// How flags behave.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct FlagsConfig {
    pub(crate) fault: Fault,
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
    /// Local writes of one flag come one after the other, so that they are told in the order in
    /// which they reached the store.
    writes: Turns,
    /// So do reads: of a thousand watchers that come at once, the first two reads settle all.
    reads: Turns,
    fault: Fault,
}

/// A local write that has begun; where it is given up half-way, the board hears that too.
struct Write<'a> {
    inner: &'a Inner,
    name: &'a FlagName,
    began: u64,
    ended: bool,
}

/// Attempts at a write that another writer of the same flag keeps getting in the way of.
const ATTEMPTS: u32 = 16;

impl Flags {
    pub(crate) fn new(store: Arc<dyn BlobStore>, config: FlagsConfig) -> Self {
        let removes = store.capabilities().conditional_delete;
        let inner = Inner {
            store,
            board: Mutex::new(Board::new(removes, config.fault)),
            writes: Turns::default(),
            reads: Turns::default(),
            fault: config.fault,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Sets a flag durably, then tells its watchers; returns how many. A flag that is set keeps
    /// its generation; its end, who and why are refreshed.
    ///
    /// # Errors
    /// `Invalid`; `Unavailable` where the store failed: nobody was told, and it may have happened
    /// all the same.
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
        options.check()?;
        let _turn = self.inner.writes.take(name).await;
        // What was tried in vain, as it seemed.
        let mut tried: Option<Written> = None;
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
            let (current, etag) = found.unzip();
            // A network that repeats a request brings back the second answer: it was our own write
            // that was in the way. Nobody else writes this generation with this time.
            if let Some(own) = tried.take_if(|own| current.as_ref() == own.state()) {
                return Ok(write.end(own));
            }
            let (body, written) = self.inner.setting(name, current, options, wall);
            if planted!(self.inner.fault, FlagTellsBeforeDurable) {
                Write::begin(&self.inner, name).end(written.clone());
            }
            match self.inner.put(name, &body, etag.as_ref()).await {
                Ok(_) => return Ok(write.end(written)),
                Err(error) if error.kind() == ErrorKind::Conflict => tried = Some(written),
                Err(error) => {
                    let doing = match is_refusal(&error) {
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
        let _turn = self.inner.writes.take(name).await;
        let write = Write::begin(&self.inner, name);
        match self.inner.store.delete(&blob_name(name), None).await {
            Ok(_) => Ok(write.end(Written::Unset).0),
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
        let mut flags = Vec::with_capacity(page.entries.len());
        for entry in page.entries {
            let name = entry.name.as_str().strip_prefix(FOLDER).map(FlagName::new);
            // What somebody else keeps beside the flags is none.
            let Some(Ok(name)) = name else { continue };
            let found = self.inner.read(&name).await?;
            flags.extend(judge(found.map(|(state, _)| state), wall));
        }
        Ok((flags, page.next))
    }

    /// Registers a watcher; with `acks` one that is told of acknowledgements, and not counted.
    pub(crate) fn watch(&self, name: &FlagName, listener: ListenerId, acks: bool) -> Watch {
        let (id, wakers) = self.inner.board().register(name, acks);
        wakers.wake();
        Watch::new(self.clone(), name.clone(), listener, id)
    }

    /// Counts the streams that watch a flag.
    pub(crate) fn watchers(&self) -> u64 {
        self.inner.board().watchers()
    }

    /// Counts that a listener has seen a generation. Late ones are no error, and not counted.
    ///
    /// # Errors
    /// `Exhausted` where too many are remembered.
    pub(crate) fn ack(
        &self,
        name: &FlagName,
        generation: u64,
        listener: &ListenerId,
    ) -> Result<()> {
        let wakers = self.inner.board().ack(name, generation, listener.clone())?;
        wakers.wake();
        Ok(())
    }

    /// Reads each watched flag once, and tells what another writer of the store has changed.
    ///
    /// # Errors
    /// Whatever kept the store from answering; the rest was not read then.
    pub(crate) async fn refresh(&self, wall: SystemTime) -> Result<()> {
        let watched = self.inner.board().watched();
        let mut outcome = Ok(());
        // One that cannot be read keeps nobody from the others.
        for name in watched {
            let _turn = self.inner.reads.take(&name).await;
            outcome = self.inner.observe(&name, wall).await.and(outcome);
        }
        outcome
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

    /// Reads a flag's blob for whoever asked for nothing but that.
    async fn read(&self, name: &FlagName) -> Result<Option<(FlagState, ETag)>> {
        self.find(name).await.map_err(|error| {
            let message = format!("flag `{name}` could not be read from {}", self.store);
            Error::new(error.kind(), message).with_source(error)
        })
    }

    /// Reads a flag's blob and lets the board judge whether that counts.
    async fn observe(&self, name: &FlagName, wall: SystemTime) -> Result<()> {
        let reading = self.board().read_begins(name);
        let found = self.read(name).await?;
        let found = found.map(|(state, _)| state);
        let wakers = self.board().read_ends(name, reading, found, wall);
        wakers.wake();
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
                let body = Body::new(state.generation, options, wall);
                let written = Written::Kept(body.state(name));
                (body, written)
            }
            None => {
                let generation = self.board().new_generation(wall);
                let body = Body::new(generation, options, wall);
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
    fn end(mut self, written: Written) -> (FlagState, u32) {
        self.ended = true;
        let ended = self
            .inner
            .board()
            .write_ends(self.name, self.began, written);
        let (state, watching, wakers) = ended;
        wakers.wake();
        (state, watching)
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
