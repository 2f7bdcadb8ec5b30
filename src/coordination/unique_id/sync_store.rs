//! The store of the next free id: a text with conditional writes.

use std::{
    fmt::{self, Debug, Display},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    error::{Error, ErrorKind, Result},
    store::{BlobName, BlobStore, ETag},
};

/// A small text that several processes share, each through its own handle.
#[async_trait]
pub trait OptimisticSyncStore: Display + Debug + Send + 'static {
    /// Reads the text; `None` if none was written yet.
    ///
    /// # Errors
    /// Any error of the store; [`ErrorKind::Invalid`] for content that is not UTF-8.
    async fn get_data(&mut self) -> Result<Option<String>>;

    /// Writes the text if it has not changed since [`get_data`](Self::get_data) of this handle read
    /// it. Returns whether it was written.
    ///
    /// # Errors
    /// Any error of the store. The write may have happened.
    async fn try_optimistic_write(&mut self, data: &str) -> Result<bool>;
}

/// The text is a blob of a [`BlobStore`].
#[derive(Debug)]
pub struct BlobSyncStore {
    store: Arc<dyn BlobStore>,
    blob: BlobName,
    /// The ETag of the last read or write.
    etag: Option<ETag>,
}

impl BlobSyncStore {
    /// Makes a handle on a blob, which need not exist.
    pub fn new(store: Arc<dyn BlobStore>, blob: BlobName) -> Self {
        let etag = None;
        Self { store, blob, etag }
    }
}

#[async_trait]
impl OptimisticSyncStore for BlobSyncStore {
    async fn get_data(&mut self) -> Result<Option<String>> {
        let found = self.store.get(&self.blob).await?;
        self.etag = found.as_ref().map(|blob| blob.etag.clone());
        let Some(blob) = found else { return Ok(None) };
        match String::from_utf8(blob.content.bytes.to_vec()) {
            Ok(text) => Ok(Some(text)),
            Err(error) => {
                let shown = error.into_bytes();
                let shown = String::from_utf8_lossy(&shown[..shown.len().min(40)]).into_owned();
                let rule = format_args!("in {} must be a text, but is {shown:?}", self.store);
                Err(Error::invalid(self.blob.as_str(), rule))
            }
        }
    }

    async fn try_optimistic_write(&mut self, data: &str) -> Result<bool> {
        let content = Bytes::copy_from_slice(data.as_bytes()).into();
        let written = match &self.etag {
            Some(etag) => self.store.update(&self.blob, content, etag).await,
            None => self.store.create(&self.blob, content).await,
        };
        match written {
            Ok(etag) => {
                self.etag = Some(etag);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Display for BlobSyncStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blob `{}` in {}", self.blob, self.store)
    }
}
