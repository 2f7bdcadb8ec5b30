//! The refresh: it finds changes of other writers.
//!
//! At the interval, and when another relay has written, one list of the store shows which watched
//! flags have changed since their last read. These are read. R20: a list settles nothing by itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt as _, stream};

use super::{
    Flags,
    blobs::{ListedBlob, READS_AT_ONCE},
    document::Version,
    entry::Versions,
};
use crate::{error::Result, types::FlagName};

/// Flags that are compared with a list under one hold of the registry's lock.
const CHUNK: usize = 256;

/// The time of the store after which a set that is over is forgotten. A relay that could not read the
/// store for longer than that misses it.
const KEEP_ENDED: u64 = 7 * 24 * 3600;
/// Sets that are forgotten by one refresh, at the same time.
const FORGET_AT_ONCE: usize = 32;
/// Limit for them: the next refresh must not wait.
const FORGET_TIMEOUT: Duration = Duration::from_secs(1);

/// Sets that were over long ago by the clock of the store.
type OldSets = Vec<(FlagName, Version)>;

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
        let (watched, is_full) = {
            let registry = self.inner.registry();
            (registry.watched(), registry.set.is_full())
        };
        if watched.is_empty() && !is_full {
            return Ok(false);
        }
        let (changed, old) = self.list_changed(&watched).await?;
        let reads = changed.into_iter().map(|name| async move {
            let _guard = self.inner.lock_to_read(&name).await;
            self.inner.read(&name, wall).await
        });
        stream::iter(reads)
            .buffer_unordered(READS_AT_ONCE)
            .fold(Ok(()), async |before, read| before.and(read))
            .await?;
        // After the reads: watchers wait for these.
        self.forget_ended(old).await;
        Ok(true)
    }

    /// Lists the store, and returns the watched flags that have changed since their last read, and
    /// some old sets of flags that are not watched.
    async fn list_changed(&self, watched: &[FlagName]) -> Result<(Vec<FlagName>, OldSets)> {
        let (began, max) = {
            let mut registry = self.inner.registry();
            (registry.next_sequence(), registry.set.max())
        };
        let mut listed = BTreeMap::<FlagName, Versions>::new();
        let (mut names, mut ended, mut newest) = (BTreeSet::new(), OldSets::new(), 0);
        let each = |blob: ListedBlob| {
            newest = newest.max(blob.version.seconds());
            let is_watched = watched.binary_search(&blob.name).is_ok();
            if !blob.ended && names.len() < max {
                names.insert(blob.name.clone());
            }
            if is_watched {
                let versions = listed.entry(blob.name).or_default();
                match blob.ended {
                    true => versions.1 = Some(blob.version),
                    false => versions.0 = Some(blob.version),
                }
            } else if blob.ended {
                ended.push((blob.name, blob.version));
            }
        };
        self.inner.blobs.list_all(each).await?;
        self.inner.registry().set.replace(&names, began);
        let mut changed = Vec::new();
        for chunk in watched.chunks(CHUNK) {
            {
                let registry = self.inner.registry();
                let stale = chunk.iter().filter(|name| {
                    let versions = listed.remove(name).unwrap_or_default();
                    registry.is_stale(name, &versions)
                });
                changed.extend(stale.cloned());
            }
            tokio::task::yield_now().await;
        }
        ended.retain(|(_, version)| version.seconds() + KEEP_ENDED < newest);
        ended.truncate(FORGET_AT_ONCE);
        Ok((changed, ended))
    }

    /// Removes sets that were over long ago. Those that could not be removed in time stay until a
    /// later refresh.
    async fn forget_ended(&self, old: OldSets) {
        let can_tell = self.inner.blobs.store.capabilities().conditional_delete;
        if old.is_empty() || !can_tell {
            return;
        }
        let deletes = stream::iter(old).for_each_concurrent(None, |(name, version)| async move {
            if let Err(error) = self.inner.blobs.forget_ended(&name, &version).await {
                tracing::debug!(%error, %name, "an old set could not be forgotten");
            }
        });
        let in_time = tokio::time::timeout(FORGET_TIMEOUT, deletes).await;
        if in_time.is_err() {
            tracing::debug!("old sets could not be forgotten in time");
        }
    }
}
