//! All flags of a blob store, without a relay: for an operator who has none.
//!
//! What is written here is durable, and nobody is told of it: whoever polls sees it at its next
//! reading, a relay on the same store at its own.

use std::{fmt, sync::Arc, time::SystemTime};

use super::{Flags, FlagsConfig, StoreFlag, Wall, body::FOLDER};
use crate::{
    error::{Error, Result},
    store::{BlobStore, PageOptions},
    words::{FlagName, FlagState, Limits, UnleashOptions},
};

/// The flags of a store: those that a relay on it has. The same verbs as a relay's, but nobody is
/// told.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reveille::Result<()> {
/// use reveille::{FlagName, UnleashOptions, flag::StoreFlags, release::PollingRelease, store};
///
/// let store = store::open("memory:").await?; // and one that all nodes share
/// let (flags, go) = (StoreFlags::new(store), FlagName::new("go-live")?);
/// let parked = PollingRelease::new(flags.global(go.clone()), PollingRelease::INTERVAL);
/// flags.unleash(&go, &UnleashOptions::default()).await?;
/// parked.wait().await
/// # }
/// ```
#[derive(Clone)]
pub struct StoreFlags {
    store: Arc<dyn BlobStore>,
    wall: Wall,
}

impl StoreFlags {
    /// Makes the flags of this store.
    pub fn new(store: Arc<dyn BlobStore>) -> Self {
        Self::with_wall(store, crate::clock::wall)
    }

    /// Makes the flags of this store, with another clock than the system's.
    pub fn with_wall(
        store: Arc<dyn BlobStore>,
        wall: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> Self {
        let wall = Arc::new(wall);
        Self { store, wall }
    }

    /// Sets a flag durably. One that is set keeps its generation; its end, who and why are
    /// refreshed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a text or ttl out of range;
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where the store failed, and the
    /// message says whether it may have happened all the same.
    pub async fn unleash(&self, flag: &FlagName, options: &UnleashOptions) -> Result<FlagState> {
        let unleashed = self.flags().unleash(flag, options, (self.wall)()).await?;
        Ok(unleashed.0)
    }

    /// Clears a flag durably. One that is not set is no error.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) as for [`StoreFlags::unleash`].
    pub async fn leash(&self, flag: &FlagName) -> Result<FlagState> {
        self.flags().leash(flag).await
    }

    /// Reads a flag; one that was never set is not set, and neither is one that is over.
    ///
    /// # Errors
    /// Whatever kept the store from answering.
    pub async fn get(&self, flag: &FlagName) -> Result<FlagState> {
        let state = self.global(flag.clone()).state().await?;
        Ok(state.unwrap_or_else(|| FlagState::unset(flag.clone(), 0)))
    }

    /// Lists the flags that are set and begin with `prefix`, by name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a prefix that no name has; whatever
    /// kept the store from answering.
    pub async fn list(&self, prefix: &str) -> Result<Vec<FlagState>> {
        check_prefix(prefix)?;
        let prefix = format!("{FOLDER}{prefix}");
        let mut page = PageOptions {
            size: Limits::PAGE_MAX,
            token: None,
        };
        let mut flags = Vec::new();
        loop {
            let found = self.store.list(&prefix, &page).await?;
            for entry in found.entries {
                let name = entry.name.as_str().strip_prefix(FOLDER).map(FlagName::new);
                // What somebody else keeps beside the flags is none.
                let Some(Ok(name)) = name else { continue };
                flags.extend(self.global(name).state().await?);
            }
            page.token = found.next;
            if page.token.is_none() {
                return Ok(flags);
            }
        }
    }

    /// Returns one flag as a [`GlobalFlag`](crate::GlobalFlag), for a
    /// [`PollingRelease`](crate::release::PollingRelease).
    pub fn global(&self, flag: FlagName) -> StoreFlag {
        StoreFlag::with_shared(Arc::clone(&self.store), flag, Arc::clone(&self.wall))
    }

    /// A relay's flags, whose board nobody watches.
    fn flags(&self) -> Flags {
        Flags::new(Arc::clone(&self.store), FlagsConfig::default())
    }
}

/// Checks what a list of flags is asked for.
pub(super) fn check_prefix(prefix: &str) -> Result<()> {
    let part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if prefix.len() <= Limits::NAME && prefix.bytes().all(part) {
        return Ok(());
    }
    let rule = "must be at most 128 of [A-Za-z0-9._-]";
    Err(Error::invalid("prefix", rule))
}

impl fmt::Debug for StoreFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreFlags({})", self.store)
    }
}
