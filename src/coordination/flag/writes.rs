//! Durable writes of flags: set and clear.
//!
//! A write reaches the store first; the registry then returns the watchers to wake. A write with an
//! unknown outcome notifies no watcher: the next refresh finds it.

use std::time::SystemTime;

use super::{
    Flags, Inner,
    document::{EndRule, FlagDocument, StoredFlag},
    registry::WriteOutcome,
    wakers::PendingWakes,
};
use crate::{
    base::fault::planted,
    error::{Error, ErrorKind, Result},
    types::{FlagName, FlagState, UnleashOptions},
};

/// A local write in progress. Dropping it before its end reports the write as abandoned.
pub(super) struct WriteGuard<'a> {
    inner: &'a Inner,
    name: &'a FlagName,
    began: u64,
    ended: bool,
}

/// The outcome of a planned write, and the document to write; `None` leaves the blob as it is.
pub(super) type WritePlan = (WriteOutcome, Option<FlagDocument>);

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
pub(super) const ATTEMPTS: u32 = 16;

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
        let plan = |found: Option<StoredFlag>| {
            let current = found.and_then(|found| found.active(EndRule::SetAt, wall));
            self.inner.plan_write(name, current.as_ref(), options, wall)
        };
        let written = self.inner.modify(name, plan).await;
        let written = written.map_err(|error| self.inner.set_error(name, error))?;
        self.note_written(name, &written.outcome.0);
        Ok(written)
    }

    /// Clears a flag durably, then notifies its watchers. Clearing an unset flag is no error.
    ///
    /// # Errors
    /// `Unavailable` as for [`Flags::unleash`].
    pub(crate) async fn leash(&self, name: &FlagName) -> Result<FlagState> {
        let (state, _) = self.clear(name).await?.wake_watchers().await;
        Ok(state)
    }

    /// Like [`Flags::leash`], but leaves the waking of the watchers to the caller. Also returns the
    /// number of watchers.
    pub(crate) async fn clear(&self, name: &FlagName) -> Result<PendingWakes<(FlagState, u32)>> {
        let _guard = self.inner.writes.lock(name).await;
        let write = WriteGuard::begin(&self.inner, name);
        match self.inner.blobs.delete(name, None).await {
            Ok(()) => {
                self.inner.registry().set.remove(name);
                let written = write.end(WriteOutcome::Unset);
                self.note_written(name, &written.outcome.0);
                Ok(written)
            }
            Err(error) => {
                let doing = match is_refusal(&error) {
                    true => "was not cleared, and no watcher was notified",
                    false => {
                        "may or may not be cleared, and no watcher was notified: check with `flag get`"
                    }
                };
                Err(self.inner.unavailable(name, doing, error))
            }
        }
    }
}

impl Inner {
    /// Reads a flag's blob and writes the document that `plan` makes of it. Repeats both if another
    /// writer has changed the blob since the read.
    pub(super) async fn modify(
        &self,
        name: &FlagName,
        plan: impl Fn(Option<StoredFlag>) -> WritePlan,
    ) -> Result<PendingWakes<(FlagState, u32)>, SetError> {
        let _guard = self.writes.lock(name).await;
        // The outcome of the last attempt that was answered with a conflict.
        let mut tried: Option<WriteOutcome> = None;
        let mut new = false;
        for _ in 0..ATTEMPTS {
            let write = WriteGuard::begin(self, name);
            let read_error = |error| SetError::Read(error, tried.is_some());
            let found = self.blobs.get(name).await.map_err(read_error)?;
            if found.is_none() {
                new |= self.registry().admit_set(name).map_err(SetError::Other)?;
            }
            // A network that repeats a request returns the second answer: a conflict with our own
            // write. No other writer uses this generation with this time.
            let state = found.as_ref().map(|found| &found.state);
            if let Some(own) = tried.take_if(|own| state == own.state()) {
                return Ok(write.end(own));
            }
            let etag = found.as_ref().map(|found| found.etag.clone());
            let (outcome, document) = plan(found);
            let Some(document) = document else {
                return Ok(write.end(outcome));
            };
            self.notify_before_durable(name, &outcome).await;
            match self.blobs.put(name, &document, etag.as_ref()).await {
                Ok(()) => return Ok(write.end(outcome)),
                Err(error) if error.kind() == ErrorKind::Conflict => tried = Some(outcome),
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

    /// Plans a write over the `current` state; `None` if the flag is not set.
    pub(super) fn plan_write(
        &self,
        name: &FlagName,
        current: Option<&FlagState>,
        options: &UnleashOptions,
        wall: SystemTime,
    ) -> WritePlan {
        let new_generation = || self.registry().new_generation(wall);
        let generation = current.map_or_else(new_generation, |state| state.generation);
        let document = FlagDocument::new(generation, options, current, wall);
        let written = match current {
            Some(_) => WriteOutcome::Kept(document.state(name)),
            None => WriteOutcome::Unleashed(document.state(name)),
        };
        (written, Some(document))
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

    /// Planted fault: notifies the watchers before the write.
    async fn notify_before_durable(&self, name: &FlagName, written: &WriteOutcome) {
        if planted!(self.fault, FlagTellsBeforeDurable) {
            let write = WriteGuard::begin(self, name);
            write.end(written.clone()).wake_watchers().await;
        }
    }
}

impl<'a> WriteGuard<'a> {
    pub(super) fn begin(inner: &'a Inner, name: &'a FlagName) -> Self {
        let began = inner.registry().begin_write();
        Self {
            inner,
            name,
            began,
            ended: false,
        }
    }

    /// Reports the outcome to the registry, which returns the watchers to wake.
    pub(super) fn end(mut self, written: WriteOutcome) -> PendingWakes<(FlagState, u32)> {
        self.ended = true;
        let mut registry = self.inner.registry();
        let unordered = registry.is_unordered(self.name, self.began);
        let (state, watching, wakers) = registry.finish_write(self.name, self.began, written);
        drop(registry);
        if unordered {
            self.inner.refresh_requested.notify_one();
        }
        let outcome = (state, watching);
        PendingWakes { outcome, wakers }
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.inner.registry().abandon_write(self.name);
        }
    }
}

/// Returns the error of a flag that other writers changed during each attempt.
#[cold]
pub(super) fn contended(name: &FlagName, what: &str) -> Error {
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
