//! Durable writes of flags: set and clear.
//!
//! A write reaches the store first; the registry then returns the watchers to wake. A write with an
//! unknown outcome notifies no watcher: the next refresh finds it.

use std::time::SystemTime;

use super::{
    Flags, Inner,
    document::{FlagDocument, blob_name},
    registry::{WriteOutcome, if_active},
    wakers::PendingWakes,
};
use crate::{
    base::fault::planted,
    error::{Error, ErrorKind, Result},
    store::ETag,
    types::{FlagName, FlagState, UnleashOptions},
};

/// A local write in progress. Dropping it before its end reports the write as abandoned.
pub(super) struct WriteGuard<'a> {
    inner: &'a Inner,
    name: &'a FlagName,
    began: u64,
    ended: bool,
}

/// Attempts at a write that conflicts with other writers of the same flag.
pub(super) const ATTEMPTS: u32 = 16;

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
        let _guard = self.inner.writes.lock(name).await;
        // The outcome of the last attempt that was answered with a conflict.
        let mut tried: Option<WriteOutcome> = None;
        let mut new = false;
        for _ in 0..ATTEMPTS {
            let write = WriteGuard::begin(&self.inner, name);
            let found = self.inner.get_blob(name).await.map_err(|error| {
                let doing = match tried {
                    // The conflict may be with our own write, if the network repeated the request.
                    Some(_) => MAYBE_SET,
                    None => "was not set, and no watcher was notified: it could not be read first",
                };
                self.inner.unavailable(name, doing, error)
            })?;
            if found.is_none() {
                new |= self.inner.registry().admit_set(name)?;
            }
            let (current, etag) = found.unzip();
            // A network that repeats a request returns the second answer: a conflict with our own
            // write. No other writer uses this generation with this time.
            if let Some(own) = tried.take_if(|own| current.as_ref() == own.state()) {
                return Ok(write.end(own));
            }
            let (document, written) = self.inner.plan_write(name, current, options, wall);
            self.inner.notify_before_durable(name, &written).await;
            match self.inner.put(name, &document, etag.as_ref()).await {
                Ok(_) => return Ok(write.end(written)),
                Err(error) if error.kind() == ErrorKind::Conflict => tried = Some(written),
                Err(error) => {
                    let refused = is_refusal(&error);
                    if refused && new {
                        self.inner.registry().set.remove(name);
                    }
                    let doing = if refused { NOT_SET } else { MAYBE_SET };
                    return Err(self.inner.unavailable(name, doing, error));
                }
            }
        }
        let message = format!("flag `{name}` was not set: other writers keep changing it");
        Err(Error::new(ErrorKind::Unavailable, message))
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
        match self.inner.store.delete(&blob_name(name), None).await {
            Ok(_) => {
                self.inner.registry().set.remove(name);
                Ok(write.end(WriteOutcome::Unset))
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
    /// Returns the document to write over the `current` state, and the outcome to report.
    fn plan_write(
        &self,
        name: &FlagName,
        current: Option<FlagState>,
        options: &UnleashOptions,
        wall: SystemTime,
    ) -> (FlagDocument, WriteOutcome) {
        match if_active(current, wall) {
            Some(state) => {
                let document = FlagDocument::new(state.generation, options, Some(&state), wall);
                let written = WriteOutcome::Kept(document.state(name));
                (document, written)
            }
            None => {
                let generation = self.registry().new_generation(wall);
                let document = FlagDocument::new(generation, options, None, wall);
                let written = WriteOutcome::Unleashed(document.state(name));
                (document, written)
            }
        }
    }

    async fn put(
        &self,
        name: &FlagName,
        document: &FlagDocument,
        etag: Option<&ETag>,
    ) -> Result<ETag> {
        let name = blob_name(name);
        match etag {
            Some(etag) => self.store.update(&name, document.content(), etag).await,
            None => self.store.create(&name, document.content()).await,
        }
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
        let ended = self
            .inner
            .registry()
            .finish_write(self.name, self.began, written);
        let (state, watching, wakers) = ended;
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
