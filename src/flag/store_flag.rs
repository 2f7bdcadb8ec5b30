//! A flag straight on a blob store, without a relay: whoever reads it polls.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use super::{
    Wall,
    body::{self, Body, blob_name},
};
use crate::{
    clock::micros,
    error::{Error, ErrorKind, Result},
    store::{Blob, BlobName, BlobStore},
    words::{FlagName, FlagState, GlobalFlag, UnleashOptions},
};

/// A flag whose blob's existence means set, whatever is inside; clearing deletes it. One whose
/// time is over, by the store's clock and with five seconds' allowance, is not set.
#[derive(Clone)]
pub struct StoreFlag {
    store: Arc<dyn BlobStore>,
    name: FlagName,
    blob: BlobName,
    wall: Wall,
}

/// How far the clocks of the store, of the relay and of this machine may be apart.
const ALLOWANCE: Duration = Duration::from_secs(5);

/// Attempts at setting a flag that others keep setting and clearing.
const ATTEMPTS: u32 = 16;

impl StoreFlag {
    /// Makes the flag of this name: the one that a relay on the same store has.
    pub fn new(store: Arc<dyn BlobStore>, name: FlagName) -> Self {
        Self::with_wall(store, name, crate::clock::wall)
    }

    /// Makes the flag of this name, with another clock than the system's.
    pub fn with_wall(
        store: Arc<dyn BlobStore>,
        name: FlagName,
        wall: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> Self {
        Self::with_shared(store, name, Arc::new(wall))
    }

    pub(super) fn with_shared(store: Arc<dyn BlobStore>, name: FlagName, wall: Wall) -> Self {
        let blob = blob_name(&name);
        Self {
            store,
            name,
            blob,
            wall,
        }
    }

    /// Reads the flag's state; `None` where it is not set, or over.
    ///
    /// # Errors
    /// Whatever kept the store from answering.
    pub(super) async fn state(&self) -> Result<Option<FlagState>> {
        let found = self.read().await?;
        let set = found.filter(|blob| !self.is_over(blob));
        Ok(set.map(|blob| body::state(&self.name, &blob)))
    }

    fn is_over(&self, blob: &Blob) -> bool {
        let ttl = Body::read(blob).map_or(Duration::ZERO, |body| body.ttl());
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

    /// Sets the flag, unless it is set; `Conflict` where somebody came in between.
    async fn raise(&self) -> Result<()> {
        let found = self.read().await?;
        let set = found.as_ref().filter(|blob| !self.is_over(blob));
        let ends = |blob: &Blob| Body::read(blob).is_some_and(|body| !body.ttl().is_zero());
        if set.is_some_and(|blob| !ends(blob)) {
            return Ok(());
        }
        let wall = (self.wall)();
        // One that would end by itself goes on, as the same.
        let current = set.map(|blob| body::state(&self.name, blob));
        let generation = match &current {
            Some(state) => state.generation,
            None => micros(wall).max(1),
        };
        let for_ever = UnleashOptions {
            ttl: Some(Duration::ZERO),
            ..UnleashOptions::default()
        };
        let body = Body::new(generation, &for_ever, current.as_ref(), wall);
        let written = match found {
            Some(blob) => {
                self.store
                    .update(&self.blob, body.content(), &blob.etag)
                    .await
            }
            None => self.store.create(&self.blob, body.content()).await,
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
            match self.raise().await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                outcome => return outcome,
            }
        }
        let message = format!("flag `{}` was not set: others keep changing it", self.name);
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

impl fmt::Debug for StoreFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreFlag({} in {})", self.blob, self.store)
    }
}
