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

use std::{
    pin::pin,
    task::{Poll, Waker},
    time::SystemTime,
};

use futures_util::TryStreamExt as _;

use super::{
    Flags, Inner,
    document::{EndRule, EndedSet, FlagDocument, Version},
    registry::Written,
    wakers::PendingWakes,
};
use crate::{
    base::fault::planted,
    error::{Error, ErrorKind, Result},
    types::{FlagName, FlagState, UnleashOptions},
};

/// A write that was done: the state, and the number of watchers, which are still to wake.
type Done = PendingWakes<(FlagState, u32)>;

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
        Ok(self.set(name, options, wall).await?.wake_watchers().await)
    }

    /// Like [`Flags::unleash`], but leaves the waking of the watchers to the caller.
    pub(crate) async fn set(
        &self,
        name: &FlagName,
        options: &UnleashOptions,
        wall: SystemTime,
    ) -> Result<Done> {
        options.check()?;
        let written = self.inner.write_set(name, options, wall).await?;
        self.inner.written.notify_one();
        Ok(written)
    }

    /// Clears a flag durably, then notifies its watchers. Clearing an unset flag is no error.
    ///
    /// # Errors
    /// `Unavailable` as for [`Flags::unleash`].
    pub(crate) async fn leash(&self, name: &FlagName, wall: SystemTime) -> Result<FlagState> {
        let (state, _) = self.clear(name, wall).await?.wake_watchers().await;
        Ok(state)
    }

    /// Like [`Flags::leash`], but leaves the waking of the watchers to the caller. Also returns the
    /// number of watchers.
    pub(crate) async fn clear(&self, name: &FlagName, wall: SystemTime) -> Result<Done> {
        let (cleared, was_set) = self.inner.end_set(name, wall, false).await?;
        if was_set {
            self.inner.written.notify_one();
        }
        Ok(cleared)
    }

    /// Waits until a flag was written since the last call: the other relays of the cluster must
    /// refresh.
    pub(crate) async fn written(&self) {
        self.inner.written.notified().await;
    }

    /// Searches the store for flags with an expiry, set before this relay started or by another
    /// relay.
    ///
    /// # Errors
    /// Any error of the store.
    pub(crate) async fn recover(&self, wall: SystemTime) -> Result<()> {
        let blobs = &self.inner.blobs;
        let mut pages = pin!(blobs.pages(""));
        while let Some(listed) = pages.try_next().await? {
            let mut found = pin!(blobs.read_listed(listed));
            while let Some(found) = found.try_next().await? {
                let wakers = self.inner.registry().add_found(found, wall);
                wakers.wake();
            }
        }
        Ok(())
    }

    /// Returns the time of the next expiry.
    pub(crate) fn next_expiry(&self) -> Option<SystemTime> {
        self.inner.registry().next_expiry()
    }

    /// Ready when the time of the next expiry differs from `known`.
    pub(crate) fn poll_expiry_moved(&self, known: Option<SystemTime>, waker: &Waker) -> Poll<()> {
        let mut registry = self.inner.registry();
        if registry.next_expiry() != known {
            return Poll::Ready(());
        }
        registry.set_expiry_task(waker);
        Poll::Pending
    }

    /// Ends the expired flags: removes each blob with a delete conditional on its ETag (R22: only
    /// as it was read), then notifies the watchers. Returns whether a request was sent to the
    /// store.
    ///
    /// # Errors
    /// Any error of the store. Flags that did not end now stay due.
    pub(crate) async fn expire(&self, wall: SystemTime) -> Result<bool> {
        let due = self.inner.registry().due(wall);
        let mut outcome = Ok(!due.is_empty());
        for name in due {
            // One flag's failure does not delay the others.
            match self.inner.end_set(&name, wall, true).await {
                Ok((ended, _)) => drop(ended.wake_watchers().await),
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }
}

impl Inner {
    /// Reads a flag's blob and writes the document of a set flag. Repeats both if another writer has
    /// changed the blob since the read.
    async fn write_set(
        &self,
        name: &FlagName,
        options: &UnleashOptions,
        wall: SystemTime,
    ) -> Result<Done> {
        let _guard = self.lock(name).await;
        // The outcome of the last attempt that was answered with a conflict.
        let mut tried: Option<FlagState> = None;
        let mut new = false;
        for _ in 0..ATTEMPTS {
            let began = self.registry().next_sequence();
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
            if found.is_none() {
                let mut registry = self.registry();
                let now = registry.next_sequence();
                new |= registry.set.reserve(name, now)?;
            }
            // A network that repeats a request returns the second answer: a conflict with our own
            // write. No other writer uses this generation with this time.
            let state = found.as_ref().map(|found| &found.state);
            if let Some(own) = tried.take_if(|own| state == Some(own)) {
                return Ok(self.finish_set(name, began, ended.as_ref(), own));
            }
            let etag = found.as_ref().map(|found| found.etag.clone());
            let current = found.and_then(|found| found.active(EndRule::SetAt, wall));
            let number = ended.as_ref().map_or(0, |ended| ended.number);
            let new_generation = || self.registry().new_generation(wall, number);
            let kept = current.as_ref().map(|state| state.generation);
            let generation = kept.unwrap_or_else(new_generation);
            let document = FlagDocument::new(generation, options, current.as_ref(), wall);
            let state = document.state(name);
            if planted!(FlagTellsBeforeDurable) {
                self.finish_set(name, began, ended.as_ref(), state.clone())
                    .wake_watchers()
                    .await;
            }
            match self.blobs.put(name, &document, etag.as_ref()).await {
                Ok(()) => return Ok(self.finish_set(name, began, ended.as_ref(), state)),
                Err(error) if error.kind() == ErrorKind::Conflict => tried = Some(state),
                Err(error) if is_refusal(&error) => {
                    if new {
                        self.registry().set.remove(name);
                    }
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
    ) -> Result<(Done, bool)> {
        let not_cleared = |error| self.unavailable(name, NOT_CLEARED, error);
        let _guard = self.lock(name).await;
        for _ in 0..ATTEMPTS {
            let began = self.registry().next_sequence();
            // Read again, also where it has expired: another writer may have extended it.
            let ended = self.read_ended(name, began).await.map_err(not_cleared)?;
            let found = self.blobs.get(name).await.map_err(not_cleared)?;
            let unset = Written {
                state: self.registry().unset(name),
                ended: None,
            };
            let Some(found) = found else {
                self.registry().set.remove(name);
                return Ok((self.finish(name, began, unset), false));
            };
            let etag = found.etag.clone();
            let set = found.state.clone();
            if expired && let Some(state) = found.active(EndRule::SetAt, wall) {
                let kept = Written { state, ..unset };
                return Ok((self.finish(name, began, kept), false));
            }
            let can_tell = self.blobs.store.capabilities().conditional_delete;
            if expired && !can_tell {
                return Ok((self.finish(name, began, unset), false));
            }
            let ended = self.put_ended(&set, ended, wall).await;
            // Another writer was faster: the set may be over, and a later one as well.
            let Some(ended) = ended.map_err(not_cleared)? else {
                continue;
            };
            let condition = Some(&etag).filter(|_| can_tell && !planted!(FlagExpiryUnconditional));
            match self.blobs.delete(name, condition).await {
                Ok(()) => self.registry().set.remove(name),
                Err(error) if error.kind() == ErrorKind::Conflict => continue,
                // The store turned out to have no conditional delete, which its capabilities show now.
                Err(error) if error.kind() == ErrorKind::Unsupported && condition.is_some() => {
                    continue;
                }
                Err(error) if is_refusal(&error) => return Err(not_cleared(error)),
                Err(error) => return Err(self.unavailable(name, MAYBE_CLEARED, error)),
            }
            let cleared = Written {
                ended: Some(ended),
                ..unset
            };
            return Ok((self.finish(name, began, cleared), true));
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
        (before, version): (Option<EndedSet>, Option<Version>),
        wall: SystemTime,
    ) -> Result<Option<EndedSet>> {
        // One that was extended since is another one: it needs a new number.
        let is_own = |ended: &&EndedSet| ended.state == *set;
        if let Some(own) = before.as_ref().filter(is_own) {
            return Ok(Some(own.clone()));
        }
        let new = EndedSet::new(set.clone(), before.as_ref(), wall);
        if planted!(FlagEndUnmarked) {
            return Ok(Some(new));
        }
        let etag = version.as_ref().map(Version::etag);
        match self.blobs.put_ended(&new, etag).await {
            Ok(()) => Ok(Some(new)),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reports that a flag is set, and the newest set that is over before it. The latter was read
    /// after the flag: it settles watchers together with the set only.
    fn finish_set(
        &self,
        name: &FlagName,
        began: u64,
        ended: Option<&EndedSet>,
        state: FlagState,
    ) -> Done {
        let mut noted = self.registry().note_ended(name, ended, began);
        let mut pending = self.finish(name, began, Written { state, ended: None });
        noted.append(std::mem::take(&mut pending.wakers));
        pending.wakers = noted;
        pending
    }

    /// Reports the outcome of a write to the registry, which returns the watchers to wake.
    fn finish(&self, name: &FlagName, began: u64, written: Written) -> Done {
        let state = written.state.clone();
        let (watching, wakers) = self.registry().finish_write(name, began, written);
        PendingWakes {
            outcome: (state, watching),
            wakers,
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
