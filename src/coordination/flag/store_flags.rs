//! All flags of a blob store, for operators without a relay.
//!
//! Changes are durable, but no watcher is notified. A node that polls the store sees them at its
//! next read, a relay on the same store at its next refresh.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    Flags, FlagsConfig, READS_AT_ONCE, StoreFlag, WallClock,
    document::{FOLDER, flag_names},
};
use crate::{
    error::{Error, ErrorKind, Result},
    store::{BlobStore, PageOptions},
    types::{FlagName, FlagState, Limits, UnleashOptions},
};

/// Limit for one page of a list with all its flags: several requests in a row, each with retries.
const PAGE: Duration = Duration::from_secs(30);

/// The flags of a store, the same as a relay's on that store. It has the same verbs as a relay, but
/// notifies no watchers.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reveille::Result<()> {
/// use reveille::{FlagName, UnleashOptions, flag::StoreFlags, release::PollingRelease, store};
///
/// let store = store::open("memory:").await?; // in production: a store that all nodes share
/// let (flags, go) = (StoreFlags::new(store), FlagName::new("go-live")?);
/// let parked = PollingRelease::new(flags.global(go.clone()), PollingRelease::INTERVAL);
/// flags.unleash(&go, &UnleashOptions::default()).await?;
/// parked.wait().await
/// # }
/// ```
#[derive(Clone)]
pub struct StoreFlags {
    store: Arc<dyn BlobStore>,
    wall: WallClock,
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
        let wall = Arc::new(wall);
        Self { store, wall }
    }

    /// Sets a flag durably. A flag that is set keeps its generation and each value that the options
    /// leave out.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a text or ttl out of range; [`ErrorKind::Unavailable`] if the
    /// store failed. The message says whether the write may have happened.
    pub async fn unleash(&self, flag: &FlagName, options: &UnleashOptions) -> Result<FlagState> {
        let unleashed = self.flags().unleash(flag, options, (self.wall)()).await?;
        Ok(unleashed.0)
    }

    /// Clears a flag durably. Clearing an unset flag is no error.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] as for [`StoreFlags::unleash`].
    pub async fn leash(&self, flag: &FlagName) -> Result<FlagState> {
        self.flags().leash(flag).await
    }

    /// Reads a flag. An expired flag is not set, nor is an unknown one.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn get(&self, flag: &FlagName) -> Result<FlagState> {
        let state = self.global(flag.clone()).state().await?;
        Ok(state.unwrap_or_else(|| FlagState::unset(flag.clone(), 0)))
    }

    /// Lists the set flags whose names begin with `prefix`, by name. Reads the store page by page,
    /// and many flags of a page at a time.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a malformed prefix; [`ErrorKind::Timeout`] if one page of up to
    /// 1,000 flags takes more than 30 seconds; any error of the store.
    pub async fn list(&self, prefix: &str) -> Result<Vec<FlagState>> {
        check_prefix(prefix)?;
        let prefix = format!("{FOLDER}{prefix}");
        let mut page = PageOptions {
            size: Limits::PAGE_MAX,
            token: None,
        };
        let mut flags = Vec::new();
        loop {
            let read = tokio::time::timeout(PAGE, self.read_page(&prefix, &page)).await;
            let (found, next) = read.unwrap_or_else(|_| Err(self.late_error()))?;
            flags.extend(found);
            page.token = next;
            if page.token.is_none() {
                return Ok(flags);
            }
        }
    }

    async fn read_page(
        &self,
        prefix: &str,
        page: &PageOptions,
    ) -> Result<(Vec<FlagState>, Option<String>)> {
        let found = self.store.list(prefix, page).await?;
        // Other blobs in the folder are skipped.
        let names = flag_names(found.entries).into_iter();
        let reads = names.map(|name| async move { self.global(name).state().await });
        let reads = stream::iter(reads).buffered(READS_AT_ONCE);
        let states: Vec<_> = reads.try_collect().await?;
        Ok((states.into_iter().flatten().collect(), found.next))
    }

    #[cold]
    fn late_error(&self) -> Error {
        let message = format!(
            "{} did not list a page of flags within {PAGE:?}",
            self.store
        );
        Error::new(ErrorKind::Timeout, message)
    }

    /// Returns one flag as a [`GlobalFlag`](crate::GlobalFlag), for a
    /// [`PollingRelease`](crate::coordination::release::PollingRelease).
    pub fn global(&self, flag: FlagName) -> StoreFlag {
        StoreFlag::with_shared(Arc::clone(&self.store), flag, Arc::clone(&self.wall))
    }

    /// Makes a relay's flags, with an empty registry of watchers.
    fn flags(&self) -> Flags {
        Flags::new(Arc::clone(&self.store), FlagsConfig::default())
    }
}

/// Checks the prefix of a list of flags.
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
