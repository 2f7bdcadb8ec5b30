//! The flags' blobs of a store: reads, conditional writes and lists.
//!
//! It knows neither watchers nor the time. Whether a flag that it returns has expired is decided by
//! its caller.

use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::document::{ENDED_FOLDER, EndedSet, FOLDER, FOLDERS, StoredFlag, blob_name, ended_name};
use crate::{
    error::{Error, Result},
    store::{BlobEntry, BlobStore, ETag, PageOptions},
    types::{FlagName, Limits},
};

/// The flags' blobs of a store.
#[derive(Debug, Clone)]
pub(super) struct FlagBlobs {
    pub(super) store: Arc<dyn BlobStore>,
}

/// Concurrent reads of flags for a list or a refresh. A page of 1,000 flags takes 32 round trips. A
/// cloud store serves thousands of requests a second.
pub(super) const READS_AT_ONCE: usize = 32;

impl FlagBlobs {
    /// Reads a flag's blob, expired or not, and returns the store's error unchanged.
    pub(super) async fn get(&self, name: &FlagName) -> Result<Option<StoredFlag>> {
        let blob = self.store.get(&blob_name(name)).await?;
        Ok(blob.map(|blob| StoredFlag::new(name, blob)))
    }

    /// Reads a flag's blob, expired or not. The error names the flag and the store.
    pub(super) async fn read(&self, name: &FlagName) -> Result<Option<StoredFlag>> {
        let found = self.get(name).await;
        found.map_err(|error| self.read_error(name, error))
    }

    /// Adds the names of flag and store to the error of a read.
    #[cold]
    pub(super) fn read_error(&self, name: &FlagName, error: Error) -> Error {
        let message = format!("flag `{name}` could not be read from {}", self.store);
        Error::new(error.kind(), message).with_source(error)
    }

    /// Reads the newest set of a flag that is over, and the ETag of its blob. Foreign content
    /// counts as no set.
    pub(super) async fn ended(&self, name: &FlagName) -> Result<(Option<EndedSet>, Option<ETag>)> {
        let found = self.store.get(&ended_name(name)).await;
        let blob = found.map_err(|error| self.read_error(name, error))?;
        let ended = blob.as_ref().and_then(|blob| EndedSet::read(name, blob));
        Ok((ended, blob.map(|blob| blob.etag)))
    }

    /// Lists the blobs of all flags, and of their sets that are over.
    pub(super) async fn list_all(
        &self,
        mut each: impl FnMut(FlagName, bool, BlobEntry),
    ) -> Result<()> {
        let mut token = None;
        loop {
            let size = Limits::PAGE_MAX;
            let page = self
                .store
                .list(FOLDERS, &PageOptions { size, token })
                .await?;
            for entry in page.entries {
                let path = entry.name.as_str();
                let flag = path.strip_prefix(FOLDER);
                let name = flag.or_else(|| path.strip_prefix(ENDED_FOLDER));
                if let Some(name) = name.and_then(|name| FlagName::new(name).ok()) {
                    each(name, flag.is_none(), entry);
                }
            }
            token = page.next;
            if token.is_none() {
                return Ok(());
            }
        }
    }

    /// Reads one page of the flags whose names begin with `prefix`, expired or not, many at a time.
    /// Other blobs in the folder are skipped.
    ///
    /// # Errors
    /// `Invalid` for a malformed prefix or token; any error of the store.
    pub(super) async fn page(
        &self,
        prefix: &str,
        page: &PageOptions,
    ) -> Result<(Vec<StoredFlag>, Option<String>)> {
        check_prefix(prefix)?;
        let listed = self.store.list(&format!("{FOLDER}{prefix}"), page).await?;
        let names = listed.entries.into_iter().filter_map(|entry| {
            let name = entry.name.as_str().strip_prefix(FOLDER)?;
            FlagName::new(name).ok()
        });
        let found = stream::iter(names.map(|name| async move { self.read(&name).await }))
            .buffered(READS_AT_ONCE)
            // Some may have been cleared since.
            .try_filter_map(|found| async { Ok(found) })
            .try_collect();
        Ok((found.await?, listed.next))
    }
}

/// Checks the prefix of a list of flags.
fn check_prefix(prefix: &str) -> Result<()> {
    let part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if prefix.len() <= Limits::NAME && prefix.bytes().all(part) {
        return Ok(());
    }
    let rule = "must be at most 128 of [A-Za-z0-9._-]";
    Err(Error::invalid("prefix", rule))
}
