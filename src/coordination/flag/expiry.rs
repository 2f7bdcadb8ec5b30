//! Expiry of flags by the wall clock of the relay, which is an argument.
//!
//! An expired flag reads as not set at once. Its blob is removed afterwards, and only if it has not
//! changed since it was read (R22: an expired flag is removed only as it was read): another relay
//! may have extended it.

use std::{
    task::{Poll, Waker},
    time::SystemTime,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    Flags, READS_AT_ONCE,
    document::{FOLDER, blob_name, flag_names},
    registry::{WriteOutcome, if_active},
    writes::{ATTEMPTS, WriteGuard},
};
use crate::{
    base::fault::planted,
    error::{Error, ErrorKind, Result},
    store::PageOptions,
    types::{FlagName, Limits},
};

impl Flags {
    /// Searches the store for flags with an expiry, set before this relay started or by another
    /// relay.
    ///
    /// # Errors
    /// Any error of the store.
    pub(crate) async fn recover(&self, wall: SystemTime) -> Result<()> {
        let mut page = PageOptions {
            size: Limits::PAGE_MAX,
            token: None,
        };
        loop {
            let found = self.inner.store.list(FOLDER, &page).await?;
            let names = flag_names(found.entries).into_iter();
            let reads = names.map(|name| async move { self.inner.read(&name).await });
            let mut reads = stream::iter(reads).buffer_unordered(READS_AT_ONCE);
            while let Some(found) = reads.try_next().await? {
                let Some((state, _)) = found else { continue };
                let wakers = self.inner.registry().add_found(state, wall);
                wakers.wake();
            }
            page.token = found.next;
            if page.token.is_none() {
                return Ok(());
            }
        }
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
        let asked = !due.is_empty();
        let mut outcome = Ok(asked);
        for name in due {
            // One flag's failure does not delay the others.
            outcome = self.expire_one(&name, wall).await.and(outcome);
        }
        outcome
    }

    async fn expire_one(&self, name: &FlagName, wall: SystemTime) -> Result<()> {
        let inner = &*self.inner;
        let unconditional = planted!(inner.fault, FlagExpiryUnconditional);
        let _guard = inner.writes.lock(name).await;
        for _ in 0..ATTEMPTS {
            let write = WriteGuard::begin(inner, name);
            // Read again: another writer may have extended it.
            let Some((state, etag)) = inner.read(name).await? else {
                inner.registry().set.remove(name);
                write.end(WriteOutcome::Unset).wake_watchers().await;
                return Ok(());
            };
            if let Some(state) = if_active(Some(state), wall) {
                write.end(WriteOutcome::Found(state)).wake_watchers().await;
                return Ok(());
            }
            let condition = if unconditional {
                None
            } else if inner.store.capabilities().conditional_delete {
                Some(&etag)
            } else {
                // The blob stays, and reads as not set.
                write.end(WriteOutcome::Unset).wake_watchers().await;
                return Ok(());
            };
            match inner.store.delete(&blob_name(name), condition).await {
                Ok(_) => {
                    inner.registry().set.remove(name);
                    write.end(WriteOutcome::Unset).wake_watchers().await;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                // The store turned out to have no conditional delete. The blob stays, and reads as
                // not set.
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    inner.registry().set_cannot_remove();
                    write.end(WriteOutcome::Unset).wake_watchers().await;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        let message = format!("flag `{name}` has expired, but other writers keep changing it");
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}
