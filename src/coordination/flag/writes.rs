//! Durable writes of flags: set, clear, and the end of a flag that has expired.
//!
//! A write reaches the store first; the registry then returns the watchers to wake. A write with an
//! unknown outcome notifies no watcher: the next refresh finds it. A clearing first writes the set
//! that it ends to `flags-ended/NAME`, so that a relay which does not see the set still
//! tells the watchers that waited for it.
//!
//! An expired flag reads as not set at once, by the wall clock of the relay, which is an argument.
//! Its blob is removed afterwards, and only if it has not changed since it was read (R22: an expired
//! flag is removed only as it was read): another relay may have extended it.

use std::time::SystemTime;

use super::{
    Flags, Inner,
    document::{EndedSet, FlagDocument, blob_name, ended_name},
    registry::WatchRegistry,
};
use crate::{
    base::fault::planted,
    error::{Error, ErrorKind, Result},
    store::{ETag, PageOptions, write_over},
    types::{FlagName, FlagState, Limits, UnleashOptions},
};

/// Attempts at a write that conflicts with other writers of the same flag.
const ATTEMPTS: u32 = 16;

const NOT_READ: &str = "was not set, and no watcher was notified: it could not be read first";
const NOT_SET: &str = "was not set, and no watcher was notified";
const MAYBE_SET: &str = "may or may not be set, and no watcher was notified: check with `flag get`";
const NOT_CLEARED: &str = "was not cleared, and no watcher was notified";
const MAYBE_CLEARED: &str =
    "may or may not be cleared, and no watcher was notified: check with `flag get`";

impl Flags {
    /// Sets a flag durably, then notifies its watchers. Returns the state and the number of
    /// watchers. A flag that is set keeps its generation and each value that the options leave out.
    ///
    /// # Errors
    /// `Invalid`. `Exhausted` if too many flags are set; nothing was written. `Unavailable` if the
    /// store failed; no watcher was notified, but the write may have happened.
    ///
    /// # Cancel safety
    /// If it is dropped early, the flag may be set. The next [`Flags::refresh`] notifies the
    /// watchers.
    pub(crate) async fn unleash(
        &self,
        name: &FlagName,
        options: &UnleashOptions,
        wall: SystemTime,
    ) -> Result<(FlagState, u32)> {
        options.check()?;
        let written = self.inner.write_set(name, options, wall).await?;
        self.inner.written.notify_one();
        Ok(written)
    }

    /// Clears a flag durably, then notifies its watchers. Returns the state and the number of
    /// watchers. Clearing an unset flag is no error.
    ///
    /// # Errors
    /// `Unavailable` as for [`Flags::unleash`].
    pub(crate) async fn leash(
        &self,
        name: &FlagName,
        wall: SystemTime,
    ) -> Result<(FlagState, u32)> {
        let (cleared, was_set) = self.inner.end_set(name, wall, false).await?;
        if was_set {
            self.inner.written.notify_one();
        }
        Ok(cleared)
    }

    /// Searches the store for flags with an expiry, set before this relay started or by another
    /// relay.
    ///
    /// # Errors
    /// Any error of the store.
    pub(crate) async fn recover(&self, wall: SystemTime) -> Result<()> {
        let (size, mut token) = (Limits::PAGE_MAX, None);
        loop {
            let page = PageOptions { size, token };
            let (found, next) = self.inner.blobs.page("", &page).await?;
            self.inner.registry(|registry| {
                for flag in found {
                    registry.note_listed(&flag.state);
                    registry.set += usize::from(flag.active(wall).is_some());
                }
            });
            token = next;
            if token.is_none() {
                return Ok(());
            }
        }
    }

    /// Ends the expired flags: removes each blob with a delete conditional on its ETag (R22: only
    /// as it was read), then notifies the watchers. Returns whether a request was sent to the
    /// store.
    ///
    /// # Errors
    /// Any error of the store. Flags that did not end now stay due.
    pub(crate) async fn expire(&self, wall: SystemTime) -> Result<bool> {
        let due = self.inner.registry(|registry| registry.due(wall));
        let mut outcome = Ok(!due.is_empty());
        for name in due {
            // One flag's failure does not delay the others.
            if let Err(error) = self.inner.end_set(&name, wall, true).await {
                outcome = Err(error);
            }
        }
        outcome
    }
}

impl Inner {
    /// Reads a flag's blob and writes the document of a set flag. Repeats both if the blob was changed
    /// since the read: by another writer, or by this write, if the network repeated the request.
    async fn write_set(
        &self,
        name: &FlagName,
        options: &UnleashOptions,
        wall: SystemTime,
    ) -> Result<(FlagState, u32)> {
        let _guard = self.lock(name).await;
        // The state of the last attempt that was answered with a conflict.
        let mut tried: Option<FlagState> = None;
        for _ in 0..ATTEMPTS {
            let began = self.registry(WatchRegistry::next_sequence);
            let unread = match tried {
                None => NOT_READ,
                // The conflict may be with our own write, if the network repeated the request.
                Some(_) => MAYBE_SET,
            };
            let read_error = |error| self.unavailable(name, unread, error);
            let found = self.blobs.get(name).await.map_err(read_error)?;
            // After the flag: a new generation is greater than the number of each set that is over
            // where the flag is not set.
            let (ended, _) = self.blobs.ended(name).await.map_err(read_error)?;
            let before = found.as_ref().map(|found| found.state.clone());
            // The ended set was read after the flag: it settles watchers together with the set only.
            let finish = |state: FlagState| {
                self.registry(|registry| {
                    let (ended, before) = (ended.as_ref(), before.as_ref());
                    let watchers = registry.finish_write(began, state.clone(), ended, before);
                    (state, watchers)
                })
            };
            // No other writer uses this generation with this time.
            if let Some(own) = tried.take_if(|own| before.as_ref() == Some(own)) {
                return Ok(finish(own));
            }
            let is_new = found.is_none();
            if is_new {
                self.registry(|registry| registry.admit_set(name))?;
            }
            let etag = found.as_ref().map(|found| found.etag.clone());
            let current = found.and_then(|found| found.active(wall));
            let number = ended.as_ref().map_or(0, |ended| ended.number);
            let generation = match &current {
                Some(state) => state.generation,
                None => self.registry(|registry| registry.new_generation(wall, number)),
            };
            let document = FlagDocument::new(generation, options, current.as_ref(), wall);
            let state = document.state(name);
            if planted!(FlagTellsBeforeDurable) {
                finish(state.clone());
            }
            let store = &*self.blobs.store;
            match write_over(store, &blob_name(name), document.content(), etag.as_ref()).await {
                Ok(_) => {
                    self.registry(|registry| registry.set += usize::from(is_new));
                    return Ok(finish(state));
                }
                Err(error) if error.kind() == ErrorKind::Conflict => tried = Some(state),
                Err(error) if is_refusal(&error) => {
                    return Err(self.unavailable(name, NOT_SET, error));
                }
                Err(error) => return Err(self.unavailable(name, MAYBE_SET, error)),
            }
        }
        Err(contended(name, "was not set:"))
    }

    /// Ends a flag's set: writes it to `flags-ended/NAME`, then deletes the flag's blob. With
    /// `expired` only a set that has expired is ended, and only by a delete that is conditional on
    /// its ETag (R22: an expired flag is removed only as it was read). Where the store has no such
    /// delete, its blob stays, and reads as not set.
    ///
    /// Returns whether a set was ended: not if the flag was not set, or has not expired.
    pub(super) async fn end_set(
        &self,
        name: &FlagName,
        wall: SystemTime,
        expired: bool,
    ) -> Result<((FlagState, u32), bool)> {
        let not_cleared = |error| self.unavailable(name, NOT_CLEARED, error);
        let _guard = self.lock(name).await;
        for _ in 0..ATTEMPTS {
            let began = self.registry(WatchRegistry::next_sequence);
            // Read again, also where it has expired: another writer may have extended it.
            let read = self.read_both(name, began).await;
            let (ended, found) = read.map_err(not_cleared)?;
            let set = found.as_ref().map(|found| found.state.clone());
            let finish = |state: Option<FlagState>, ended: Option<&EndedSet>| {
                self.registry(|registry| {
                    let state = state.unwrap_or_else(|| registry.unset(name));
                    let watchers = registry.finish_write(began, state.clone(), ended, set.as_ref());
                    (state, watchers)
                })
            };
            let (Some(found), Some(set)) = (found, &set) else {
                return Ok((finish(None, ended.0.as_ref()), false));
            };
            let etag = found.etag.clone();
            let can_tell = self.blobs.store.conditional_delete();
            if expired {
                let active = found.active(wall);
                if active.is_some() || !can_tell {
                    return Ok((finish(active, ended.0.as_ref()), false));
                }
            }
            let ended = self.put_ended(set, ended, wall).await;
            // Another writer was faster: the set may be over, and a later one as well.
            let Some(ended) = ended.map_err(not_cleared)? else {
                continue;
            };
            let condition = Some(&etag).filter(|_| can_tell && !planted!(FlagExpiryUnconditional));
            match self.blobs.store.delete(&blob_name(name), condition).await {
                Ok(_) => {
                    self.registry(|registry| registry.set = registry.set.saturating_sub(1));
                    return Ok((finish(None, Some(&ended)), true));
                }
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                // The store turned out to have no conditional delete, which its capabilities show now.
                Err(error) if error.kind() == ErrorKind::Unsupported && condition.is_some() => {}
                Err(error) if is_refusal(&error) => return Err(not_cleared(error)),
                Err(error) => return Err(self.unavailable(name, MAYBE_CLEARED, error)),
            }
        }
        let what = match expired {
            true => "has expired, but",
            false => "was not cleared:",
        };
        Err(contended(name, what))
    }

    /// Writes a set that is about to end, unless an earlier attempt or another relay has written it.
    /// `before` was read before the set was: `None` if it has changed since.
    async fn put_ended(
        &self,
        set: &FlagState,
        (before, etag): (Option<EndedSet>, Option<ETag>),
        wall: SystemTime,
    ) -> Result<Option<EndedSet>> {
        // One that was extended since is another one: it needs a new number.
        if before.as_ref().is_some_and(|ended| ended.state == *set) {
            return Ok(before);
        }
        let new = EndedSet::new(set.clone(), before.as_ref(), wall);
        if planted!(FlagEndUnmarked) {
            return Ok(Some(new));
        }
        let (store, name) = (&*self.blobs.store, ended_name(&set.name));
        match write_over(store, &name, new.content(), etag.as_ref()).await {
            Ok(_) => Ok(Some(new)),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the error of a flag that other writers changed during each attempt.
#[cold]
fn contended(name: &FlagName, what: &str) -> Error {
    let message = format!("flag `{name}` {what} other writers keep changing it");
    Error::new(ErrorKind::Unavailable, message)
}

/// Returns whether the error proves that the store changed nothing.
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
