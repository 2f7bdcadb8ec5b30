//! Blob storage of the clouds: Azure Blob Storage, Amazon S3 and services with its protocol, Google
//! Cloud Storage.
//!
//! A write is sent once. If the client retried a write that was applied, it would report a false
//! conflict. So a conflict here proves that nothing was written, and a write without an answer is
//! an error with unknown outcome. Reads are retried. A service may lack the condition of a
//! deletion; such a request is never sent without its condition.

pub(crate) mod azure_rest;
mod container;
pub(crate) mod environment;
mod error;
mod probe;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::{
    Attribute, AttributeValue, Attributes, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutResult, UpdateVersion, aws::AmazonS3, client::HttpClient, list::PaginatedListStore,
    path::Path,
};
use tokio::sync::OnceCell;

pub(super) use self::environment::{connect, container_at, open};
use self::{azure_rest::AzureRest, error::names_the_container};
use super::{
    Blob, BlobContent, BlobName, BlobStore, ETag, Page, PageOptions,
    container::{Container, changed},
};
use crate::{
    base::{request_error::RequestError, text::opaque_debug},
    error::{Error, ErrorKind, Result},
};

/// A container or bucket, or a prefix in it.
pub struct CloudStore {
    service: Service,
    bucket: String,
    /// The bucket's address, for messages and to compare containers. It contains no credential.
    url: String,
    /// Empty, or ends in `/`.
    prefix: String,
    /// For reads, which are retried, and for content in pieces.
    reads: Arc<dyn Client>,
    /// For writes, which are sent once.
    writes: Arc<dyn Client>,
    /// For requests that the clients do not support.
    http: HttpClient,
    /// Set when the service was shown to support conditional writes.
    conditions: OnceCell<()>,
}

/// A client that lists by page as well.
trait Client: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Client for T {}

/// The service of a store, with what signs the requests that the clients do not support.
enum Service {
    Azure(AzureRest),
    S3(Arc<AmazonS3>),
    Gcs,
}

impl CloudStore {
    /// Lists one blob, to refuse a store that does not exist or cannot be accessed.
    async fn check(&self) -> Result<()> {
        let one = PageOptions {
            size: 1,
            token: None,
        };
        Container::list(self, "", &one).await.map(drop)
    }

    /// Returns a name's path in the container, without any encoding.
    fn path(&self, name: &BlobName) -> Result<Path> {
        let full = format!("{}{name}", self.prefix);
        Path::parse(&full).map_err(|error| {
            let rule = format_args!("`{name}` is no name that {self} takes: {error}");
            Error::invalid("blob", rule)
        })
    }

    async fn put(&self, name: &BlobName, content: BlobContent, mode: PutMode) -> Result<ETag> {
        let BlobContent { bytes, metadata } = content.checked()?;
        let put = self.put_whole(name, bytes, mode, attributes(metadata));
        self.etag(put.await?.e_tag, name)
    }

    async fn put_whole(
        &self,
        name: &BlobName,
        bytes: Bytes,
        mode: PutMode,
        attributes: Attributes,
    ) -> Result<PutResult> {
        let options = PutOptions {
            mode,
            attributes,
            ..PutOptions::default()
        };
        let path = self.path(name)?;
        let put = self.writes.put_opts(&path, bytes.into(), options).await;
        put.map_err(|error| self.failed(error, name))
    }

    /// Google's condition is the object's generation and not its ETag. Returns the generation that
    /// has this ETag now.
    async fn version(&self, name: &BlobName, etag: &ETag) -> Result<UpdateVersion> {
        if !matches!(self.service, Service::Gcs) {
            return Ok(UpdateVersion {
                e_tag: Some(etag.as_str().to_owned()),
                version: None,
            });
        }
        let head = self.reads.head(&self.path(name)?).await;
        let head = head.map_err(|error| match error {
            object_store::Error::NotFound { .. } => changed(self, name),
            error => self.failed(error, name),
        })?;
        if head.e_tag.as_deref() != Some(etag.as_str()) {
            return Err(changed(self, name));
        }
        Ok(UpdateVersion {
            e_tag: head.e_tag,
            version: head.version,
        })
    }

    /// Deletes a blob with one request.
    async fn delete_path(&self, path: &Path, name: &BlobName) -> Result<bool> {
        match self.writes.delete(path).await {
            Ok(()) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.failed(error, name)),
        }
    }

    /// Converts the client's error. Text that may contain a signature is dropped.
    fn failed(&self, error: object_store::Error, name: &BlobName) -> Error {
        let error = RequestError::from(error);
        if names_the_container(&error) {
            return self.no_container(error);
        }
        error.about(format_args!("blob `{name}` of {self}"))
    }

    fn no_container(&self, error: RequestError) -> Error {
        let what = match self.service {
            Service::Azure(_) => "container",
            Service::S3(_) | Service::Gcs => "bucket",
        };
        let message = format!(
            "{self}: there is no {what} `{}`; create it first",
            self.bucket
        );
        Error::new(ErrorKind::NotFound, message).with_source(error)
    }

    fn etag(&self, etag: Option<String>, name: &BlobName) -> Result<ETag> {
        etag.map(|etag| ETag::new(&etag)).ok_or_else(|| {
            let message = format!("{self} answered without an ETag of blob `{name}`");
            Error::new(ErrorKind::Internal, message)
        })
    }

    fn not_listed(&self, error: RequestError) -> Error {
        match error.kind() == ErrorKind::NotFound {
            true => self.no_container(error),
            false => error.about(format_args!("{self}")),
        }
    }

    /// Returns the blob's name without the prefix; `None` for an invalid name.
    fn own_name(&self, name: &str) -> Option<BlobName> {
        BlobName::new(name.strip_prefix(&self.prefix)?).ok()
    }
}

#[async_trait]
impl BlobStore for CloudStore {
    async fn get(&self, name: &BlobName) -> Result<Option<Blob>> {
        let path = self.path(name)?;
        let found = match self.reads.get(&path).await {
            Ok(found) => found,
            Err(error @ object_store::Error::NotFound { .. }) => {
                let error = RequestError::from(error);
                return match names_the_container(&error) {
                    true => Err(self.no_container(error)),
                    false => Ok(None),
                };
            }
            Err(error) => return Err(self.failed(error, name)),
        };
        let (meta, attributes) = (found.meta.clone(), found.attributes.clone());
        let bytes = found
            .bytes()
            .await
            .map_err(|error| self.failed(error, name))?;
        Ok(Some(Blob {
            content: BlobContent {
                bytes,
                metadata: metadata(&attributes),
            },
            etag: self.etag(meta.e_tag, name)?,
            last_modified: seconds(meta.last_modified.timestamp()),
        }))
    }

    async fn create(&self, name: &BlobName, content: BlobContent) -> Result<ETag> {
        self.check_conditions().await?;
        self.put(name, content, PutMode::Create).await
    }

    async fn update(&self, name: &BlobName, content: BlobContent, etag: &ETag) -> Result<ETag> {
        self.check_conditions().await?;
        let version = self.version(name, etag).await?;
        self.put(name, content, PutMode::Update(version)).await
    }

    async fn delete(&self, name: &BlobName, etag: Option<&ETag>) -> Result<bool> {
        let path = self.path(name)?;
        if let Service::Azure(azure_rest) = &self.service {
            // The client would send a batch of one.
            return match azure_rest.delete(&path, etag).await {
                // A missing blob also fails the condition.
                Err(error) if etag.is_some() && error.kind() == ErrorKind::Conflict => {
                    match self.head(name).await? {
                        Some(_) => Err(changed(self, name)),
                        None => Ok(false),
                    }
                }
                Err(error) if names_the_container(&error) => Err(self.no_container(error)),
                deleted => deleted.map_err(|e| e.about(format_args!("blob `{name}` of {self}"))),
            };
        }
        if etag.is_some() {
            let message = format!("{self} does not support conditional deletion");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        // S3 reports success for a missing blob.
        if matches!(self.service, Service::S3(_)) && self.head(name).await?.is_none() {
            return Ok(false);
        }
        self.delete_path(&path, name).await
    }

    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page> {
        Container::list(self, prefix, page).await
    }

    fn conditional_delete(&self) -> bool {
        matches!(self.service, Service::Azure(_))
    }
}

fn attributes(metadata: BTreeMap<String, String>) -> Attributes {
    let pairs = metadata.into_iter().map(|(name, value)| {
        let value: AttributeValue = value.into();
        (Attribute::Metadata(name.into()), value)
    });
    pairs.collect()
}

fn metadata(attributes: &Attributes) -> BTreeMap<String, String> {
    let pairs = attributes.iter().filter_map(|(name, value)| match name {
        Attribute::Metadata(name) => Some((name.to_ascii_lowercase(), value.to_string())),
        _ => None,
    });
    pairs.collect()
}

/// Headers have whole seconds, lists a finer time. The same blob must have the same time.
fn seconds(since: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(since).unwrap_or_default())
}

impl fmt::Display for CloudStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.service {
            Service::Azure(_) => "az",
            Service::S3(_) => "s3",
            Service::Gcs => "gs",
        };
        write!(f, "{scheme}://{}", self.bucket)?;
        match self.prefix.strip_suffix('/') {
            Some(prefix) => write!(f, "/{prefix}"),
            None => Ok(()),
        }
    }
}

opaque_debug!(CloudStore: url);
