//! Blob storage: small named values with ETags, on which flags, ids, leases and sweeping stand.
//!
//! A [`BlobStore`] is what every cloud's blob service can do: read, write under a condition,
//! delete, list. What one of them cannot do it says in its [`Capabilities`]. All of them keep the
//! same contract, and one suite of checks (`contract`) holds them to it. Knows nothing of what is
//! stored.

#[cfg(feature = "cloud")]
mod cloud;
pub mod container;
mod memory;
mod name;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(test)]
pub(crate) mod contract;
#[cfg(test)]
pub(crate) mod faulty;

use std::{
    collections::BTreeMap,
    fmt::{Debug, Display},
    sync::Arc,
    time::SystemTime,
};

use async_trait::async_trait;
use bytes::Bytes;

#[cfg(feature = "cloud")]
pub use self::cloud::CloudStore;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteStore;
pub use self::{
    memory::MemoryStore,
    name::{BlobName, ETag},
};
use crate::error::{Error, ErrorKind, Result};

/// Named values that several processes share.
///
/// A write that has returned is durable, as far as the store is. One that failed with
/// [`ErrorKind::Unavailable`] or [`ErrorKind::Timeout`] may have happened all the same; any other
/// error, [`ErrorKind::Conflict`] among them, says for certain that this request wrote nothing.
///
/// That holds as each request is sent once. Where something between here and a cloud's service
/// repeats requests on its own account, the answer that comes is the second one's: a write may then
/// come back as a conflict with itself, and a deletion as of what was not there. Whoever must know
/// puts something of its own into the content, and reads it again after a conflict.
#[async_trait]
pub trait BlobStore: Display + Debug + Send + Sync + 'static {
    /// Reads a blob; `None` where there is none.
    ///
    /// # Errors
    /// Whatever kept the store from answering.
    async fn get(&self, name: &BlobName) -> Result<Option<Blob>>;

    /// Makes a blob, and returns its ETag.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where it exists; [`ErrorKind::Invalid`] where the content breaks a
    /// rule.
    async fn create(&self, name: &BlobName, content: BlobContent) -> Result<ETag>;

    /// Writes a blob that is still the one with this ETag, and returns its new ETag.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where it was changed or is gone; [`ErrorKind::Invalid`] where the
    /// content breaks a rule.
    async fn update(&self, name: &BlobName, content: BlobContent, etag: &ETag) -> Result<ETag>;

    /// Deletes a blob, where an ETag is given only if it is still that one; returns whether there
    /// was one to delete.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where it is there, but another one;
    /// [`ErrorKind::Unsupported`] for a condition that the store has not
    /// ([`Capabilities::conditional_delete`]).
    async fn delete(&self, name: &BlobName, etag: Option<&ETag>) -> Result<bool>;

    /// Lists the blobs whose names begin with `prefix`, in the order of their names' bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a page token that is none.
    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page>;

    /// Returns what the store can do.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

/// A blob as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// What it holds.
    pub content: BlobContent,
    /// Another one after each write, of this blob or of a later one of its name.
    pub etag: ETag,
    /// When it was written, by the store's clock.
    pub last_modified: SystemTime,
}

/// What is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlobContent {
    /// The value.
    pub bytes: Bytes,
    /// Names and values beside it. A name is an identifier of at most 64 bytes of
    /// `[A-Za-z0-9_]`, a value at most 1,024 printable ASCII characters: what all clouds take. Names
    /// are the same in any case, and are read in lower case: they are names of HTTP headers.
    pub metadata: BTreeMap<String, String>,
}

/// Which part of a list to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageOptions {
    /// Entries at most; 0 counts as 1.
    pub size: usize,
    /// From the page before; `None` is the first page.
    pub token: Option<String>,
}

/// A part of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The blobs, in the order of their names' bytes.
    pub entries: Vec<BlobEntry>,
    /// For the next page; `None` on the last one.
    pub next: Option<String>,
}

/// A blob in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobEntry {
    /// Its name.
    pub name: BlobName,
    /// Its ETag.
    pub etag: ETag,
    /// When it was written, by the store's clock.
    pub last_modified: SystemTime,
}

/// What a store can do; by default everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Deletes under the condition of an ETag.
    pub conditional_delete: bool,
    /// Keeps metadata.
    pub metadata: bool,
    /// An ETag stands for a write. Where not, it stands for a content, and two writes of the same
    /// bytes have the same one: S3.
    pub unique_etags: bool,
}

/// What [`open`] understands, for its error.
const SUPPORTED: &str = if cfg!(feature = "cloud") && cfg!(feature = "sqlite") {
    "`memory:`, `sqlite:PATH`, `az://CONTAINER[/PREFIX]`, `s3://BUCKET[/PREFIX]` and \
     `gs://BUCKET[/PREFIX]`"
} else if cfg!(feature = "sqlite") {
    "`memory:` and `sqlite:PATH`"
} else {
    "`memory:`"
};

/// An environment: names and values.
type Variables = BTreeMap<String, String>;

/// Entries of a page, where nothing is said.
const PAGE: usize = 100;

/// Opens the store that a URL names: `memory:`, `sqlite:PATH`, `az://CONTAINER[/PREFIX]`,
/// `s3://BUCKET[/PREFIX]`, `gs://BUCKET[/PREFIX]`.
///
/// A cloud's account, credential and endpoint come from the environment, by the names that
/// `object_store` reads: `AZURE_STORAGE_ACCOUNT_NAME` and `AZURE_STORAGE_ACCOUNT_KEY`,
/// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`, and so
/// on. On Azure `AZURE_STORAGE_CONNECTION_STRING` comes before all others, and
/// `AZURE_STORAGE_ACCOUNT` and `AZURE_STORAGE_KEY` are read as well.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a URL that names no store, with a list of those that do; what is
/// wrong with the path, in one line. For a cloud's: [`ErrorKind::NotFound`] where there is no such
/// container, [`ErrorKind::Denied`] where the credential is refused.
pub async fn open(url: &str) -> Result<Arc<dyn BlobStore>> {
    open_with(url, &environment()).await
}

/// Opens a store as [`open`] does, but makes none: for what only reads, where a path that was
/// mistyped must not become an empty store.
///
/// # Errors
/// As [`open`]; [`ErrorKind::NotFound`] where the file of a `sqlite:` store is not there.
pub async fn open_existing(url: &str) -> Result<Arc<dyn BlobStore>> {
    must_exist(url)?;
    open(url).await
}

/// Refuses a file that is not there, which opening it would make.
pub(crate) fn must_exist(url: &str) -> Result<()> {
    if let Some(path) = url.strip_prefix("sqlite:")
        && !path.is_empty()
        && !std::path::Path::new(path).exists()
    {
        let message = format!("store `{url}`: there is no such file, and this command makes none");
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    Ok(())
}

/// Returns the process's environment, without what is no text: that is no setting of a store.
pub fn environment() -> BTreeMap<String, String> {
    let variables = std::env::vars_os();
    let texts = variables
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    texts.collect()
}

/// Opens a store with these variables as its environment.
pub(crate) async fn open_with(url: &str, variables: &Variables) -> Result<Arc<dyn BlobStore>> {
    #[cfg(feature = "cloud")]
    if let Some((scheme, rest)) = url.split_once(':')
        && let Some(store) = cloud::open(scheme, rest, variables).await
    {
        return Ok(Arc::new(store?));
    }
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) => Ok(Arc::new(open_sqlite(path).await?)),
        _ => {
            // It may be a connection string, or an address with its signature.
            let shown = url.split(['?', ';', '=']).next().unwrap_or_default();
            let shown: String = shown.chars().take(60).collect();
            let rule = format_args!("`{shown}` names no store that is supported: {SUPPORTED}");
            Err(Error::invalid("store", rule))
        }
    }
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(path: &str) -> Result<SqliteStore> {
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
    SqliteStore::open(path).await
}

impl BlobContent {
    /// Checks the metadata's rule, and returns it with its names in lower case.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with the name of what breaks it.
    pub fn checked(self) -> Result<Self> {
        let mut metadata = BTreeMap::new();
        for (name, value) in self.metadata {
            let first = name.bytes().next().unwrap_or(b'0');
            let fits = name.len() <= 64
                && !first.is_ascii_digit()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if !fits {
                let rule = format_args!("the name {name:?} is no identifier of at most 64 bytes");
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
    /// Returns the name after which the page begins: our own stores' tokens are names.
    fn after(&self, prefix: &str) -> Result<Option<&str>> {
        match self.token.as_deref() {
            Some(token) if !token.starts_with(prefix) || token.is_empty() => Err(Error::invalid(
                "page_token",
                "is not of a list with this prefix",
            )),
            token => Ok(token),
        }
    }
}

impl Page {
    /// Makes a page of what was found, of which one more than asked for was looked for.
    fn cut(mut entries: Vec<BlobEntry>, size: usize) -> Self {
        let more = entries.len() > size;
        entries.truncate(size);
        let last = entries.last().filter(|_| more);
        let next = last.map(|entry| entry.name.to_string());
        Self { entries, next }
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            conditional_delete: true,
            metadata: true,
            unique_etags: true,
        }
    }
}

/// The error of a blob that should not be there yet.
fn exists(store: &dyn BlobStore, name: &BlobName) -> Error {
    let message = format!("blob `{name}` exists already in {store}");
    Error::new(ErrorKind::Conflict, message)
}

/// The error of a blob that somebody else wrote or deleted first.
fn changed(store: &dyn BlobStore, name: &BlobName) -> Error {
    let message = format!("blob `{name}` in {store} was changed by somebody else or is gone");
    Error::new(ErrorKind::Conflict, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn urls_name_stores() {
        assert_eq!(
            open("memory:").await.expect("memory").to_string(),
            "memory:"
        );
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite:{}", directory.path().join("flags.db").display());
        assert_eq!(open(&url).await.expect("sqlite").to_string(), url);
    }

    #[tokio::test]
    async fn what_only_reads_makes_no_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("flags.db");
        let url = format!("sqlite:{}", path.display());
        let error = open_existing(&url).await.expect_err("no file");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("flags.db"), "{error}");
        assert!(!path.exists());
        open(&url).await.expect("made");
        open_existing(&url).await.expect("it is there");
    }

    #[tokio::test]
    async fn stores_of_our_own_keep_the_contract_of_containers() {
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite:{}", directory.path().join("blobs.db").display());
        for url in ["memory:", &url] {
            let none = Variables::new();
            // A container's file must be there.
            open(url).await.expect(url);
            container::contract::check(&*container::connect(url, &none).await.expect(url)).await;
            let account = container::Account::open(url, &none).await.expect(url);
            let folder = account.container("folder").expect("a name");
            container::contract::check(&*folder).await;
        }
    }

    #[tokio::test]
    async fn what_names_no_store_is_told_which_do() {
        for (url, words) in [
            ("ftp://host/x", "`memory:`, `sqlite:PATH`"),
            ("flags.db", "`memory:`, `sqlite:PATH`"),
            ("memory:x", "`memory:`, `sqlite:PATH`"),
            ("sqlite:", "needs the path of a file"),
            ("sqlite:x.db?queue=jobs", "takes no parameters"),
        ] {
            let error = open(url).await.expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains(words), "{error}");
        }
        let error = open("sqlite:/no/such/place/flags.db")
            .await
            .expect_err("no directory");
        assert!(
            error.message().contains("its directory does not exist"),
            "{error}"
        );
    }
}
