//! Blob storage: small named values with ETags, for flags, ids, leases and sweeping.
//!
//! A [`BlobStore`] has what every cloud's blob service supports: reads, conditional writes,
//! deletions and lists. Some do not support a deletion on a condition, and say so. All stores pass
//! one suite of checks (`contract`). The meaning of the content is unknown here.

#[cfg(feature = "cloud")]
pub(crate) mod cloud;
pub mod container;
mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(test)]
pub(crate) mod contract;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    fmt::{Debug, Display},
    str::FromStr,
    sync::Arc,
    time::SystemTime,
};

use async_trait::async_trait;
use bytes::Bytes;

#[cfg(feature = "cloud")]
pub use self::cloud::CloudStore;
pub use self::memory::MemoryStore;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteStore;
use crate::{
    base::text::shown_as_text,
    error::{Error, ErrorKind, Result},
};

/// Named values that several processes share.
///
/// A write that has returned is durable, as far as the store is. A write that failed with
/// [`ErrorKind::Unavailable`] or [`ErrorKind::Timeout`] may have happened. Any other error,
/// [`ErrorKind::Conflict`] among them, proves that this request wrote nothing.
///
/// This holds because each request is sent once. If the network repeats a request, the second
/// answer is returned: a write may then conflict with itself, and a deletion may find no blob. A
/// caller that must recognise its own write puts a unique value into the content, and reads the
/// blob again after a conflict.
#[async_trait]
pub trait BlobStore: Display + Debug + Send + Sync + 'static {
    /// Reads a blob; `None` if there is none.
    ///
    /// # Errors
    /// Any error of the store.
    async fn get(&self, name: &BlobName) -> Result<Option<Blob>>;

    /// Creates a blob and returns its ETag.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if it exists; [`ErrorKind::Invalid`] if the content is invalid.
    async fn create(&self, name: &BlobName, content: BlobContent) -> Result<ETag>;

    /// Writes a blob if it still has this ETag, and returns its new ETag.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if it was changed or deleted; [`ErrorKind::Invalid`] if the content
    /// is invalid.
    async fn update(&self, name: &BlobName, content: BlobContent, etag: &ETag) -> Result<ETag>;

    /// Deletes a blob; with an ETag, only if the blob still has it. Returns whether the blob
    /// existed.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the blob has another ETag; [`ErrorKind::Unsupported`] for a
    /// condition on a store without [`BlobStore::conditional_delete`].
    async fn delete(&self, name: &BlobName, etag: Option<&ETag>) -> Result<bool>;

    /// Lists the blobs whose names begin with `prefix`, in the order of their names' bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a malformed page token.
    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page>;

    /// Returns whether the store supports deletion with an ETag.
    fn conditional_delete(&self) -> bool {
        true
    }
}

/// A blob's name: 1 to 1,024 bytes in parts with `/` between them. No part is empty, `.` or `..`,
/// and control characters and `\` are excluded. All stores, including file systems, accept such
/// names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName(Arc<str>);

/// Identifies one write: no other write to any blob of the store has the same ETag.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ETag(Arc<str>);

/// A blob with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// The content.
    pub content: BlobContent,
    /// New after each write, also of a later blob with the same name.
    pub etag: ETag,
    /// When it was written, by the store's clock.
    pub last_modified: SystemTime,
}

/// The content of a blob.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlobContent {
    /// The value.
    pub bytes: Bytes,
    /// Metadata. A name is an identifier of at most 64 bytes of `[A-Za-z0-9_]`, a value at most
    /// 1,024 printable ASCII characters: all clouds accept these. Names are HTTP header names: they
    /// are not case-sensitive, and are read in lower case.
    pub metadata: BTreeMap<String, String>,
}

/// Which page of a list to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageOptions {
    /// Largest number of entries; 0 counts as 1.
    pub size: usize,
    /// The token from the previous page; `None` for the first page.
    pub token: Option<String>,
}

/// A page of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The blobs, in the order of their names' bytes.
    pub entries: Vec<BlobEntry>,
    /// Number of blobs whose names are no valid [`BlobName`]; only containers of other programs have such.
    pub unnameable: u64,
    /// The token of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// A blob without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobEntry {
    /// Its name.
    pub name: BlobName,
    /// Its ETag.
    pub etag: ETag,
    /// When it was written, by the store's clock.
    pub last_modified: SystemTime,
    /// Its metadata, with names in lower case; `None` if a list does not contain it.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// The URLs that [`open`] accepts, for its error.
const SUPPORTED: &str = "`memory:`, `sqlite:PATH`, `az://CONTAINER[/PREFIX]`, \
                         `s3://BUCKET[/PREFIX]` and `gs://BUCKET[/PREFIX]`";

/// An environment: names and values.
type Variables = BTreeMap<String, String>;

/// The clouds' own limit on a name.
const NAME: usize = 1024;
/// Default number of entries of a page.
const PAGE: usize = 100;

/// Opens the store of a URL: `memory:`, `sqlite:PATH`, `az://CONTAINER[/PREFIX]`,
/// `s3://BUCKET[/PREFIX]`, `gs://BUCKET[/PREFIX]`.
///
/// A cloud's account, credential and endpoint come from the environment variables that
/// `object_store` reads: `AZURE_STORAGE_ACCOUNT_NAME` and `AZURE_STORAGE_ACCOUNT_KEY`,
/// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`, and
/// so on. On Azure `AZURE_STORAGE_CONNECTION_STRING` takes precedence.
///
/// # Errors
/// [`ErrorKind::Invalid`] for an unknown URL, with a list of the known ones, or for an invalid
/// path. For a cloud: [`ErrorKind::NotFound`] if the container does not exist,
/// [`ErrorKind::Denied`] if the credential is refused.
pub async fn open(url: &str) -> Result<Arc<dyn BlobStore>> {
    open_with(url, &environment()).await
}

/// Opens a store like [`open`], but creates none. For commands that only read, where a mistyped
/// path must not create an empty store.
///
/// # Errors
/// As [`open`]; [`ErrorKind::NotFound`] if the file of a `sqlite:` store does not exist.
pub async fn open_existing(url: &str) -> Result<Arc<dyn BlobStore>> {
    open_or(url, &environment(), false).await
}

/// Refuses a URL of a back-end that is not compiled in. Opens nothing.
///
/// # Errors
/// [`ErrorKind::Invalid`] with the feature that the URL needs.
pub fn check_url(url: &str) -> Result<()> {
    match url.split_once(':') {
        Some(("sqlite", _)) if cfg!(not(feature = "sqlite")) => {
            Err(Error::not_compiled("store", "sqlite:", "sqlite"))
        }
        Some((scheme @ ("az" | "s3" | "gs" | "https"), _)) if cfg!(not(feature = "cloud")) => {
            Err(Error::not_compiled("store", &format!("{scheme}:"), "cloud"))
        }
        _ => Ok(()),
    }
}

/// Returns the process's environment without values that are not Unicode: no setting of a store has
/// one.
pub fn environment() -> BTreeMap<String, String> {
    let variables = std::env::vars_os();
    let texts = variables
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    texts.collect()
}

/// Writes a blob over the one that was read with this ETag, or creates it if none was found.
///
/// # Errors
/// As [`BlobStore::update`] and [`BlobStore::create`].
pub(crate) async fn write_over(
    store: &dyn BlobStore,
    name: &BlobName,
    content: BlobContent,
    before: Option<&ETag>,
) -> Result<ETag> {
    match before {
        Some(etag) => store.update(name, content, etag).await,
        None => store.create(name, content).await,
    }
}

/// As [`open`], with these variables as its environment.
pub(crate) async fn open_with(url: &str, variables: &Variables) -> Result<Arc<dyn BlobStore>> {
    open_or(url, variables, true).await
}

#[cfg_attr(
    not(all(feature = "cloud", feature = "sqlite")),
    allow(
        clippy::unused_async,
        unused_variables,
        reason = "only the clouds and files use them"
    )
)]
async fn open_or(url: &str, variables: &Variables, create: bool) -> Result<Arc<dyn BlobStore>> {
    check_url(url)?;
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) => Ok(Arc::new(open_sqlite(path, create).await?)),
        #[cfg(feature = "cloud")]
        Some(("az" | "s3" | "gs", _)) => Ok(Arc::new(cloud::open(url, variables).await?)),
        _ => {
            // The URL may be a connection string or a signed address.
            let shown = url.split(['?', ';', '=']).next().unwrap_or_default();
            let shown: String = shown.chars().take(60).collect();
            let rule = format_args!("`{shown}` names no store that is supported: {SUPPORTED}");
            Err(Error::invalid("store", rule))
        }
    }
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(path: &str, create: bool) -> Result<SqliteStore> {
    if path.is_empty() {
        return Err(Error::invalid(
            "store",
            "`sqlite:` needs the path of a file",
        ));
    }
    if path.contains('?') {
        let rule = format_args!("`sqlite:{path}` is a queue's URL: a store takes no parameters");
        return Err(Error::invalid("store", rule));
    }
    match create {
        true => SqliteStore::open(path).await,
        false => SqliteStore::open_existing(path).await,
    }
}

impl BlobName {
    /// Makes a blob's name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a malformed name.
    pub fn new(name: &str) -> Result<Self> {
        let part = |part: &str| !matches!(part, "" | "." | "..");
        let character = |c: char| !c.is_control() && c != '\\';
        if name.len() <= NAME && name.split('/').all(part) && name.chars().all(character) {
            return Ok(Self(name.into()));
        }
        let shown: String = name.chars().take(40).collect();
        let rule = format_args!(
            "must be 1 to {NAME} bytes in parts with `/` between them, none empty, `.` or `..`, \
             without control characters and `\\`, but is {shown:?}"
        );
        Err(Error::invalid("blob", rule))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ETag {
    /// Makes an ETag from the store's text.
    pub fn new(etag: &str) -> Self {
        Self(etag.into())
    }

    /// Returns the store's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Sorts like its text.
impl Borrow<str> for BlobName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for BlobName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

shown_as_text!(0: BlobName, ETag);

impl BlobContent {
    /// Checks the metadata and returns it with its names in lower case.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with the name of the invalid entry.
    pub fn checked(self) -> Result<Self> {
        let mut metadata = BTreeMap::new();
        for (name, value) in self.metadata {
            let first = name.bytes().next().unwrap_or(b'0');
            let fits = name.len() <= 64
                && !first.is_ascii_digit()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if !fits {
                let rule =
                    format_args!("the name {name:?} is not an identifier of at most 64 bytes");
                return Err(Error::invalid("metadata", rule));
            }
            let printable = value.bytes().all(|b| (b' '..=b'~').contains(&b));
            if value.len() > 1024 || !printable || value.trim() != value {
                let rule = format_args!(
                    "{name} must be at most 1024 printable ASCII characters, with no space at \
                     either end"
                );
                return Err(Error::invalid("metadata", rule));
            }
            if metadata.insert(name.to_ascii_lowercase(), value).is_some() {
                let rule = format_args!("{name} stands there twice");
                return Err(Error::invalid("metadata", rule));
            }
        }
        Ok(Self { metadata, ..self })
    }
}

impl From<Bytes> for BlobContent {
    fn from(bytes: Bytes) -> Self {
        let metadata = BTreeMap::new();
        Self { bytes, metadata }
    }
}

impl From<&'static str> for BlobContent {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl Default for PageOptions {
    fn default() -> Self {
        Self {
            size: PAGE,
            token: None,
        }
    }
}

impl PageOptions {
    /// Returns the name after which the page begins. The tokens of the SQLite and memory stores are
    /// names.
    fn after(&self, prefix: &str) -> Result<Option<&str>> {
        match self.token.as_deref() {
            Some(token) if !token.starts_with(prefix) || token.is_empty() => Err(Error::invalid(
                "page_token",
                "does not belong to a list with this prefix",
            )),
            token => Ok(token),
        }
    }
}

impl Page {
    /// Makes a page of at most `size` entries. One entry more was read, to know whether the page is
    /// the last.
    fn truncated(mut entries: Vec<BlobEntry>, size: usize) -> Self {
        let more = entries.len() > size;
        entries.truncate(size);
        let last = entries.last().filter(|_| more);
        let next = last.map(|entry| entry.name.to_string());
        Self {
            entries,
            unnameable: 0,
            next,
        }
    }
}

/// The error of a creation if the blob exists.
fn exists(store: &dyn BlobStore, name: &BlobName) -> Error {
    let message = format!("blob `{name}` exists already in {store}");
    Error::new(ErrorKind::Conflict, message)
}

/// The error of a conditional write or deletion if the blob was changed or deleted.
fn changed(store: &dyn BlobStore, name: &BlobName) -> Error {
    let message = format!("blob `{name}` in {store} was changed by another writer or is gone");
    Error::new(ErrorKind::Conflict, message)
}
