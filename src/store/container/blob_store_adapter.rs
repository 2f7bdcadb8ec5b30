//! A container in a SQLite or memory store, whose small blobs are held whole.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    sync::Arc,
};

use async_trait::async_trait;

use super::{Container, Content, changed, identifiers};
use crate::{
    error::Result,
    store::{
        Blob, BlobContent, BlobEntry, BlobName, BlobStore, ETag, Page, PageOptions, write_over,
    },
};

/// A folder of a store, or the whole store.
#[derive(Debug)]
pub(in crate::store) struct BlobStoreAdapter {
    store: Arc<dyn BlobStore>,
    /// Empty, or ends in `/`.
    folder: String,
}

impl BlobStoreAdapter {
    pub(in crate::store) fn new(store: Arc<dyn BlobStore>, folder: String) -> Self {
        Self { store, folder }
    }

    fn inner(&self, name: &BlobName) -> Result<BlobName> {
        BlobName::new(&format!("{}{name}", self.folder))
    }

    fn outer(&self, name: &BlobName) -> Result<BlobName> {
        BlobName::new(name.as_str().strip_prefix(&self.folder).unwrap_or_default())
    }

    /// Reads a blob if it still has this ETag.
    async fn unchanged(&self, name: &BlobName, etag: &ETag) -> Result<Blob> {
        match self.store.get(&self.inner(name)?).await? {
            Some(blob) if blob.etag == *etag => Ok(blob),
            _ => Err(changed(self, name)),
        }
    }
}

#[async_trait]
impl Container for BlobStoreAdapter {
    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page> {
        let prefix = format!("{}{prefix}", self.folder);
        let mut listed = self.store.list(&prefix, page).await?;
        for entry in &mut listed.entries {
            entry.name = self.outer(&entry.name)?;
        }
        Ok(listed)
    }

    async fn head(&self, name: &BlobName) -> Result<Option<BlobEntry>> {
        let found = self.store.get(&self.inner(name)?).await?;
        Ok(found.map(|blob| BlobEntry {
            name: name.clone(),
            etag: blob.etag,
            last_modified: blob.last_modified,
            metadata: Some(blob.content.metadata),
        }))
    }

    async fn read(&self, name: &BlobName, etag: &ETag) -> Result<Content> {
        let blob = self.unchanged(name, etag).await?;
        Ok(Content::whole(blob.content.bytes))
    }

    async fn write(
        &self,
        name: &BlobName,
        content: Content,
        metadata: BTreeMap<String, String>,
        over: Option<&ETag>,
    ) -> Result<()> {
        let bytes = content.into_bytes().await?;
        // Metadata of other programs is changed to a form that the store accepts.
        let mut metadata = identifiers(metadata);
        metadata.retain(|_, value| {
            value.len() <= 1024
                && value.trim() == value
                && value.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        });
        let (name, content) = (self.inner(name)?, BlobContent { bytes, metadata });
        write_over(&*self.store, &name, content, over)
            .await
            .map(drop)
    }

    async fn set_metadata(
        &self,
        name: &BlobName,
        metadata: BTreeMap<String, String>,
        etag: &ETag,
    ) -> Result<()> {
        let bytes = self.unchanged(name, etag).await?.content.bytes;
        let content = BlobContent { bytes, metadata };
        let inner = self.inner(name)?;
        self.store.update(&inner, content, etag).await.map(drop)
    }

    async fn delete_unchanged(&self, seen: &BlobEntry) -> Result<bool> {
        let name = self.inner(&seen.name)?;
        self.store.delete(&name, Some(&seen.etag)).await
    }

    fn address(&self) -> String {
        self.to_string()
    }

    /// A folder exists with its first blob.
    async fn ensure(&self) -> Result<()> {
        Ok(())
    }
}

impl Display for BlobStoreAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.folder.strip_suffix('/') {
            Some(folder) => write!(f, "{}#{folder}", self.store),
            None => Display::fmt(&self.store, f),
        }
    }
}
