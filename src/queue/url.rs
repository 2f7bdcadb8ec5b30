//! Queues by their URLs: which one is meant, and under which address it is notified.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use super::{MemoryQueue, WorkQueue};
use crate::{
    error::{Error, Result},
    words::QueueAddress,
};

/// Where a queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// In this process.
    Memory,
    /// In a file.
    #[cfg(feature = "sqlite")]
    Sqlite(std::path::PathBuf),
    /// In an account of Azure Storage.
    #[cfg(feature = "azure")]
    Azure(super::MessageEncoding),
}

/// What a URL says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parsed {
    place: Place,
    address: QueueAddress,
}

/// Of an embedded queue, where the URL names no other.
const ACCOUNT: &str = "local";
/// What a URL may look like, and whether this build knows it.
const FORMS: [(&str, bool); 3] = [
    ("`memory:NAME`", true),
    ("`sqlite:PATH?queue=NAME`", cfg!(feature = "sqlite")),
    ("`azure://ACCOUNT/QUEUE`", cfg!(feature = "azure")),
];

/// Opens the queue that a URL names:
/// * `memory:NAME`, which this process shares by its name;
/// * `sqlite:PATH?queue=NAME`;
/// * `azure://ACCOUNT/QUEUE`, whose credential comes from the environment: from
///   `AZURE_STORAGE_CONNECTION_STRING`, or `AZURE_STORAGE_KEY`, or `AZURE_STORAGE_SAS_TOKEN`, and
///   where the account's queues are not at their usual place, from `AZURE_STORAGE_QUEUE_ENDPOINT`.
///   `encoding=text` says that messages are not base64. Nothing is sent yet. What fails for the
///   moment is tried again ([`Retrying`](super::Retrying), with its defaults).
///
/// `account=NAME` among the parameters of the first two replaces the address's account, which is
/// `local`.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that names no queue, with the rule;
/// what is wrong with the path, in one line; [`ErrorKind::Denied`](crate::ErrorKind::Denied) where
/// a credential is missing.
pub async fn open(url: &str) -> Result<Arc<dyn WorkQueue>> {
    let parsed = parse(url)?;
    match parsed.place {
        Place::Memory => Ok(Arc::new(shared(parsed.address))),
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path) => {
            let queue = super::SqliteQueue::open(&path, parsed.address.clone()).await?;
            warn_of_a_second_file(&parsed.address, &path);
            Ok(Arc::new(queue))
        }
        #[cfg(feature = "azure")]
        Place::Azure(encoding) => {
            let (account, name) = parsed.address.parts();
            let account = crate::azure::StorageAccount::from_environment(account)?;
            let config = super::AzureQueueConfig {
                encoding,
                ..super::AzureQueueConfig::new(account, name)
            };
            let queue = super::AzureQueue::open(&config)?;
            Ok(Arc::new(super::Retrying::new(
                queue,
                super::RetryConfig::default(),
            )))
        }
    }
}

/// Returns the address under which the queue of a URL is notified, without opening it.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that names no queue.
pub fn address(url: &str) -> Result<QueueAddress> {
    parse(url).map(|parsed| parsed.address)
}

/// Returns the URL of the queue at the same place whose name has `suffix` appended, as
/// `orders-poison` stands beside `orders`.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that names no queue, and where the
/// longer name breaks a rule.
pub fn beside(url: &str, suffix: &str) -> Result<String> {
    parse(url)?;
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let mut named = false;
    let longer = |parameter: &str| {
        let names = parameter.starts_with("queue=");
        named |= names;
        let suffix = if names { suffix } else { "" };
        format!("{parameter}{suffix}")
    };
    let query: Vec<_> = query.split('&').map(longer).collect();
    let mut other = base.to_owned();
    if !named {
        other.push_str(suffix);
    }
    if url.contains('?') {
        other = format!("{other}?{}", query.join("&"));
    }
    parse(&other)?;
    Ok(other)
}

fn parse(url: &str) -> Result<Parsed> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    #[cfg(feature = "azure")]
    if let Some(place) = base.strip_prefix("azure:") {
        return azure(place, query);
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
    let (place, name) = match base.split_once(':') {
        Some(("memory", inner)) if name.is_none() => (Place::Memory, inner),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) if !path.is_empty() => match name {
            Some(name) => (Place::Sqlite(path.into()), name),
            None => {
                let rule = format_args!("`{base}` needs a queue's name, as in `{base}?queue=jobs`");
                return Err(Error::invalid("queue", rule));
            }
        },
        _ => {
            let shown: String = base.chars().take(60).collect();
            let known = FORMS.iter().filter(|(_, known)| *known);
            let forms: Vec<_> = known.map(|(form, _)| *form).collect();
            let forms = forms.join(", ");
            let rule = format_args!("`{shown}` names no queue that is supported: {forms}");
            return Err(Error::invalid("queue", rule));
        }
    };
    let address = QueueAddress::new(account.unwrap_or(ACCOUNT), name)?;
    Ok(Parsed { place, address })
}

/// Reads what stands behind `azure:`.
#[cfg(feature = "azure")]
fn azure(place: &str, query: &str) -> Result<Parsed> {
    let named = place.strip_prefix("//").and_then(|p| p.split_once('/'));
    let Some((account, name)) = named else {
        let rule = "must name an account and a queue, as in `azure://ACCOUNT/QUEUE`";
        return Err(Error::invalid("queue", rule));
    };
    let encoding = match query.split_once('=') {
        Some(("encoding", encoding)) => encoding.parse()?,
        None if query.is_empty() => super::MessageEncoding::default(),
        // Not shown: it may be a signature, which belongs into the environment.
        _ => {
            let rule = "takes `encoding` and nothing else behind its `?`";
            return Err(Error::invalid("queue", rule));
        }
    };
    Ok(Parsed {
        place: Place::Azure(encoding),
        address: super::azure::azure_address(account, name)?,
    })
}

/// Warns where this process has opened another file's queue under the same address: a notification
/// would wake the listeners of both, and one that a group shares could wake the wrong one. The address
/// is not made of the file: a publisher and a listener that name the file by different paths would
/// not find each other, which loses wake-ups.
#[cfg(feature = "sqlite")]
fn warn_of_a_second_file(address: &QueueAddress, path: &std::path::Path) {
    static FILES: Mutex<BTreeMap<QueueAddress, std::path::PathBuf>> = Mutex::new(BTreeMap::new());
    let Ok(path) = path.canonicalize() else {
        return;
    };
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    // A process that opens ever new files keeps no more of them than this.
    if files.len() >= 1_000 {
        files.clear();
    }
    let Some(other) = files.insert(address.clone(), path.clone()) else {
        return;
    };
    drop(files);
    if other != path {
        tracing::warn!(
            %address,
            one = %other.display(),
            other = %path.display(),
            "queues of two files have one address: `&account=NAME` in the URL parts them"
        );
    }
}

/// Returns the memory queue of this name, of which there is one in a process.
fn shared(address: QueueAddress) -> MemoryQueue {
    static QUEUES: Mutex<Option<HashMap<QueueAddress, MemoryQueue>>> = Mutex::new(None);
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn a_queue_beside_another_has_its_place_and_account() {
        for (url, other) in [
            ("memory:jobs", "memory:jobs-poison"),
            ("memory:jobs?account=a", "memory:jobs-poison?account=a"),
            ("sqlite:q.db?queue=jobs", "sqlite:q.db?queue=jobs-poison"),
            (
                "sqlite:q.db?queue=jobs&account=a",
                "sqlite:q.db?queue=jobs-poison&account=a",
            ),
        ] {
            assert_eq!(beside(url, "-poison").expect(url), other);
        }
        #[cfg(feature = "azure")]
        for (url, other) in [
            ("azure://acct/jobs", "azure://acct/jobs-poison"),
            (
                "azure://acct/jobs?encoding=text",
                "azure://acct/jobs-poison?encoding=text",
            ),
        ] {
            assert_eq!(beside(url, "-poison").expect(url), other);
        }
        assert!(beside("sqlite:q.db", "-poison").is_err());
        assert!(beside("memory:jobs", "/poison").is_err());
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
