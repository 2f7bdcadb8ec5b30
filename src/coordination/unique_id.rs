//! Unique ids for any number of nodes, from a blob that holds one number.
//!
//! A [`UniqueIdGenerator`] takes a range of ids: it adds the range's size to the blob with a
//! conditional write. Then it gives out the ids from memory. A crash loses the rest of its range
//! and repeats no id. The use of the ids is unknown here.

#[cfg(test)]
mod tests;

use std::{
    fmt::{self, Debug, Display},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use crate::{
    base::{
        backoff::Backoff,
        duration::Span,
        sync::{Mutex, lock},
    },
    error::{Error, ErrorKind, Result},
    store::{BlobName, BlobStore, ETag, write_over},
};

/// Blobs of this folder hold next free ids, where the command line names them: never swept.
pub const FOLDER: &str = "ids/";

/// How ids are taken.
#[derive(Debug, Clone)]
pub struct IdConfig {
    /// Ids of a range; at least 1. The caller that needs a range waits for the store. A crash loses
    /// the rest of the range.
    pub range_size: u64,
    /// How long a range is retried while other generators write first. Of many generators that
    /// write at the same moment, one gets a range per round trip to the store: about 50 to 100 a
    /// second on a cloud. 4,000 nodes that start together need 40 to 80 seconds. A store that does
    /// not answer is retried for this time as well, but at most for 10 seconds after its last
    /// answer. Zero means one attempt.
    pub retry_for: Duration,
    /// The first id, if the blob does not exist.
    pub start: u64,
}

/// Gives out ids that no other generator on the same blob gives out, in any process and after any
/// crash.
///
/// The ids of one generator grow; ids of several generators interleave range by range. The first id
/// is the number in the blob.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reveille::Result<()> {
/// use reveille::store::{self, BlobName};
/// use reveille::unique_id::{BlobSyncStore, IdConfig, UniqueIdGenerator};
///
/// let store = store::open("memory:").await?; // in production: a store that all nodes share
/// let blob = BlobSyncStore::new(store, BlobName::new("ids/orders")?);
/// let orders = UniqueIdGenerator::new(blob, IdConfig::default())?;
/// assert_eq!(orders.next_id().await?, 0);
/// assert_eq!(orders.next_ids(3).await?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct UniqueIdGenerator {
    config: IdConfig,
    /// The ids in memory.
    ids: Mutex<Range<u64>>,
    source: AsyncMutex<RangeSource>,
}

#[derive(Debug)]
struct RangeSource {
    store: Box<dyn OptimisticSyncStore>,
    /// Whether the blob existed once. Its absence is then an error and not the first start.
    seen: bool,
    /// The last failure and its time: the callers that waited for the same range share it.
    failure: Option<(Instant, Error)>,
}

/// Ids fit a signed number of 64 bits, as in other languages and databases.
const MAX_ID: u64 = i64::MAX as u64;
/// Longest wait after the first conflict. It doubles with each further conflict.
const FIRST_WAIT: Duration = Duration::from_millis(2);
/// With this wait 4,000 generators make 1,600 attempts a second. More attempts would only use up
/// the service's request rate.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// See [`IdConfig::retry_for`].
const RETRY_FOR: Duration = Duration::from_secs(120);
/// A store without an answer for this time counts as unavailable.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(10);

impl Default for IdConfig {
    fn default() -> Self {
        Self {
            range_size: 1000,
            retry_for: RETRY_FOR,
            start: 0,
        }
    }
}

impl UniqueIdGenerator {
    /// Makes a generator. Reads nothing yet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an empty range, for numbers above `i64::MAX`, and for a start
    /// that leaves no room for a range.
    pub fn new(store: impl OptimisticSyncStore, config: IdConfig) -> Result<Self> {
        for (field, value) in [("range_size", config.range_size), ("start", config.start)] {
            if value > MAX_ID {
                let rule = format_args!("must be at most {MAX_ID}, not {value}");
                return Err(Error::invalid(field, rule));
            }
        }
        if config.range_size == 0 {
            return Err(Error::invalid("range_size", "must be at least 1"));
        }
        let last_start = MAX_ID - config.range_size;
        if config.start > last_start {
            let rule = format_args!(
                "must be at most {last_start}, so that {} ids are left, not {}",
                config.range_size, config.start
            );
            return Err(Error::invalid("start", rule));
        }
        let source = RangeSource {
            store: Box::new(store),
            seen: false,
            failure: None,
        };
        Ok(Self {
            config,
            ids: Mutex::default(),
            source: AsyncMutex::new(source),
        })
    }

    /// Returns the next id.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if other generators wrote first during all of `retry_for`;
    /// [`ErrorKind::Invalid`] if the blob holds no number, was deleted, or has no ids left; the
    /// store's last error. The next call tries again.
    ///
    /// # Cancel safety
    /// Not safe: a range that it fetches may be lost; no id is repeated.
    pub async fn next_id(&self) -> Result<u64> {
        loop {
            if let Some(range) = self.take(1) {
                return Ok(range.start);
            }
            self.fetch().await?;
        }
    }

    /// Returns the next `count` ids in growing order, from as many ranges as needed.
    ///
    /// # Errors
    /// As [`next_id`](Self::next_id). The ids that it has taken are lost.
    ///
    /// # Cancel safety
    /// As [`next_id`](Self::next_id), and the ids that it has taken are lost.
    pub async fn next_ids(&self, count: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(count.min(1 << 20));
        while taken.len() < count {
            match self.take((count - taken.len()) as u64) {
                Some(range) => taken.extend(range),
                None => self.fetch().await?,
            }
        }
        Ok(taken)
    }

    /// Takes at most `max` ids from memory; `None` if there are none.
    fn take(&self, max: u64) -> Option<Range<u64>> {
        let mut ids = lock(&self.ids);
        let Range { start, end } = *ids;
        ids.start = start + max.min(end - start);
        (start < end).then_some(start..ids.start)
    }

    /// Fetches the next range, once for all callers that wait for it.
    async fn fetch(&self) -> Result<()> {
        let began = Instant::now();
        let mut source = self.source.lock().await;
        if !lock(&self.ids).is_empty() {
            return Ok(());
        }
        if let Some((at, error)) = &source.failure
            && *at > began
        {
            return Err(error.clone());
        }
        let taken = source.take_range(&self.config).await;
        let failure = taken.as_ref().err();
        source.failure = failure.map(|error| (Instant::now(), error.clone()));
        *lock(&self.ids) = taken?;
        Ok(())
    }
}

impl RangeSource {
    /// Retries until it has a range.
    async fn take_range(&mut self, config: &IdConfig) -> Result<Range<u64>> {
        let mut backoff = Backoff::new(FIRST_WAIT, MAX_WAIT);
        let (began, mut conflicts) = (Instant::now(), 0);
        let mut answered = began;
        loop {
            let error = match self.try_once(config).await {
                Ok(Some(range)) => return Ok(range),
                Ok(None) => {
                    conflicts += 1;
                    answered = Instant::now();
                    self.conflict_error(config, conflicts)
                }
                // The write may have happened: then its range stays unused, and a new one is taken.
                // It cannot be recognised, because the number does not identify its writer.
                Err(error) if error.is_retryable() => error,
                Err(error) => return Err(error),
            };
            // A service that throttles is available.
            if error.kind() == ErrorKind::Exhausted {
                answered = Instant::now();
            }
            let left = config.retry_for.saturating_sub(began.elapsed());
            let left = left.min(OUTAGE_TIMEOUT.saturating_sub(answered.elapsed()));
            if left.is_zero() {
                return Err(error);
            }
            // The last attempt is at the end of the time.
            let wait = backoff.next(&mut fastrand::Rng::new()).min(left);
            tokio::time::sleep(wait).await;
        }
    }

    /// Reads, adds and writes; `None` if another generator wrote first.
    async fn try_once(&mut self, config: &IdConfig) -> Result<Option<Range<u64>>> {
        let first = match self.store.get_data().await? {
            Some(text) => {
                self.seen = true;
                number(&text).ok_or_else(|| {
                    let shown: String = text.chars().take(40).collect();
                    let rule = format_args!("must be a number up to {MAX_ID}, but is {shown:?}");
                    Error::invalid(&self.store.to_string(), rule)
                })?
            }
            None if self.seen => {
                let rule = "was deleted: ids would start again, so write the next free id there";
                return Err(Error::invalid(&self.store.to_string(), rule));
            }
            None => config.start,
        };
        let end = first.checked_add(config.range_size);
        let Some(end) = end.filter(|end| *end <= MAX_ID) else {
            let rule = format_args!("no {} ids are left after {first}", config.range_size);
            return Err(Error::invalid(&self.store.to_string(), rule));
        };
        let written = self.store.try_optimistic_write(&end.to_string()).await?;
        // A write shows that the blob exists.
        self.seen |= written;
        Ok(written.then_some(first..end))
    }

    fn conflict_error(&self, config: &IdConfig, conflicts: u32) -> Error {
        let message = format!(
            "other generators wrote first {conflicts} times within {} at {}; a greater range_size \
             than {} writes less often",
            Span(config.retry_for),
            self.store,
            config.range_size
        );
        Error::new(ErrorKind::Conflict, message)
    }
}

/// Parses the next free id. A text editor may have added a line end.
pub(crate) fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end();
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .parse()
        .ok()
        .filter(|number| plain && *number <= MAX_ID)
}

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
        match write_over(&*self.store, &self.blob, content, self.etag.as_ref()).await {
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
