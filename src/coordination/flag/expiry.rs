//! Expiry of flags by the wall clock of the relay, which is an argument.
//!
//! An expired flag reads as not set at once. Its blob is removed afterwards, and only if it has not
//! changed since it was read (R22: an expired flag is removed only as it was read): another relay
//! may have extended it.

use std::{
    pin::pin,
    task::{Poll, Waker},
    time::SystemTime,
};

use futures_util::TryStreamExt as _;

use super::Flags;
use crate::{error::Result, types::FlagName};

impl Flags {
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
        let asked = !due.is_empty();
        let mut outcome = Ok(asked);
        for name in due {
            // One flag's failure does not delay the others.
            outcome = self.expire_one(&name, wall).await.and(outcome);
        }
        outcome
    }

    async fn expire_one(&self, name: &FlagName, wall: SystemTime) -> Result<()> {
        let ended = self.inner.end_set(name, wall, true).await;
        let (written, _) = ended.map_err(|(_, error)| error)?;
        written.wake_watchers().await;
        Ok(())
    }
}
