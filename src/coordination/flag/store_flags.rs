//! All flags of a blob store, for operators without a relay.
//!
//! Changes are durable, but no watcher is notified. A node that polls the store sees them at its
//! next read, a relay on the same store at its next refresh.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use super::{Flags, FlagsConfig, WallClock};
use crate::{
    base::text::opaque_debug,
    error::Result,
    store::BlobStore,
    types::{FlagName, FlagState, GlobalFlag, UnleashOptions},
};

/// The largest expected difference between the clocks of the writer and of this machine.
const ALLOWANCE: Duration = Duration::from_secs(5);
const PAGE: u32 = 1_000;

/// The flags of a store, the same as a relay's on that store. It has the same verbs as a relay, but
/// notifies no watchers.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reveille::Result<()> {
/// use reveille::{FlagName, UnleashOptions, flag::StoreFlags, release::Release, store};
///
/// let store = store::open("memory:").await?; // in production: a store that all nodes share
/// let (flags, go) = (StoreFlags::new(store), FlagName::new("go-live")?);
/// let mut parked = Release::reading(go.clone(), flags.global(go.clone()), Release::INTERVAL);
/// flags.unleash(&go, &UnleashOptions::default()).await?;
/// parked.wait().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct StoreFlags {
    store: Arc<dyn BlobStore>,
    wall: WallClock,
}

/// A flag on a blob store. The blob's existence means "set", with any content; clearing deletes the
/// blob. A flag is also unset once its expiry has passed, with five seconds' allowance for the clocks.
#[derive(Debug, Clone)]
pub struct StoreFlag {
    flags: StoreFlags,
    name: FlagName,
}

impl StoreFlags {
    /// Makes the flags of this store.
    pub fn new(store: Arc<dyn BlobStore>) -> Self {
        Self::with_wall(store, crate::base::clock::wall)
    }

    /// Makes the flags of this store, with a clock other than the system's.
    pub fn with_wall(
        store: Arc<dyn BlobStore>,
        wall: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> Self {
        Self {
            store,
            wall: Arc::new(wall),
        }
    }

    /// Sets a flag durably. A flag that is set keeps its generation and each value that the options
    /// leave out.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a text or ttl out of range;
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the store failed. The message
    /// says whether the write may have happened.
    pub async fn unleash(&self, flag: &FlagName, options: &UnleashOptions) -> Result<FlagState> {
        let unleashed = self.flags().unleash(flag, options, (self.wall)()).await?;
        Ok(unleashed.0)
    }

    /// Clears a flag durably. Clearing an unset flag is no error.
    ///
    /// # Errors
    /// As [`StoreFlags::unleash`].
    pub async fn leash(&self, flag: &FlagName) -> Result<FlagState> {
        Ok(self.flags().leash(flag, (self.wall)()).await?.0)
    }

    /// Reads a flag. An expired flag is not set, nor is an unknown one.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn get(&self, flag: &FlagName) -> Result<FlagState> {
        self.flags().get(flag, (self.wall)() - ALLOWANCE).await
    }

    /// Lists the set flags whose names begin with `prefix`, by name. Reads the store page by page,
    /// and many flags of a page at a time.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a malformed prefix; any error of the store.
    pub async fn list(&self, prefix: &str) -> Result<Vec<FlagState>> {
        let (mut flags, mut token) = (Vec::new(), String::new());
        loop {
            let wall = (self.wall)() - ALLOWANCE;
            let (page, next) = self.flags().list(prefix, PAGE, &token, wall).await?;
            flags.extend(page);
            match next {
                Some(next) => token = next,
                None => return Ok(flags),
            }
        }
    }

    /// Returns one flag as a [`GlobalFlag`](crate::GlobalFlag), for
    /// [`Release::reading`](crate::coordination::release::Release::reading).
    pub fn global(&self, flag: FlagName) -> StoreFlag {
        StoreFlag {
            flags: self.clone(),
            name: flag,
        }
    }

    /// Makes a relay's flags, with an empty registry of watchers.
    fn flags(&self) -> Flags {
        Flags::new(Arc::clone(&self.store), FlagsConfig::default())
    }
}

opaque_debug!(StoreFlags: store);

impl StoreFlag {
    /// Makes the flag of this name. A relay on the same store has the same flag.
    pub fn new(store: Arc<dyn BlobStore>, name: FlagName) -> Self {
        StoreFlags::new(store).global(name)
    }
}

#[async_trait]
impl GlobalFlag for StoreFlag {
    async fn is_set(&self) -> Result<bool> {
        Ok(self.flags.get(&self.name).await?.set)
    }

    /// Sets the flag without an expiry, or clears it. A flag that is set keeps its generation.
    async fn set(&self, set: bool) -> Result<()> {
        if set {
            let for_good = UnleashOptions {
                ttl: Some(Duration::ZERO),
                ..UnleashOptions::default()
            };
            self.flags.unleash(&self.name, &for_good).await.map(drop)
        } else {
            self.flags.leash(&self.name).await.map(drop)
        }
    }
}
