//! A flag directly on a blob store, without a relay: its readers poll.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use super::{
    StoreFlags,
    document::{EndRule, StoredFlag, blob_name},
    registry::Written,
    writes::SetError,
};
use crate::{
    error::Result,
    store::BlobStore,
    types::{FlagName, GlobalFlag, UnleashOptions},
};

/// A flag on a blob store. The blob's existence means "set", with any content; clearing deletes the
/// blob. A flag is also unset once its expiry has passed by the store's clock, with five seconds'
/// allowance.
#[derive(Clone)]
pub struct StoreFlag {
    flags: StoreFlags,
    name: FlagName,
}

impl StoreFlag {
    /// Makes the flag of this name. A relay on the same store has the same flag.
    pub fn new(store: Arc<dyn BlobStore>, name: FlagName) -> Self {
        Self::of(StoreFlags::new(store), name)
    }

    /// Makes the flag of this name, with a clock other than the system's.
    pub fn with_wall(
        store: Arc<dyn BlobStore>,
        name: FlagName,
        wall: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> Self {
        Self::of(StoreFlags::with_wall(store, wall), name)
    }

    pub(super) fn of(flags: StoreFlags, name: FlagName) -> Self {
        Self { flags, name }
    }

    /// Sets the flag without an expiry, unless it is set so already. A flag with an expiry keeps its
    /// generation.
    async fn set_for_good(&self) -> Result<()> {
        let flags = self.flags.flags();
        let for_good = UnleashOptions {
            ttl: Some(Duration::ZERO),
            ..UnleashOptions::default()
        };
        let plan = |found: Option<StoredFlag>, ended: u64| {
            let wall = (self.flags.wall)();
            match found.and_then(|found| found.active(EndRule::LastModified, wall)) {
                Some(state) if state.expires_at.is_none() => {
                    let found = Written {
                        state,
                        unleashed: false,
                        ended: None,
                    };
                    (found, None)
                }
                current => {
                    let inner = &flags.inner;
                    inner.plan_write(&self.name, current.as_ref(), ended, &for_good, wall)
                }
            }
        };
        match flags.inner.modify(&self.name, plan).await {
            Ok(_) => Ok(()),
            Err(SetError::Read(error, _)) => Err(flags.inner.blobs.read_error(&self.name, error)),
            Err(SetError::Write(error) | SetError::Other(error)) => Err(error),
        }
    }
}

#[async_trait]
impl GlobalFlag for StoreFlag {
    async fn is_set(&self) -> Result<bool> {
        Ok(self.flags.read(&self.name).await?.is_some())
    }

    async fn set(&self, set: bool) -> Result<()> {
        match set {
            true => self.set_for_good().await,
            false => self.flags.leash(&self.name).await.map(drop),
        }
    }
}

impl fmt::Debug for StoreFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blob = blob_name(&self.name);
        write!(f, "StoreFlag({blob} in {})", self.flags.blobs.store)
    }
}
