//! Containers whose blobs others wrote: what a time to live needs of them.
//!
//! A [`BlobStore`](super::BlobStore) holds small values of ours. What lies in a container may be
//! large, so its content goes by in pieces and is never held whole; and what counts is its
//! metadata, which some stores have in a list and others must be asked for, blob by blob.

mod of_store;

#[cfg(test)]
pub(crate) mod contract;

use std::{
    collections::BTreeMap,
    fmt::{Debug, Display},
    sync::Arc,
    time::SystemTime,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{TryStreamExt, stream::BoxStream};

pub(super) use self::of_store::StoreContainer;
use super::{BlobName, ETag, PageOptions};
use crate::error::{Error, ErrorKind, Result};

/// Blobs that others wrote: to find, move and delete them.
#[async_trait]
pub trait Container: Display + Debug + Send + Sync + 'static {
    /// Lists the blobs whose names begin with `prefix`, in the order of the names. Names that no
    /// [`BlobName`] can have are counted and left out.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where the container is not there.
    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<HeadPage>;

    /// Asks for a blob without its content; `None` where there is none. Its metadata is known.
    ///
    /// # Errors
    /// Whatever kept the store from answering.
    async fn head(&self, name: &BlobName) -> Result<Option<Head>>;

    /// Reads a blob's content while it is still the one with this ETag.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where it was changed or is gone; the same may come within the
    /// content.
    async fn read(&self, name: &BlobName, etag: &ETag) -> Result<Content>;

    /// Writes a blob: a new one, or over the one that has the ETag `over`. Names and values of
    /// metadata that the store cannot take are changed to what it can, or left out.
    ///
    /// What is large is written in parts, which some services put together under no condition: there
    /// it is looked before, and what is written between the look and the end is overwritten.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where there is another one; whatever kept it from being written whole,
    /// and there is no part of it then.
    async fn write(
        &self,
        name: &BlobName,
        content: Content,
        metadata: BTreeMap<String, String>,
        over: Option<&ETag>,
    ) -> Result<()>;

    /// Replaces a blob's metadata while it is still the one with this ETag.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where it was changed or is gone.
    async fn set_metadata(
        &self,
        name: &BlobName,
        metadata: BTreeMap<String, String>,
        etag: &ETag,
    ) -> Result<()>;

    /// Deletes a blob if it is still the one that was seen; returns whether it was there. Where
    /// [`Container::deletes_under_condition`] is false it is looked at once more before, at its
    /// metadata too, and what is written between that look and the deletion is deleted.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where it was changed.
    async fn delete_unchanged(&self, seen: &Head) -> Result<bool>;

    /// Returns where it is: another container of whatever account has another address. Holds nothing of
    /// a credential.
    fn address(&self) -> String;

    /// Returns whether the store itself compares and deletes in one step.
    fn deletes_under_condition(&self) -> bool;

    /// Makes the container where it is not there.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where only an operator can.
    async fn ensure(&self) -> Result<()>;
}

/// A blob without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Its name.
    pub name: BlobName,
    /// Its ETag.
    pub etag: ETag,
    /// When it was written, by the store's clock.
    pub last_modified: SystemTime,
    /// Its metadata, with names in lower case; `None` where a list does not have it.
    pub metadata: Option<BTreeMap<String, String>>,
}

impl Head {
    /// Returns whether a blob that was seen is another by now. An ETag may be the content's hash:
    /// other metadata is another blob.
    pub(crate) fn differs_from(&self, seen: &Self) -> bool {
        self.etag != seen.etag || (seen.metadata.is_some() && self.metadata != seen.metadata)
    }
}

/// A part of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeadPage {
    /// The blobs.
    pub heads: Vec<Head>,
    /// Blobs whose names no [`BlobName`] can have.
    pub unnameable: u64,
    /// For the next page; `None` on the last one.
    pub next: Option<String>,
}

/// What a blob holds, in pieces.
pub struct Content {
    /// Bytes of it, together.
    pub size: u64,
    /// `content-type` and its like, by their names as HTTP headers.
    pub headers: BTreeMap<String, String>,
    /// The pieces.
    pub pieces: BoxStream<'static, Result<Bytes>>,
}

impl Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Content")
            .field("size", &self.size)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

impl Content {
    /// Holds it whole.
    ///
    /// # Errors
    /// Whatever ended it early; [`ErrorKind::Unavailable`] where less came than there is.
    pub async fn into_bytes(self) -> Result<Bytes> {
        let size = self.size;
        let whole = self.pieces.try_fold(BytesMut::new(), |mut all, piece| {
            all.extend_from_slice(&piece);
            std::future::ready(Ok(all))
        });
        let whole = whole.await?.freeze();
        check_size(whole.len() as u64, size).map(|()| whole)
    }

    /// Makes content of what is held whole.
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

/// The containers of one account, by their names.
#[derive(Clone)]
pub struct Account {
    scheme: String,
    variables: super::Variables,
    /// An own store stands for an account, with a folder for each container.
    own: Option<Arc<dyn super::BlobStore>>,
}

impl Account {
    /// Opens an account: `az:`, `s3:` or `gs:`, whose containers are the cloud's, or a store of our
    /// own, where each container is a folder.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a URL that names none.
    pub async fn open(url: &str, variables: &BTreeMap<String, String>) -> Result<Self> {
        let scheme = url.trim_end_matches('/');
        let cloud = matches!(scheme, "az:" | "s3:" | "gs:") && cfg!(feature = "cloud");
        let own = match cloud {
            true => None,
            false if url.contains("://") => {
                let shown = url.split('?').next().unwrap_or_default();
                let rule = format_args!("`{shown}` names a container: an account is `az:` alone");
                return Err(Error::invalid("account", rule));
            }
            false => Some(super::open_with(url, variables).await?),
        };
        Ok(Self {
            scheme: scheme.to_owned(),
            variables: variables.clone(),
            own,
        })
    }

    /// Returns a container of the account, which need not be there yet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name that none can have.
    pub fn container(&self, name: &str) -> Result<Arc<dyn Container>> {
        if let Some(own) = &self.own {
            let folder = BlobName::new(name)?;
            let folder = format!("{folder}/");
            return Ok(Arc::new(StoreContainer::new(Arc::clone(own), folder)));
        }
        self.of_cloud(name)
    }

    #[cfg(feature = "cloud")]
    fn of_cloud(&self, name: &str) -> Result<Arc<dyn Container>> {
        let scheme = self.scheme.trim_end_matches(':');
        let found = super::cloud::connect(scheme, &format!("//{name}"), &self.variables);
        let none = || Error::invalid("account", format_args!("`{}` is none", self.scheme));
        Ok(Arc::new(found.ok_or_else(none)??))
    }

    #[cfg(not(feature = "cloud"))]
    fn of_cloud(&self, _name: &str) -> Result<Arc<dyn Container>> {
        let rule = format_args!(
            "`{}` is none with {} variables",
            self.scheme,
            self.variables.len()
        );
        Err(Error::invalid("account", rule))
    }
}

/// Shows no variable: there are credentials among them.
impl Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Account").field(&self.scheme).finish()
    }
}

/// Returns the container that a store's URL names, or an address with its signature; a prefix in it
/// is a folder that stands for one. A cloud's is not looked at.
///
/// # Errors
/// [`ErrorKind::Invalid`] for what names none; [`ErrorKind::NotFound`] for a file that is not there;
/// what kept a store of our own from being opened.
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
    super::must_exist(url)?;
    let store = super::open_with(url, variables).await?;
    Ok(Arc::new(StoreContainer::new(store, folder)))
}

/// Returns the container and the blob that a URL names: `az://CONTAINER/BLOB` and its like,
/// `sqlite:PATH#BLOB`.
///
/// # Errors
/// As [`connect`]; [`ErrorKind::Invalid`] for a URL that names no blob.
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

/// Refuses content that was cut short.
pub(super) fn check_size(passed: u64, size: u64) -> Result<()> {
    if passed == size {
        return Ok(());
    }
    let message = format!("of {size} bytes {passed} came");
    Err(Error::new(ErrorKind::Unavailable, message))
}

/// Makes identifiers of the names of metadata, as Azure and our own stores want them.
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

/// What a store that is not asked under a condition does instead: it looks before.
pub(super) fn changed(container: &dyn Container, name: &BlobName) -> Error {
    let message = format!("blob `{name}` of {container} was changed since it was looked at");
    Error::new(ErrorKind::Conflict, message)
}
