//! All flags of a blob store, without a relay: for an operator who has none.
//!
//! What is written here is durable, and nobody is told of it: whoever polls sees it at its next
//! reading, a relay on the same store at its own.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    Flags, FlagsConfig, READS_AT_ONCE, StoreFlag, Wall,
    body::{FOLDER, flag_names},
};
use crate::{
    error::{Error, ErrorKind, Result},
    store::{BlobStore, PageOptions},
    words::{FlagName, FlagState, Limits, UnleashOptions},
};

/// How long a page of a list may take, with all its flags: several requests in a row that are each
/// tried again.
const PAGE: Duration = Duration::from_secs(30);

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

    /// Sets a flag durably. One that is set keeps its generation, and what the options leave out.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a text or ttl out of range;
    /// [`ErrorKind::Unavailable`] where the store failed, and the
    /// message says whether it may have happened all the same.
    pub async fn unleash(&self, flag: &FlagName, options: &UnleashOptions) -> Result<FlagState> {
        let unleashed = self.flags().unleash(flag, options, (self.wall)()).await?;
        Ok(unleashed.0)
    }

    /// Clears a flag durably. One that is not set is no error.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] as for [`StoreFlags::unleash`].
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

    /// Lists the flags that are set and begin with `prefix`, by name. The store is read page by page,
    /// and many flags of a page at a time.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a prefix that no name has; [`ErrorKind::Timeout`] where one page of
    /// up to 1,000 flags takes more than 30 seconds; whatever kept the store from answering.
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
            let (found, next) = read.unwrap_or_else(|_| Err(self.late()))?;
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
        // What else is kept beside the flags is none.
        let names = flag_names(found.entries).into_iter();
        let reads = names.map(|name| async move { self.global(name).state().await });
        let reads = stream::iter(reads).buffered(READS_AT_ONCE);
        let states: Vec<_> = reads.try_collect().await?;
        Ok((states.into_iter().flatten().collect(), found.next))
    }

    #[cold]
    fn late(&self) -> Error {
        let message = format!(
            "{} did not list a page of flags within {PAGE:?}",
            self.store
        );
        Error::new(ErrorKind::Timeout, message)
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
