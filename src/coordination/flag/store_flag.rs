//! A flag directly on a blob store, without a relay: its readers poll.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use super::{
    WallClock,
    document::{self, FlagDocument, blob_name},
};
use crate::{
    base::clock::micros,
    error::{Error, ErrorKind, Result},
    store::{Blob, BlobName, BlobStore},
    types::{FlagName, FlagState, GlobalFlag, UnleashOptions},
};

/// A flag on a blob store. The blob's existence means "set", with any content; clearing deletes the
/// blob. A flag is also unset once its expiry has passed by the store's clock, with five seconds'
/// allowance.
#[derive(Clone)]
pub struct StoreFlag {
    store: Arc<dyn BlobStore>,
    name: FlagName,
    blob: BlobName,
    wall: WallClock,
}

/// The largest expected difference between the clocks of the store, the relay and this machine.
const ALLOWANCE: Duration = Duration::from_secs(5);

/// Attempts at setting a flag that other writers keep setting and clearing.
const ATTEMPTS: u32 = 16;

impl StoreFlag {
    /// Makes the flag of this name. A relay on the same store has the same flag.
    pub fn new(store: Arc<dyn BlobStore>, name: FlagName) -> Self {
        Self::with_wall(store, name, crate::base::clock::wall)
    }

    /// Makes the flag of this name, with a clock other than the system's.
    pub fn with_wall(
        store: Arc<dyn BlobStore>,
        name: FlagName,
        wall: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> Self {
        Self::with_shared(store, name, Arc::new(wall))
    }

    pub(super) fn with_shared(store: Arc<dyn BlobStore>, name: FlagName, wall: WallClock) -> Self {
        let blob = blob_name(&name);
        Self {
            store,
            name,
            blob,
            wall,
        }
    }

    /// Reads the flag's state; `None` if it is not set or has expired.
    ///
    /// # Errors
    /// Any error of the store.
    pub(super) async fn state(&self) -> Result<Option<FlagState>> {
        let found = self.read().await?;
        let set = found.filter(|blob| !self.has_expired(blob));
        Ok(set.map(|blob| document::state(&self.name, &blob)))
    }

    fn has_expired(&self, blob: &Blob) -> bool {
        let ttl = FlagDocument::read(blob).map_or(Duration::ZERO, |document| document.ttl());
        if ttl.is_zero() {
            return false;
        }
        let end = blob.last_modified.checked_add(ttl + ALLOWANCE);
        end.is_some_and(|end| end <= (self.wall)())
    }

    async fn read(&self) -> Result<Option<Blob>> {
        self.store.get(&self.blob).await.map_err(|error| {
            let message = format!("flag `{}` could not be read from {}", self.name, self.store);
            Error::new(error.kind(), message).with_source(error)
        })
    }

    /// Sets the flag unless it is set. Returns `Conflict` if another writer changed it.
    async fn try_set(&self) -> Result<()> {
        let found = self.read().await?;
        let set = found.as_ref().filter(|blob| !self.has_expired(blob));
        let ends = |blob: &Blob| {
            FlagDocument::read(blob).is_some_and(|document| !document.ttl().is_zero())
        };
        if set.is_some_and(|blob| !ends(blob)) {
            return Ok(());
        }
        let wall = (self.wall)();
        // A flag with an expiry keeps its generation and loses the expiry.
        let current = set.map(|blob| document::state(&self.name, blob));
        let generation = match &current {
            Some(state) => state.generation,
            None => micros(wall).max(1),
        };
        let for_ever = UnleashOptions {
            ttl: Some(Duration::ZERO),
            ..UnleashOptions::default()
        };
        let document = FlagDocument::new(generation, &for_ever, current.as_ref(), wall);
        let written = match found {
            Some(blob) => {
                self.store
                    .update(&self.blob, document.content(), &blob.etag)
                    .await
            }
            None => self.store.create(&self.blob, document.content()).await,
        };
        written.map(drop)
    }
}

#[async_trait]
impl GlobalFlag for StoreFlag {
    async fn is_set(&self) -> Result<bool> {
        Ok(self.state().await?.is_some())
    }

    async fn set(&self, set: bool) -> Result<()> {
        if !set {
            return self.store.delete(&self.blob, None).await.map(drop);
        }
        for _ in 0..ATTEMPTS {
            match self.try_set().await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                outcome => return outcome,
            }
        }
        let message = format!(
            "flag `{}` was not set: other writers keep changing it",
            self.name
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

impl fmt::Debug for StoreFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreFlag({} in {})", self.blob, self.store)
    }
}
