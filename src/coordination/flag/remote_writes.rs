//! Flags that other relays, programs and operators set or clear in the store.
//!
//! A relay that has written a flag tells the other relays of its cluster (C14), which call
//! `refresh_soon`. Other writers tell nothing: `flag_refresh` is the interval. One list of the store
//! shows which watched flags have changed since their last read, and these are read. R20: a list
//! settles nothing by itself.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt as _, stream};

use super::{
    Flags,
    blobs::READS_AT_ONCE,
    document::{Versions, ended_name},
    registry::WatchRegistry,
};
use crate::{error::Result, store::ETag, types::FlagName};

/// The time of the store after which a set that is over is forgotten. A relay that could not read the
/// store for longer than that misses it.
const KEEP_ENDED: Duration = Duration::from_secs(7 * 24 * 3600);
/// Sets that are forgotten by one refresh. Others stay until a later one.
const FORGET_AT_ONCE: usize = 8;

impl Flags {
    /// Refreshes soon: another relay has written a flag, or may have done so.
    pub(crate) fn refresh_soon(&self) {
        self.inner.refresh_requested.notify_one();
    }

    /// Waits until watched flags must be read before the next interval.
    pub(crate) async fn refresh_requested(&self) {
        self.inner.refresh_requested.notified().await;
    }

    /// Waits until a flag was written since the last call: the other relays of the cluster must
    /// refresh.
    pub(crate) async fn written(&self) {
        self.inner.written.notified().await;
    }

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
        let (watched, is_full) = self
            .inner
            .registry(|registry| (registry.watched(), registry.is_full()));
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
        let can_forget = self.inner.blobs.store.conditional_delete();
        for (name, etag) in old.into_iter().filter(|_| can_forget) {
            // If another one was written since, that one stays.
            let store = &self.inner.blobs.store;
            if let Err(error) = store.delete(&ended_name(&name), Some(&etag)).await {
                tracing::debug!(%error, %name, "an old set could not be forgotten");
            }
        }
        Ok(true)
    }

    /// Lists the store, and returns the watched flags that have changed since their last read, and
    /// some sets of other flags that were over long ago.
    async fn list_changed(
        &self,
        watched: &[FlagName],
    ) -> Result<(Vec<FlagName>, Vec<(FlagName, ETag)>)> {
        let mut listed = BTreeMap::<FlagName, Versions>::new();
        let (mut set, mut ended, mut newest) = (0, Vec::new(), SystemTime::UNIX_EPOCH);
        let list = self.inner.blobs.list_all(|name, is_ended, blob| {
            newest = newest.max(blob.last_modified);
            set += usize::from(!is_ended);
            if watched.binary_search(&name).is_ok() {
                let versions = listed.entry(name).or_default();
                match is_ended {
                    true => versions.1 = Some(blob.etag),
                    false => versions.0 = Some(blob.etag),
                }
            } else if is_ended {
                ended.push((name, blob.etag, blob.last_modified));
            }
        });
        list.await?;
        let changed = self.inner.registry(|registry: &mut WatchRegistry| {
            registry.set = set;
            let stale = watched.iter().filter(|name| {
                let versions = listed.remove(name).unwrap_or_default();
                registry.is_stale(name, &versions)
            });
            stale.cloned().collect()
        });
        let old = ended
            .into_iter()
            .filter(|(_, _, over)| {
                newest
                    .duration_since(*over)
                    .is_ok_and(|age| age > KEEP_ENDED)
            })
            .map(|(name, etag, _)| (name, etag))
            .take(FORGET_AT_ONCE);
        Ok((changed, old.collect()))
    }
}
