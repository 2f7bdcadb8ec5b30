//! A store in memory: for tests, demonstrations, and relays whose flags may be lost at a restart.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Bound,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use async_trait::async_trait;

use super::{
    Blob, BlobContent, BlobEntry, BlobName, BlobStore, ETag, Page, PageOptions, changed, exists,
};
use crate::{base::sync::lock, error::Result};

/// Blobs in this process's memory. Clones share them.
#[derive(Clone)]
pub struct MemoryStore {
    blobs: Arc<Mutex<Blobs>>,
    wall: Arc<dyn Fn() -> SystemTime + Send + Sync>,
}

#[derive(Default)]
struct Blobs {
    by_name: BTreeMap<BlobName, Blob>,
    /// Number of writes so far, which is the next ETag.
    writes: u64,
}

impl MemoryStore {
    /// Makes an empty store.
    pub fn new() -> Self {
        Self::with_wall(crate::base::clock::wall)
    }

    /// Makes an empty store that takes `last_modified` from `wall`.
    pub fn with_wall(wall: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self {
            blobs: Arc::default(),
            wall: Arc::new(wall),
        }
    }
}

impl Blobs {
    fn etag_of(&self, name: &BlobName) -> Option<&ETag> {
        self.by_name.get(name).map(|blob| &blob.etag)
    }

    fn put(&mut self, name: &BlobName, content: BlobContent, last_modified: SystemTime) -> ETag {
        self.writes += 1;
        let etag = ETag::new(&format!("{:x}", self.writes));
        let blob = Blob {
            content,
            etag: etag.clone(),
            last_modified,
        };
        self.by_name.insert(name.clone(), blob);
        etag
    }
}

#[async_trait]
impl BlobStore for MemoryStore {
    async fn get(&self, name: &BlobName) -> Result<Option<Blob>> {
        Ok(lock(&self.blobs).by_name.get(name).cloned())
    }

    async fn create(&self, name: &BlobName, content: BlobContent) -> Result<ETag> {
        let content = content.checked()?;
        let now = (self.wall)();
        let mut blobs = lock(&self.blobs);
        if blobs.etag_of(name).is_some() {
            return Err(exists(self, name));
        }
        Ok(blobs.put(name, content, now))
    }

    async fn update(&self, name: &BlobName, content: BlobContent, etag: &ETag) -> Result<ETag> {
        let content = content.checked()?;
        let now = (self.wall)();
        let mut blobs = lock(&self.blobs);
        if blobs.etag_of(name) != Some(etag) {
            return Err(changed(self, name));
        }
        Ok(blobs.put(name, content, now))
    }

    async fn delete(&self, name: &BlobName, etag: Option<&ETag>) -> Result<bool> {
        let mut blobs = lock(&self.blobs);
        let Some(found) = blobs.etag_of(name) else {
            return Ok(false);
        };
        if etag.is_some_and(|etag| etag != found) {
            return Err(changed(self, name));
        }
        blobs.by_name.remove(name);
        Ok(true)
    }

    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page> {
        let size = page.size.max(1);
        let start = match page.after(prefix)? {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(prefix),
        };
        let blobs = lock(&self.blobs);
        let entries = blobs
            .by_name
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(name, _)| name.as_str().starts_with(prefix))
            .take(size + 1)
            .map(|(name, blob)| BlobEntry {
                name: name.clone(),
                etag: blob.etag.clone(),
                last_modified: blob.last_modified,
                metadata: None,
            });
        Ok(Page::truncated(entries.collect(), size))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory:")
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStore")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::contract;

    #[tokio::test]
    async fn the_memory_store_keeps_the_contract() {
        contract::check(&MemoryStore::new()).await;
        let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::new());
        contract::check_races(&[Arc::clone(&store), store]).await;
    }
}
