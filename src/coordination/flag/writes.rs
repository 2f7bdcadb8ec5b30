//! Durable writes of flags: set and clear.
//!
//! A write reaches the store first; the registry then returns the watchers to wake. A write with an
//! unknown outcome notifies no watcher: the next refresh finds it. A clearing first writes the set
//! that it ends to `flags-ended/NAME`, so that a relay which sees neither the set nor its hint still
//! tells the watchers that waited for it.

use std::time::SystemTime;

use super::{
    Flags, Inner,
    document::{EndRule, EndedSet, FlagDocument, StoredFlag, Version},
    registry::Written,
    wakers::PendingWakes,
};
use crate::{
    base::fault::planted,
    error::{Error, ErrorKind, Result},
    types::{FlagName, FlagState, UnleashOptions},
};

/// A planned write: the state that it leaves, and the document to write; `None` leaves the blob as it
/// is.
pub(super) type WritePlan = (Written, Option<FlagDocument>);

/// A write that was done: the state, and the number of watchers, which are still to wake.
type Done = PendingWakes<(FlagState, u32)>;

/// Why a flag was not set.
#[derive(Debug)]
pub(super) enum SetError {
    /// The blob could not be read. The flag tells whether an earlier attempt ended with a conflict.
    Read(Error, bool),
    /// The write failed.
    Write(Error),
    /// Nothing was written: too many flags are set, or other writers keep changing this one.
    Other(Error),
}

/// Attempts at a write that conflicts with other writers of the same flag.
const ATTEMPTS: u32 = 16;

const NOT_READ: &str = "was not set, and no watcher was notified: it could not be read first";
const NOT_SET: &str = "was not set, and no watcher was notified";
const MAYBE_SET: &str = "may or may not be set, and no watcher was notified: check with `flag get`";

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
    ) -> Result<PendingWakes<(FlagState, u32)>> {
        options.check()?;
        let plan = |found: Option<StoredFlag>, ended: u64| {
            let current = found.and_then(|found| found.active(EndRule::SetAt, wall));
            self.inner
                .plan_write(name, current.as_ref(), ended, options, wall)
        };
        let written = self.inner.modify(name, plan).await;
        let written = written.map_err(|error| self.inner.set_error(name, error))?;
        self.note_set(&written.outcome.0);
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
    pub(crate) async fn clear(
        &self,
        name: &FlagName,
        wall: SystemTime,
    ) -> Result<PendingWakes<(FlagState, u32)>> {
        let cleared = self.inner.end_set(name, wall, false).await;
        let (written, ended) = cleared.map_err(|(doing, error)| {
            let doing = match doing {
                Ending::Deletes if !is_refusal(&error) => {
                    "may or may not be cleared, and no watcher was notified: check with `flag get`"
                }
                _ => "was not cleared, and no watcher was notified",
            };
            self.inner.unavailable(name, doing, error)
        })?;
        if let Some(ended) = &ended {
            self.note_cleared(ended);
        }
        Ok(written)
    }
}

/// The step at which the end of a set has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Prepares,
    Deletes,
}

impl Inner {
    /// Reads a flag's blob and writes the document that `plan` makes of it. Repeats both if another
    /// writer has changed the blob since the read.
    pub(super) async fn modify(
        &self,
        name: &FlagName,
        plan: impl Fn(Option<StoredFlag>, u64) -> WritePlan,
    ) -> Result<PendingWakes<(FlagState, u32)>, SetError> {
        let _guard = self.locks.lock(name).await;
        // The outcome of the last attempt that was answered with a conflict.
        let mut tried: Option<Written> = None;
        let mut new = false;
        for _ in 0..ATTEMPTS {
            let began = self.registry().next_sequence();
            let read_error = |error| SetError::Read(error, tried.is_some());
            let found = self.blobs.get(name).await.map_err(read_error)?;
            // After the flag: a new generation is greater than the number of each set that is over
            // where the flag is not set.
            let (ended, _) = self.blobs.ended(name).await.map_err(read_error)?;
            if found.is_none() {
                new |= self.registry().admit_set(name).map_err(SetError::Other)?;
            }
            // A network that repeats a request returns the second answer: a conflict with our own
            // write. No other writer uses this generation with this time.
            let state = found.as_ref().map(|found| &found.state);
            if let Some(own) = tried.take_if(|own| state == Some(&own.state)) {
                return Ok(self.finish_set(name, began, ended.as_ref(), own));
            }
            let etag = found.as_ref().map(|found| found.etag.clone());
            let number = ended.as_ref().map_or(0, |ended| ended.number);
            let (written, document) = plan(found, number);
            let Some(document) = document else {
                return Ok(self.finish_set(name, began, ended.as_ref(), written));
            };
            if planted!(FlagTellsBeforeDurable) {
                self.finish_set(name, began, ended.as_ref(), written.clone())
                    .wake_watchers()
                    .await;
            }
            match self.blobs.put(name, &document, etag.as_ref()).await {
                Ok(()) => return Ok(self.finish_set(name, began, ended.as_ref(), written)),
                Err(error) if error.kind() == ErrorKind::Conflict => tried = Some(written),
                Err(error) => {
                    if new && is_refusal(&error) {
                        self.registry().set.remove(name);
                    }
                    return Err(SetError::Write(error));
                }
            }
        }
        Err(SetError::Other(contended(name, "was not set:")))
    }

    /// Plans a write over the `current` state; `None` if the flag is not set. `ended` is the number of
    /// its newest set that is over.
    pub(super) fn plan_write(
        &self,
        name: &FlagName,
        current: Option<&FlagState>,
        ended: u64,
        options: &UnleashOptions,
        wall: SystemTime,
    ) -> WritePlan {
        let new_generation = || self.registry().new_generation(wall, ended);
        let generation = current.map_or_else(new_generation, |state| state.generation);
        let document = FlagDocument::new(generation, options, current, wall);
        let written = Written {
            state: document.state(name),
            unleashed: current.is_none(),
            ended: None,
        };
        (written, Some(document))
    }

    /// Ends a flag's set: writes it to `flags-ended/NAME`, then deletes the flag's blob. With
    /// `expired` only a set that has expired is ended, and only by a delete that is conditional on
    /// its ETag (R22: an expired flag is removed only as it was read). Where the store has no such
    /// delete, its blob stays, and reads as not set.
    ///
    /// Returns the set that was ended; `None` if the flag was not set, or has not expired.
    pub(super) async fn end_set(
        &self,
        name: &FlagName,
        wall: SystemTime,
        expired: bool,
    ) -> Result<(Done, Option<EndedSet>), (Ending, Error)> {
        let prepares = |error| (Ending::Prepares, error);
        let _guard = self.locks.lock(name).await;
        for _ in 0..ATTEMPTS {
            let began = self.registry().next_sequence();
            // Read again, also where it has expired: another writer may have extended it.
            let ended = self.read_ended(name, began).await.map_err(prepares)?;
            let found = self.blobs.get(name).await.map_err(prepares)?;
            let unset = Written {
                state: self.registry().unset(name),
                unleashed: false,
                ended: None,
            };
            let Some(found) = found else {
                self.registry().set.remove(name);
                return Ok((self.finish(name, began, unset), None));
            };
            let etag = found.etag.clone();
            let set = found.state.clone();
            if expired && let Some(state) = found.active(EndRule::SetAt, wall) {
                let kept = Written { state, ..unset };
                return Ok((self.finish(name, began, kept), None));
            }
            let can_tell = self.blobs.store.capabilities().conditional_delete;
            if expired && !can_tell {
                return Ok((self.finish(name, began, unset), None));
            }
            let ended = self.put_ended(&set, ended, wall).await;
            // Another writer was faster: the set may be over, and a later one as well.
            let Some(ended) = ended.map_err(prepares)? else {
                continue;
            };
            let condition = Some(&etag).filter(|_| can_tell && !planted!(FlagExpiryUnconditional));
            match self.blobs.delete(name, condition).await {
                Ok(()) => self.registry().set.remove(name),
                Err(error) if error.kind() == ErrorKind::Conflict => continue,
                // The store turned out to have no conditional delete.
                Err(error) if error.kind() == ErrorKind::Unsupported && condition.is_some() => {
                    self.registry().set_cannot_remove();
                    if !expired {
                        let deleted = self.blobs.delete(name, None).await;
                        deleted.map_err(|error| (Ending::Deletes, error))?;
                        self.registry().set.remove(name);
                    }
                }
                Err(error) => return Err((Ending::Deletes, error)),
            }
            let cleared = Written {
                ended: Some(ended.clone()),
                ..unset
            };
            return Ok((self.finish(name, began, cleared), Some(ended)));
        }
        let what = match expired {
            true => "has expired, but",
            false => "was not cleared:",
        };
        Err((Ending::Prepares, contended(name, what)))
    }

    /// Writes a set that is about to end, unless an earlier attempt or another relay has written it.
    /// `before` was read before the set was: `None` if it has changed since.
    async fn put_ended(
        &self,
        set: &FlagState,
        (before, version): (Option<EndedSet>, Option<Version>),
        wall: SystemTime,
    ) -> Result<Option<EndedSet>> {
        let is_own = |ended: &&EndedSet| ended.state.generation == set.generation;
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
        written: Written,
    ) -> PendingWakes<(FlagState, u32)> {
        let mut noted = self.registry().note_ended(name, ended, began);
        let mut pending = self.finish(name, began, written);
        noted.append(std::mem::take(&mut pending.wakers));
        pending.wakers = noted;
        pending
    }

    /// Reports the outcome of a write to the registry, which returns the watchers to wake.
    fn finish(
        &self,
        name: &FlagName,
        began: u64,
        written: Written,
    ) -> PendingWakes<(FlagState, u32)> {
        let state = written.state.clone();
        let (watching, wakers) = self.registry().finish_write(name, began, written);
        PendingWakes {
            outcome: (state, watching),
            wakers,
        }
    }

    /// Adds the possible outcomes to the error of a set.
    #[cold]
    fn set_error(&self, name: &FlagName, error: SetError) -> Error {
        let (outcome, error) = match error {
            SetError::Read(error, false) => (NOT_READ, error),
            // The conflict may be with our own write, if the network repeated the request.
            SetError::Read(error, true) => (MAYBE_SET, error),
            SetError::Write(error) if is_refusal(&error) => (NOT_SET, error),
            SetError::Write(error) => (MAYBE_SET, error),
            SetError::Other(error) => return error,
        };
        self.unavailable(name, outcome, error)
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
