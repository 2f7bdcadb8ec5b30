//! Containers with blobs of other programs, for sweeping.
//!
//! A [`BlobStore`](super::BlobStore) holds small values of this crate. Blobs in a container may be
//! large, so their content is read in pieces and never held whole. Some stores return metadata in a
//! list; others need a request for each blob.

mod blob_store_adapter;

#[cfg(test)]
pub(crate) mod contract;

use std::{
    collections::BTreeMap,
    fmt::{Debug, Display},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{TryStreamExt, stream::BoxStream};

pub(super) use self::blob_store_adapter::BlobStoreAdapter;
use super::{BlobEntry, BlobName, ETag, Page, PageOptions};
use crate::{
    base::text::opaque_debug,
    error::{Error, ErrorKind, Result},
};

/// The blobs of other programs: to list, move and delete them.
#[async_trait]
pub trait Container: Display + Debug + Send + Sync + 'static {
    /// Lists the blobs whose names begin with `prefix`, in the order of the names. Names that are
    /// no valid [`BlobName`] are counted and left out.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the container does not exist.
    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page>;

    /// Reads a blob's properties and metadata without its content; `None` if there is no blob.
    ///
    /// # Errors
    /// Any error of the store.
    async fn head(&self, name: &BlobName) -> Result<Option<BlobEntry>>;

    /// Reads a blob's content if it still has this ETag.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if it was changed or deleted. The content may end with the same
    /// error.
    async fn read(&self, name: &BlobName, etag: &ETag) -> Result<Content>;

    /// Writes a new blob, or overwrites the blob with the ETag `over`. Metadata that the store
    /// cannot hold is changed to a valid form or left out.
    ///
    /// Large content is written in parts, which some services combine without a condition. There
    /// the blob is read before, and a write between that read and the end is overwritten.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another blob exists; any error of the transfer, after which no
    /// part of the blob is visible.
    async fn write(
        &self,
        name: &BlobName,
        content: Content,
        metadata: BTreeMap<String, String>,
        over: Option<&ETag>,
    ) -> Result<()>;

    /// Replaces a blob's metadata if it still has this ETag.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if it was changed or deleted.
    async fn set_metadata(
        &self,
        name: &BlobName,
        metadata: BTreeMap<String, String>,
        etag: &ETag,
    ) -> Result<()>;

    /// Deletes a blob if it has not changed since it was `seen`. Returns whether it existed. Where
    /// the store does not compare and delete in one step, the blob and its metadata are read once
    /// more first, and a write between that read and the deletion is deleted.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if it was changed.
    async fn delete_unchanged(&self, seen: &BlobEntry) -> Result<bool>;

    /// Returns the address, which differs between containers of all accounts. It contains no
    /// credential.
    fn address(&self) -> String;

    /// Creates the container if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if only an operator can create it.
    async fn ensure(&self) -> Result<()>;
}

#[cfg(any(feature = "cloud", test))]
impl BlobEntry {
    /// Returns whether a blob has changed since it was `seen`. The metadata is compared as well,
    /// because an ETag may be the content's hash.
    pub(crate) fn differs_from(&self, seen: &Self) -> bool {
        self.etag != seen.etag || (seen.metadata.is_some() && self.metadata != seen.metadata)
    }
}

/// A blob's content, in pieces.
pub struct Content {
    /// Its size in bytes.
    pub size: u64,
    /// `content-type` and similar properties, by their HTTP header names.
    pub headers: BTreeMap<String, String>,
    /// The pieces.
    pub pieces: BoxStream<'static, Result<Bytes>>,
}

opaque_debug!(Content: size, headers);

impl Content {
    /// Reads the content whole.
    ///
    /// # Errors
    /// The error that ended it early; [`ErrorKind::Unavailable`] if fewer bytes arrived than its
    /// size.
    pub async fn into_bytes(self) -> Result<Bytes> {
        let size = self.size;
        let whole = self.pieces.try_fold(BytesMut::new(), |mut all, piece| {
            all.extend_from_slice(&piece);
            std::future::ready(Ok(all))
        });
        let whole = whole.await?.freeze();
        check_size(whole.len() as u64, size).map(|()| whole)
    }

    /// Makes content of bytes.
    pub fn whole(bytes: Bytes) -> Self {
        let size = bytes.len() as u64;
        let piece = futures_util::stream::once(async { Ok(bytes) });
        Self {
            size,
            headers: BTreeMap::new(),
            pieces: Box::pin(piece),
        }
    }
}

/// The containers of one account, by their names. `Debug` shows no variables, because there are
/// credentials among them.
#[derive(Clone)]
pub enum Account {
    /// A SQLite or memory store in place of an account, with a folder for each container.
    Own(Arc<dyn super::BlobStore>),
    /// A cloud: `az:`, `s3:` or `gs:`, and the variables with its credential.
    #[cfg(feature = "cloud")]
    Cloud(String, BTreeMap<String, String>),
}

impl Account {
    /// Opens an account: `az:`, `s3:` or `gs:` with the cloud's containers, or a SQLite or memory
    /// store, where each container is a folder.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a URL of no account.
    pub async fn open(url: &str, variables: &BTreeMap<String, String>) -> Result<Self> {
        super::check_url(url)?;
        #[cfg(feature = "cloud")]
        if let scheme @ ("az:" | "s3:" | "gs:") = url.trim_end_matches('/') {
            return Ok(Self::Cloud(scheme.to_owned(), variables.clone()));
        }
        if url.contains("://") {
            let shown = url.split('?').next().unwrap_or_default();
            let rule = format_args!("`{shown}` names a container: an account is `az:` alone");
            return Err(Error::invalid("account", rule));
        }
        super::open_with(url, variables).await.map(Self::Own)
    }

    /// Returns a container of the account, which need not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name that no container can have.
    pub fn container(&self, name: &str) -> Result<Arc<dyn Container>> {
        match self {
            Self::Own(own) => {
                let folder = format!("{}/", BlobName::new(name)?);
                Ok(Arc::new(BlobStoreAdapter::new(Arc::clone(own), folder)))
            }
            #[cfg(feature = "cloud")]
            Self::Cloud(scheme, variables) => {
                let url = format!("{scheme}//{name}");
                Ok(Arc::new(super::cloud::connect(&url, variables)?))
            }
        }
    }
}

impl Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Own(own) => f.debug_tuple("Account").field(own).finish(),
            #[cfg(feature = "cloud")]
            Self::Cloud(scheme, _) => f.debug_tuple("Account").field(scheme).finish(),
        }
    }
}

/// Returns the container of a store's URL or of a signed address. A prefix in it is a folder that
/// is used as a container. A cloud's container is not accessed.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a URL of no container; any error from opening a SQLite store.
pub async fn connect(
    url: &str,
    variables: &BTreeMap<String, String>,
) -> Result<Arc<dyn Container>> {
    #[cfg(feature = "cloud")]
    if let Some(found) = super::cloud::container_at(url, variables) {
        return Ok(Arc::new(found?));
    }
    let (url, folder) = url.split_once('#').unwrap_or((url, ""));
    let folder = match folder {
        "" => String::new(),
        folder => format!("{}/", BlobName::new(folder.trim_end_matches('/'))?),
    };
    let store = super::open_or(url, variables, false).await?;
    Ok(Arc::new(BlobStoreAdapter::new(store, folder)))
}

/// Returns the container and the blob of a URL: `az://CONTAINER/BLOB` and similar, or
/// `sqlite:PATH#BLOB`.
///
/// # Errors
/// As [`connect`]; [`ErrorKind::Invalid`] for a URL without a blob.
#[cfg(feature = "sweep")]
pub(crate) async fn open_blob(
    url: &str,
    variables: &BTreeMap<String, String>,
) -> Result<(Arc<dyn Container>, BlobName)> {
    let none = || {
        let shown = url.split('?').next().unwrap_or_default();
        let rule =
            format_args!("`{shown}` names no blob: `az://CONTAINER/BLOB`, `sqlite:PATH#BLOB`");
        Error::invalid("blob", rule)
    };
    let (container, blob) = match url.split_once("://") {
        Some((scheme, rest)) => {
            let (container, blob) = rest.split_once('/').ok_or_else(none)?;
            (format!("{scheme}://{container}"), blob)
        }
        None => url
            .split_once('#')
            .map(|(s, b)| (s.to_owned(), b))
            .ok_or_else(none)?,
    };
    let name = BlobName::new(blob)?;
    Ok((connect(&container, variables).await?, name))
}

/// Refuses truncated content.
pub(super) fn check_size(passed: u64, size: u64) -> Result<()> {
    if passed == size {
        return Ok(());
    }
    let message = format!("the content was cut: {passed} of {size} bytes arrived");
    Err(Error::new(ErrorKind::Unavailable, message))
}

/// Changes names of metadata to identifiers, as Azure, SQLite and memory stores require.
pub(super) fn identifiers(metadata: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let named = metadata.into_iter().map(|(name, value)| {
        let fits = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let mut name: String = name.chars().map(fits).take(64).collect();
        if name.starts_with(|c: char| c.is_ascii_digit()) || name.is_empty() {
            name.insert(0, '_');
            name.truncate(64);
        }
        (name, value)
    });
    named.collect()
}

/// The conflict found by a read before an unconditional request.
pub(super) fn changed(container: &dyn Container, name: &BlobName) -> Error {
    let message = format!("blob `{name}` of {container} was changed since it was read");
    Error::new(ErrorKind::Conflict, message)
}
