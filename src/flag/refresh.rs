//! The periodic refresh: what other writers of the store have changed.
//!
//! A few watched flags are read one by one. Of many the relay reads one list of the store, and then
//! only the flags whose blob is another one than at the last read. R20 (only a fresh read settles a
//! watcher) holds for a list as for a read: it counts for a flag only if its watchers had
//! registered before its first page was asked for, and no local write of the flag ended since.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use futures_util::{StreamExt as _, stream};

use super::{
    Flags, READS_AT_ONCE,
    board::Reading,
    body::{FOLDER, Version, flag_name},
    wakers::Wakers,
};
use crate::{
    error::Result,
    store::PageOptions,
    words::{FlagName, Limits},
};

/// What the refresh has to look at.
#[derive(Debug)]
pub(super) struct Watched {
    /// By name.
    pub(super) names: Vec<FlagName>,
    /// Set flags that are known, of all.
    pub(super) set: usize,
    /// Whether the number of set flags is at its limit: only a list finds out that others have
    /// cleared some.
    pub(super) is_full: bool,
}

/// What a list of the store has shown.
#[derive(Debug, Default)]
struct Listed {
    /// The blobs of the watched flags.
    watched: BTreeMap<FlagName, Version>,
    /// All flags, at most as many as may be set.
    names: BTreeSet<FlagName>,
}

/// Flags that are compared with a list under one hold of the board's lock.
const CHUNK: usize = 256;

impl Flags {
    /// Finds out what another writer of the store has changed of the watched flags, and tells it.
    ///
    /// Returns whether the store was asked for anything.
    ///
    /// # Errors
    /// Whatever kept the store from answering; flags that could be read were refreshed all the same.
    ///
    /// # Cancel safety
    /// Safe: what was read counts, and the rest is read by the next call.
    pub(crate) async fn refresh(&self, wall: SystemTime) -> Result<bool> {
        let watched = self.inner.board().to_refresh();
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

    /// Reads flags, many at a time. One that cannot be read does not keep the others from being read.
    async fn read_each(&self, names: &[FlagName], wall: SystemTime) -> Result<()> {
        let reads = names.iter().cloned().map(|name| async move {
            let _turn = self.inner.reads.take(&name).await;
            self.inner.observe(&name, wall).await
        });
        let reads = stream::iter(reads).buffer_unordered(READS_AT_ONCE);
        reads
            .fold(Ok(()), async |before, read| before.and(read))
            .await
    }

    async fn refresh_by_list(&self, names: &[FlagName], wall: SystemTime) -> Result<()> {
        // R20: the read begins before the first page is asked for.
        let reading = self.inner.board().read_begins();
        let listed = self.list_all(names).await?;
        self.inner.board().set_flags_are(&listed.names, reading);
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
        listed: &Listed,
        reading: Reading,
    ) -> Vec<FlagName> {
        let (mut changed, mut wakers) = (Vec::new(), Wakers::default());
        {
            let mut board = self.inner.board();
            for name in names {
                let version = listed.watched.get(name);
                if board.list_ends(name, reading, version, &mut wakers) {
                    changed.push(name.clone());
                }
            }
        }
        wakers.wake_in_slices().await;
        changed
    }

    /// Reads the list to its end: half of one says of no flag that it is missing.
    async fn list_all(&self, watched: &[FlagName]) -> Result<Listed> {
        let max = self.inner.board().max_flags();
        let mut listed = Listed::default();
        let mut page = PageOptions {
            size: Limits::PAGE_MAX,
            token: None,
        };
        loop {
            let found = self.inner.store.list(FOLDER, &page).await?;
            for entry in found.entries {
                let Some(name) = flag_name(&entry.name) else {
                    continue;
                };
                if watched.binary_search(&name).is_ok() {
                    let version = Version::new(entry.etag, entry.last_modified);
                    listed.watched.insert(name.clone(), version);
                }
                if listed.names.len() < max {
                    listed.names.insert(name);
                }
            }
            page.token = found.next;
            if page.token.is_none() {
                return Ok(listed);
            }
        }
    }
}
