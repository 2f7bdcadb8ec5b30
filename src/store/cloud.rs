//! Blob storage of the clouds: Azure Blob Storage, Amazon S3 and what speaks its protocol, Google
//! Cloud Storage.
//!
//! A write is sent once: tried again by the client, one that was applied would come back as a
//! conflict that is none. So a conflict here says for certain that nothing was written, and a write
//! without an answer is an error that leaves it open. Reads are tried again. What a service does not
//! do under a condition is said in the store's capabilities and never done without one.

mod container;
mod direct;
mod environment;
mod error;
mod listing;
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
use object_store::{
    Attribute, AttributeValue, Attributes, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, RetryConfig, UpdateVersion,
    aws::AmazonS3,
    azure::MicrosoftAzure,
    client::HttpClient,
    gcp::GoogleCloudStorage,
    list::{PaginatedListOptions, PaginatedListStore},
    path::Path,
};
use tokio::sync::OnceCell;

pub(super) use self::environment::{connect, container_at, open};
use self::{direct::Direct, error::CloudError, listing::Listing};
use super::{
    Blob, BlobContent, BlobEntry, BlobName, BlobStore, Capabilities, ETag, Page, PageOptions,
};
use crate::{
    error::{Error, ErrorKind, Result},
    https::RequestTimeout,
};

/// A container or bucket, or what lies under a prefix in one.
pub struct CloudStore {
    service: Service,
    bucket: String,
    /// Where the bucket is, for people and to be told from others: without a credential.
    url: String,
    /// Empty, or it ends in `/`.
    prefix: String,
    reads: Arc<dyn Client>,
    writes: Arc<dyn Client>,
    /// What others wrote, which may be large: patient from piece to piece.
    contents: Arc<dyn Client>,
    /// Whose credential is asked for before anything else is.
    holder: Holder,
    /// For what the clients do not ask.
    http: HttpClient,
    /// For what the client cannot ask: on Azure.
    direct: Option<Direct>,
    /// Set when the service has shown that it keeps the conditions of writes.
    conditions: OnceCell<()>,
    /// Whether the service keeps the conditions of deletions, once that is known.
    deletions: OnceCell<bool>,
}

/// Whose store it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    Azure,
    S3,
    Gcs,
}

/// A client that lists by page as well.
trait Client: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Client for T {}

/// What a client is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Reads,
    Writes,
    Contents,
}

/// Who has the credential.
enum Holder {
    Azure(Arc<MicrosoftAzure>),
    S3(Arc<AmazonS3>),
    Gcs(Arc<GoogleCloudStorage>),
}

/// How long a request may take; of what is large, each piece.
const REQUEST: Duration = Duration::from_secs(10);
const PIECE: Duration = Duration::from_secs(30);
/// How long a read that fails is tried again.
const RETRY: Duration = Duration::from_secs(15);
/// How long large content may take, over all its tries.
const CONTENT: Duration = Duration::from_secs(12 * 3600);
/// How long a credential may take that the environment only leads to.
const CREDENTIAL: Duration = Duration::from_secs(10);
const READS: usize = 3;
const RETRY_AFTER: Duration = Duration::from_millis(200);

impl CloudStore {
    /// Makes one of a client for each purpose.
    fn new<T: Client>(
        service: Service,
        (bucket, prefix): (String, String),
        url: String,
        (holder, http): (Holder, HttpClient),
        [reads, writes, contents]: [Arc<T>; 3],
    ) -> Self {
        Self {
            service,
            bucket,
            url,
            prefix,
            reads,
            writes,
            contents,
            holder,
            http,
            direct: None,
            conditions: OnceCell::new(),
            deletions: OnceCell::new(),
        }
    }

    /// Refuses a store that is not there, or that may not be used: by a list of one.
    async fn check(&self) -> Result<()> {
        self.check_credential().await?;
        let one = PageOptions {
            size: 1,
            token: None,
        };
        self.list("", &one).await.map(drop)
    }

    /// Where no credential stands in the environment the client asks around on this machine's
    /// network; what comes of that is told from the store's own answers.
    async fn check_credential(&self) -> Result<()> {
        let asked = async {
            match &self.holder {
                Holder::Azure(client) => client.credentials().get_credential().await.map(drop),
                Holder::S3(client) => client.credentials().get_credential().await.map(drop),
                Holder::Gcs(client) => client.credentials().get_credential().await.map(drop),
            }
        };
        let cause = match tokio::time::timeout(CREDENTIAL, asked).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => CloudError::from(error),
            Err(_) => CloudError::TimedOut,
        };
        let message = format!(
            "{self} has no credential: the environment has none, and this machine's own identity \
             was not given one"
        );
        // Who gives identities out may be away for a while.
        let kind = match cause.may_pass() {
            true => ErrorKind::Unavailable,
            false => ErrorKind::Denied,
        };
        Err(Error::new(kind, message).with_source(cause))
    }

    /// Returns what a name is in the container: as it stands, nothing of it encoded.
    fn path(&self, name: &BlobName) -> Result<Path> {
        let full = format!("{}{name}", self.prefix);
        Path::parse(&full).map_err(|error| {
            let rule = format_args!("`{name}` is no name that {self} takes: {error}");
            Error::invalid("blob", rule)
        })
    }

    async fn put(&self, name: &BlobName, content: BlobContent, mode: PutMode) -> Result<ETag> {
        let content = content.checked()?;
        let path = self.path(name)?;
        let options = PutOptions {
            mode,
            attributes: attributes(content.metadata),
            ..PutOptions::default()
        };
        let put = self.writes.put_opts(&path, content.bytes.into(), options);
        let put = put.await.map_err(|error| self.failed(error, name))?;
        self.etag(put.e_tag, name)
    }

    /// Google's condition is the object's generation, and not its ETag: the one that has this ETag
    /// now.
    async fn version(&self, name: &BlobName, etag: &ETag) -> Result<UpdateVersion> {
        if self.service != Service::Gcs {
            return Ok(UpdateVersion {
                e_tag: Some(etag.as_str().to_owned()),
                version: None,
            });
        }
        let head = self.reads.head(&self.path(name)?).await;
        let head = head.map_err(|error| match error {
            object_store::Error::NotFound { .. } => self.conflict(name),
            error => self.failed(error, name),
        })?;
        if head.e_tag.as_deref() != Some(etag.as_str()) {
            return Err(self.conflict(name));
        }
        Ok(UpdateVersion {
            e_tag: head.e_tag,
            version: head.version,
        })
    }

    /// Deletes what is there, by one request.
    async fn delete_path(&self, path: &Path, name: &BlobName) -> Result<bool> {
        match self.writes.delete(path).await {
            Ok(()) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.failed(error, name)),
        }
    }

    /// Deletes under a condition where the service has shown that it keeps it.
    async fn delete_unless_changed(
        &self,
        path: &Path,
        name: &BlobName,
        etag: &ETag,
    ) -> Result<bool> {
        let supported = match self.s3() {
            Some(client) => self.keeps_conditions_of_deletes(client).await?,
            None => false,
        };
        let Some(client) = self.s3().filter(|_| supported) else {
            let message = format!("{self} does not delete under a condition");
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let deleted = self.delete_if(client, path, etag).await;
        deleted.map_err(|error| error.of(format_args!("blob `{name}` of {self}")))
    }

    async fn is_there(&self, path: &Path, name: &BlobName) -> Result<bool> {
        match self.reads.head(path).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.failed(error, name)),
        }
    }

    fn conflict(&self, name: &BlobName) -> Error {
        let message = format!("blob `{name}` of {self} is not the one that was read");
        Error::new(ErrorKind::Conflict, message)
    }

    /// Turns the client's error into ours: nothing of it is passed on that may hold a signature.
    fn failed(&self, error: object_store::Error, name: &BlobName) -> Error {
        let error = CloudError::from(error);
        if error.names_the_container() {
            return self.no_container(error);
        }
        error.of(format_args!("blob `{name}` of {self}"))
    }

    fn no_container(&self, error: CloudError) -> Error {
        let what = match self.service {
            Service::Azure => "container",
            Service::S3 | Service::Gcs => "bucket",
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

    fn not_listed(&self, error: CloudError) -> Error {
        match error.kind() == ErrorKind::NotFound {
            true => self.no_container(error),
            false => error.of(format_args!("{self}")),
        }
    }

    fn page(&self, listing: Listing) -> Page {
        let entries = listing.blobs.into_iter().filter_map(|blob| {
            Some(BlobEntry {
                name: self.own_name(&blob.name)?,
                etag: blob.etag,
                last_modified: blob.last_modified,
            })
        });
        Page {
            entries: entries.collect(),
            next: listing.next,
        }
    }

    /// Returns what a blob of the container is called here; `None` for what is no name of ours.
    fn own_name(&self, name: &str) -> Option<BlobName> {
        BlobName::new(name.strip_prefix(&self.prefix)?).ok()
    }

    /// Returns an entry of a list; `None` for a name that is none of ours.
    fn entry(&self, meta: ObjectMeta) -> Result<Option<BlobEntry>> {
        let Some(name) = self.own_name(meta.location.as_ref()) else {
            return Ok(None);
        };
        Ok(Some(BlobEntry {
            etag: self.etag(meta.e_tag, &name)?,
            last_modified: seconds(meta.last_modified.timestamp()),
            name,
        }))
    }
}

#[async_trait]
impl BlobStore for CloudStore {
    async fn get(&self, name: &BlobName) -> Result<Option<Blob>> {
        let path = self.path(name)?;
        let found = match self.reads.get_opts(&path, GetOptions::default()).await {
            Ok(found) => found,
            Err(error @ object_store::Error::NotFound { .. }) => {
                let error = CloudError::from(error);
                return match error.names_the_container() {
                    true => Err(self.no_container(error)),
                    false => Ok(None),
                };
            }
            Err(error) => return Err(self.failed(error, name)),
        };
        let (meta, attributes) = (found.meta.clone(), found.attributes.clone());
        let bytes = found.bytes().await.map_err(|e| self.failed(e, name))?;
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
        match (etag, &self.direct) {
            // The client would send a batch of one.
            (etag, Some(direct)) => {
                return match direct.delete(&path, etag).await {
                    Ok(deleted) => Ok(deleted),
                    // The condition is not met by what is not there, either.
                    Err(error) if etag.is_some() && error.kind() == ErrorKind::Conflict => {
                        match self.is_there(&path, name).await? {
                            true => Err(self.conflict(name)),
                            false => Ok(false),
                        }
                    }
                    Err(error) if error.names_the_container() => Err(self.no_container(error)),
                    Err(error) => Err(error.of(format_args!("blob `{name}` of {self}"))),
                };
            }
            (Some(etag), None) => return self.delete_unless_changed(&path, name, etag).await,
            (None, None) => {}
        }
        // S3 says yes to whatever is not there.
        if self.service == Service::S3 && !self.is_there(&path, name).await? {
            return Ok(false);
        }
        self.delete_path(&path, name).await
    }

    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page> {
        let prefix = format!("{}{prefix}", self.prefix);
        if let Some(direct) = &self.direct {
            let listing = direct.list(&prefix, page).await;
            return Ok(self.page(listing.map_err(|error| self.not_listed(error))?));
        }
        let options = PaginatedListOptions {
            max_keys: Some(page.size.max(1)),
            page_token: page.token.clone(),
            ..PaginatedListOptions::default()
        };
        let wanted = (!prefix.is_empty()).then_some(prefix.as_str());
        let listed = self.reads.list_paginated(wanted, options).await;
        let listed = listed.map_err(|error| self.not_listed(error.into()))?;
        let mut entries = Vec::with_capacity(listed.result.objects.len());
        for meta in listed.result.objects {
            entries.extend(self.entry(meta)?);
        }
        Ok(Page {
            entries,
            next: listed.page_token.filter(|token| !token.is_empty()),
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            conditional_delete: match self.service {
                Service::Azure => true,
                Service::S3 => self.deletions.get() != Some(&false),
                Service::Gcs => false,
            },
            metadata: true,
            unique_etags: self.service == Service::Azure,
        }
    }
}

impl Service {
    fn scheme(self) -> &'static str {
        match self {
            Self::Azure => "az",
            Self::S3 => "s3",
            Self::Gcs => "gs",
        }
    }
}

impl Purpose {
    /// Reads are tried again, writes never.
    fn retry(self) -> RetryConfig {
        RetryConfig {
            max_retries: if self == Self::Writes { 0 } else { READS },
            retry_timeout: if self == Self::Contents {
                CONTENT
            } else {
                RETRY
            },
            ..RetryConfig::default()
        }
    }

    fn patience(self) -> RequestTimeout {
        match self {
            Self::Reads | Self::Writes => RequestTimeout::Total(REQUEST),
            Self::Contents => RequestTimeout::PerChunk(PIECE),
        }
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

/// The services' headers know whole seconds, their lists more: the same blob has the same time.
fn seconds(since: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(since).unwrap_or_default())
}

impl fmt::Display for CloudStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.service.scheme(), self.bucket)?;
        match self.prefix.strip_suffix('/') {
            Some(prefix) => write!(f, "/{prefix}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for CloudStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CloudStore")
            .field(&self.to_string())
            .finish()
    }
}
