//! The periodic refresh: it finds changes of other writers.
//!
//! A few watched flags are read one by one. For many, the relay reads one list of the store, and
//! then only the flags whose blobs have changed since their last read. R20 (only a fresh read
//! settles a watcher) holds for a list as for a read. A list counts for a flag only if its watchers
//! registered before the request of the first page, and if no local write of the flag has ended
//! since.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{Flags, blobs::READS_AT_ONCE, document::Version, registry::ReadStart, wakers::Wakers};
use crate::{
    error::Result,
    types::{FlagName, Limits},
};

/// The result of a complete list of the store.
#[derive(Debug, Default)]
struct ListedFlags {
    /// Blobs of the watched flags.
    watched: BTreeMap<FlagName, Version>,
    /// All flags, up to the limit of set flags.
    names: BTreeSet<FlagName>,
}

/// Flags that are compared with a list under one hold of the registry's lock.
const CHUNK: usize = 256;

impl Flags {
    /// Reads changes that other writers of the store made to watched flags, and notifies the
    /// watchers.
    ///
    /// Returns whether a request was sent to the store.
    ///
    /// # Errors
    /// The store's error. Flags that could be read were refreshed nevertheless.
    ///
    /// # Cancel safety
    /// Safe: reads that ended count, and the next call does the rest.
    pub(crate) async fn refresh(&self, wall: SystemTime) -> Result<bool> {
        let watched = self.inner.registry().refresh_plan();
        let pages = watched.set / Limits::PAGE_MAX + 1;
        let count = watched.names.len();
        let few = count <= self.inner.refresh_reads || count < pages;
        if few && !watched.is_full {
            self.read_each(&watched.names, wall).await?;
            return Ok(!watched.names.is_empty());
        }
        self.refresh_by_list(&watched.names, wall).await?;
        Ok(true)
    }

    /// Reads flags, many at a time. A flag that cannot be read does not stop the others.
    pub(super) async fn read_each(&self, names: &[FlagName], wall: SystemTime) -> Result<()> {
        let reads = names.iter().cloned().map(|name| async move {
            let _guard = self.inner.reads.lock(&name).await;
            self.inner.read_and_apply(&name, wall).await
        });
        let reads = stream::iter(reads).buffer_unordered(READS_AT_ONCE);
        reads
            .fold(Ok(()), async |before, read| before.and(read))
            .await
    }

    async fn refresh_by_list(&self, names: &[FlagName], wall: SystemTime) -> Result<()> {
        // R20: the read begins before the first page is requested.
        let reading = self.inner.registry().begin_read();
        let listed = self.list_all(names).await?;
        self.inner
            .registry()
            .replace_set_flags(&listed.names, reading);
        let mut changed = Vec::new();
        for chunk in names.chunks(CHUNK) {
            changed.extend(self.compare(chunk, &listed, reading).await);
            tokio::task::yield_now().await;
        }
        self.read_each(&changed, wall).await
    }

    /// Returns which of these flags must be read.
    async fn compare(
        &self,
        names: &[FlagName],
        listed: &ListedFlags,
        reading: ReadStart,
    ) -> Vec<FlagName> {
        let (mut changed, mut wakers) = (Vec::new(), Wakers::default());
        {
            let mut registry = self.inner.registry();
            for name in names {
                let version = listed.watched.get(name);
                if registry.apply_listed(name, reading, version, &mut wakers) {
                    changed.push(name.clone());
                }
            }
        }
        wakers.wake_in_slices().await;
        changed
    }

    /// Reads the whole list: a part of it does not show that a flag is missing.
    async fn list_all(&self, watched: &[FlagName]) -> Result<ListedFlags> {
        let max = self.inner.registry().max_flags();
        let mut listed = ListedFlags::default();
        let mut pages = std::pin::pin!(self.inner.blobs.pages(""));
        while let Some(page) = pages.try_next().await? {
            for (name, version) in page {
                if watched.binary_search(&name).is_ok() {
                    listed.watched.insert(name.clone(), version);
                }
                if listed.names.len() < max {
                    listed.names.insert(name);
                }
            }
        }
        Ok(listed)
    }
}
