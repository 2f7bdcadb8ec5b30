//! Queue URLs: parsing, opening, and the address for notifications.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use super::{MemoryQueue, WorkQueue};
use crate::{
    base::sync::lock,
    error::{Error, Result},
    types::QueueAddress,
};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Backend {
    Memory,
    /// The file's path.
    #[cfg(feature = "sqlite")]
    Sqlite(std::path::PathBuf),
    #[cfg(feature = "azure")]
    Azure(super::MessageEncoding),
}

/// A parsed URL.
#[derive(Debug, Clone, PartialEq, Eq)]
struct QueueUrl {
    backend: Backend,
    address: QueueAddress,
}

/// The account of an embedded queue if the URL names none.
const DEFAULT_ACCOUNT: &str = "local";
/// The forms of a URL.
const FORMS: &str = "`memory:NAME`, `sqlite:PATH?queue=NAME`, `azure://ACCOUNT/QUEUE`";

/// Opens the queue of a URL:
/// * `memory:NAME`: within this process, the same name is the same queue.
/// * `sqlite:PATH?queue=NAME`.
/// * `azure://ACCOUNT/QUEUE`: the credential comes from the environment, from
///   `AZURE_STORAGE_CONNECTION_STRING`. `encoding=text` means that messages are plain text and not base64. Opening sends no request.
///   Temporary failures are retried ([`Retrying`](super::Retrying) with its defaults).
///
/// The first two take the parameter `account=NAME`, which replaces the address's default account
/// `local`.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the broken rule if the URL names no queue;
/// one line about the path if the file cannot be opened;
/// [`ErrorKind::Denied`](crate::ErrorKind::Denied) if a credential is missing.
///
/// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the file of a `sqlite:` queue is missing.
pub async fn open(url: &str) -> Result<Arc<dyn WorkQueue>> {
    let parsed = parse(url)?;
    match parsed.backend {
        Backend::Memory => Ok(Arc::new(memory_queue(parsed.address))),
        #[cfg(feature = "sqlite")]
        Backend::Sqlite(path) => Ok(Arc::new(
            super::SqliteQueue::open(path, parsed.address).await?,
        )),
        #[cfg(feature = "azure")]
        Backend::Azure(encoding) => {
            let (account, name) = parsed.address.parts();
            let account = crate::backend::azure::StorageAccount::from_environment(account)?;
            let queue = super::AzureQueue::open(&account, name, encoding)?;
            Ok(Arc::new(super::Retrying::new(
                Arc::new(queue),
                super::RetryConfig::default(),
            )))
        }
    }
}

/// Opens the queue of a URL like [`open`], and creates it if it is missing, with its file. Returns
/// whether the queue was created.
///
/// # Errors
/// As [`open`], and the errors of [`WorkQueue::create`].
pub async fn create(url: &str) -> Result<(Arc<dyn WorkQueue>, bool)> {
    #[cfg(feature = "sqlite")]
    let _file = match parse(url)?.backend {
        Backend::Sqlite(path) => Some(super::sqlite::create_file(path).await?),
        _ => None,
    };
    let queue = open(url).await?;
    let created = queue.create().await?;
    Ok((queue, created))
}

/// Returns the address for notifications of a URL's queue, without opening the queue.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the URL names no queue.
pub fn address(url: &str) -> Result<QueueAddress> {
    parse(url).map(|parsed| parsed.address)
}

/// Returns the URL with `suffix` appended to the queue's name, such as `orders-poison` for `orders`.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the URL names no queue, or the longer name
/// breaks a rule.
pub fn with_suffix(url: &str, suffix: &str) -> Result<String> {
    let name = parse(url)?.address.queue_name().len();
    let base = url.find('?').unwrap_or(url.len());
    let end = match url[base..].find("queue=") {
        Some(at) => base + at + "queue=".len() + name,
        None => base,
    };
    let other = format!("{}{suffix}{}", &url[..end], &url[end..]);
    parse(&other)?;
    Ok(other)
}

fn parse(url: &str) -> Result<QueueUrl> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    if let Some(path) = base.strip_prefix("azure:") {
        return parse_azure(path, query);
    }
    #[cfg(not(feature = "sqlite"))]
    if base.starts_with("sqlite:") {
        return Err(Error::not_compiled("queue", base, "sqlite"));
    }
    let (mut account, mut name) = (None, None);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let slot = match key {
            "account" => &mut account,
            "queue" => &mut name,
            _ => {
                let rule = format_args!("takes `queue` and `account`, but not `{key}`");
                return Err(Error::invalid("queue", rule));
            }
        };
        if slot.replace(value).is_some() {
            let rule = format_args!("names `{key}` twice");
            return Err(Error::invalid("queue", rule));
        }
    }
    let (backend, name) = match base.split_once(':') {
        Some(("memory", inner)) if name.is_none() => (Backend::Memory, inner),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) if !path.is_empty() => match name {
            Some(name) => (Backend::Sqlite(path.into()), name),
            None => {
                let rule = format_args!("`{base}` needs a queue's name, as in `{base}?queue=jobs`");
                return Err(Error::invalid("queue", rule));
            }
        },
        _ => {
            let shown: String = base.chars().take(60).collect();
            let rule = format_args!("`{shown}` names no queue that is supported: {FORMS}");
            return Err(Error::invalid("queue", rule));
        }
    };
    let address = QueueAddress::new(account.unwrap_or(DEFAULT_ACCOUNT), name)?;
    Ok(QueueUrl { backend, address })
}

#[cfg(not(feature = "azure"))]
fn parse_azure(path: &str, _query: &str) -> Result<QueueUrl> {
    let shown = format!("azure:{path}");
    Err(Error::not_compiled("queue", &shown, "azure"))
}

/// Parses the part behind `azure:`.
#[cfg(feature = "azure")]
fn parse_azure(path: &str, query: &str) -> Result<QueueUrl> {
    let parts = path.strip_prefix("//").and_then(|p| p.split_once('/'));
    let Some((account, name)) = parts else {
        let rule = "must name an account and a queue, as in `azure://ACCOUNT/QUEUE`";
        return Err(Error::invalid("queue", rule));
    };
    let encoding = match query.split_once('=') {
        Some(("encoding", encoding)) => encoding.parse()?,
        None if query.is_empty() => super::MessageEncoding::default(),
        // The value is not shown: it may be a signature, which belongs into the environment.
        _ => {
            let rule = "takes `encoding` and nothing else behind its `?`";
            return Err(Error::invalid("queue", rule));
        }
    };
    Ok(QueueUrl {
        backend: Backend::Azure(encoding),
        address: super::azure::azure_address(account, name)?,
    })
}

/// Returns this process's memory queue with this address.
fn memory_queue(address: QueueAddress) -> MemoryQueue {
    static QUEUES: Mutex<Option<HashMap<QueueAddress, MemoryQueue>>> = Mutex::new(None);
    let mut queues = lock(&QUEUES);
    let queues = queues.get_or_insert_default();
    let queue = queues.entry(address.clone());
    queue.or_insert_with(|| MemoryQueue::new(address)).clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::ErrorKind, queue::NewMessage};

    fn addressed(url: &str) -> String {
        address(url).expect(url).to_string()
    }

    #[test]
    fn a_url_has_an_address() {
        assert_eq!(addressed("memory:jobs"), "local/jobs");
        assert_eq!(addressed("memory:jobs?account=acct"), "acct/jobs");
        assert_eq!(addressed("sqlite:/tmp/a b.db?queue=jobs"), "local/jobs");
        let both = "sqlite:q.db?account=acct&queue=jobs";
        assert_eq!(addressed(both), "acct/jobs");
        #[cfg(feature = "azure")]
        for url in ["azure://Acct/My-Jobs", "azure://acct/my-jobs?encoding=text"] {
            assert_eq!(addressed(url), "acct/my-jobs", "as the service has it");
        }
    }

    #[cfg(not(feature = "azure"))]
    #[test]
    fn a_url_of_a_back_end_that_is_not_compiled_in_names_its_feature() {
        let error = address("azure://acct/jobs?encoding=text").expect_err("no Azure");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let words = "queue: `azure://acct/jobs` needs the feature `azure`";
        assert!(error.message().starts_with(words), "{error}");
    }

    #[cfg(feature = "azure")]
    #[test]
    fn a_url_of_azure_that_names_no_queue_is_refused_with_the_rule() {
        for (url, words) in [
            ("azure:jobs", "`azure://ACCOUNT/QUEUE`"),
            ("azure://acct", "`azure://ACCOUNT/QUEUE`"),
            ("azure://ac/jobs", "AccountName: must be 3 to 24"),
            ("azure://acct/jobs/more", "queue_name: must be 3 to 63"),
            ("azure://acct/-jobs", "queue_name"),
            ("azure://acct/my--jobs", "queue_name"),
            ("azure://acct/my_jobs", "queue_name"),
            ("azure://acct/jobs?encoding=hex", "encoding: must be"),
            (
                "azure://acct/jobs?sig=c2ln",
                "takes `encoding` and nothing else",
            ),
        ] {
            let error = address(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.message().contains(words), "{url}: {error}");
            assert!(!error.message().contains("c2ln"), "{error}");
        }
    }

    #[test]
    fn a_suffixed_queue_has_the_same_backend_and_account() {
        for (url, other) in [
            ("memory:jobs", "memory:jobs-poison"),
            ("memory:jobs?account=a", "memory:jobs-poison?account=a"),
            ("sqlite:q.db?queue=jobs", "sqlite:q.db?queue=jobs-poison"),
            (
                "sqlite:q.db?queue=jobs&account=a",
                "sqlite:q.db?queue=jobs-poison&account=a",
            ),
        ] {
            assert_eq!(with_suffix(url, "-poison").expect(url), other);
        }
        #[cfg(feature = "azure")]
        for (url, other) in [
            ("azure://acct/jobs", "azure://acct/jobs-poison"),
            (
                "azure://acct/jobs?encoding=text",
                "azure://acct/jobs-poison?encoding=text",
            ),
        ] {
            assert_eq!(with_suffix(url, "-poison").expect(url), other);
        }
        assert!(with_suffix("sqlite:q.db", "-poison").is_err());
        assert!(with_suffix("memory:jobs", "/poison").is_err());
    }

    #[test]
    fn a_url_that_names_no_queue_is_refused_with_the_rule() {
        for (url, words) in [
            ("", "names no queue that is supported"),
            ("jobs", "names no queue that is supported"),
            ("redis:jobs", "`memory:NAME`, `sqlite:PATH?queue=NAME`"),
            ("memory:", "queue_name"),
            ("memory:a?queue=b", "names no queue that is supported"),
            ("sqlite:?queue=jobs", "names no queue that is supported"),
            ("sqlite:q.db", "`sqlite:q.db?queue=jobs`"),
            ("sqlite:q.db?queue=a/b", "queue_name"),
            ("sqlite:q.db?queue=a&queue=b", "`queue` twice"),
            ("sqlite:q.db?name=a", "not `name`"),
        ] {
            let error = address(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.message().contains(words), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn a_memory_queue_is_shared_by_its_name() {
        let one = open("memory:shared-by-name").await.expect("open");
        let other = open("memory:shared-by-name").await.expect("open");
        one.put(vec![NewMessage::new("here")]).await.expect("put");
        assert_eq!(other.depth().await.expect("depth"), 1);
    }
}
