//! Takes ranges of ids, and hands them out.
//!
//! The next range is fetched when half of the present one is gone, by a task of its own: whoever
//! asks for an id waits for the store only where ids go faster than ranges come.

use std::{ops::Range, sync::Arc, time::Duration};

use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    time::Instant,
};

use super::sync_store::OptimisticSyncStore;
use crate::{
    backoff::Backoff,
    duration::Span,
    error::{Error, ErrorKind, Result},
    sync::{Mutex, lock},
    task::Scope,
};

/// How ids are taken.
#[derive(Debug, Clone)]
pub struct IdConfig {
    /// Ids taken at once; at least 1. A crash loses at most two ranges of them.
    pub range_size: u64,
    /// The next range is fetched when half of the present one is gone. Where it is not, whoever
    /// needs a range waits for it, and none is fetched in vain: for a known number of ids.
    pub fetch_ahead: bool,
    /// How long a range is tried for while other generators are faster: of many that ask at the same
    /// moment one gets a range in each round trip to the store, about 50 to 100 a second on a cloud.
    /// 4,000 nodes that start together need 40 to 80 seconds. A store that does not answer is tried
    /// again for this long too, but at most for 10 seconds after its last answer. Zero: one try.
    pub retry_for: Duration,
    /// The first id of all, where the blob is not there yet.
    pub start: u64,
    /// For repeatable waits between tries; `None` is by chance.
    pub seed: Option<u64>,
}

/// Hands out ids that no other generator on the same blob hands out: whichever process, whatever
/// crashes.
///
/// Ids of one generator grow; those of several interleave range by range. The first id is the
/// number in the blob.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reveille::Result<()> {
/// use reveille::store::{self, BlobName};
/// use reveille::unique_id::{BlobSyncStore, IdConfig, UniqueIdGenerator};
///
/// let store = store::open("memory:").await?; // and a store that all nodes share
/// let blob = BlobSyncStore::new(store, BlobName::new("ids/orders")?);
/// let orders = UniqueIdGenerator::new(blob, IdConfig::default())?;
/// assert_eq!(orders.next_id().await?, 0);
/// assert_eq!(orders.next_ids(3).await?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct UniqueIdGenerator {
    shared: Arc<Shared>,
    scope: Scope,
}

#[derive(Debug)]
struct Shared {
    config: IdConfig,
    ids: Mutex<Ids>,
    source: AsyncMutex<Source>,
}

/// What is in memory.
#[derive(Debug, Default)]
struct Ids {
    present: Range<u64>,
    /// The range after it.
    next: Option<Range<u64>>,
    /// What comes of the fetch that runs.
    fetch: Option<watch::Receiver<Option<Result<()>>>>,
}

#[derive(Debug)]
struct Source {
    store: Box<dyn OptimisticSyncStore>,
    /// The blob was there once, so its absence is no beginning.
    seen: bool,
    rng: fastrand::Rng,
}

/// Ids fit a signed number of 64 bits, as other languages and databases have it.
const MOST: u64 = i64::MAX as u64;
/// Whoever was too slow waits up to this the first time, then up to twice as long.
const WAIT: Duration = Duration::from_millis(2);
/// 4,000 that wait so make 1,600 tries a second. More often they would only take the service's
/// requests from each other.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// See [`IdConfig::retry_for`].
const RETRY_FOR: Duration = Duration::from_secs(120);
/// A store that has not answered for so long is away.
const AWAY: Duration = Duration::from_secs(10);

impl Default for IdConfig {
    fn default() -> Self {
        Self {
            range_size: 1000,
            fetch_ahead: true,
            retry_for: RETRY_FOR,
            start: 0,
            seed: None,
        }
    }
}

impl UniqueIdGenerator {
    /// Makes a generator; nothing is read yet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for ranges of no ids, for numbers above `i64::MAX`, and for a start
    /// that leaves no room for a range.
    pub fn new(store: impl OptimisticSyncStore, config: IdConfig) -> Result<Self> {
        for (field, value) in [("range_size", config.range_size), ("start", config.start)] {
            if value > MOST {
                let rule = format_args!("must be at most {MOST}, not {value}");
                return Err(Error::invalid(field, rule));
            }
        }
        if config.range_size == 0 {
            return Err(Error::invalid("range_size", "must be at least 1"));
        }
        let last_start = MOST - config.range_size;
        if config.start > last_start {
            let rule = format_args!(
                "must be at most {last_start}, so that {} ids are left, not {}",
                config.range_size, config.start
            );
            return Err(Error::invalid("start", rule));
        }
        let rng = config
            .seed
            .map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let source = Source {
            store: Box::new(store),
            seen: false,
            rng,
        };
        let shared = Shared {
            config,
            ids: Mutex::default(),
            source: AsyncMutex::new(source),
        };
        Ok(Self {
            shared: Arc::new(shared),
            scope: Scope::new(),
        })
    }

    /// Returns the next id.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where others were faster for all of `retry_for`;
    /// [`ErrorKind::Invalid`] where the blob holds no number, is gone though it was there, or no ids
    /// are left; what the store said at last. The next call tries again.
    ///
    /// # Cancel safety
    /// Safe: no id is lost but what a crash would lose.
    pub async fn next_id(&self) -> Result<u64> {
        loop {
            if let Some(range) = self.take(1) {
                return Ok(range.start);
            }
            self.wait().await?;
        }
    }

    /// Returns the next `count` ids, in growing order, from as many ranges as that takes.
    ///
    /// # Errors
    /// As [`next_id`](Self::next_id); the ids that were taken for it already are lost then.
    ///
    /// # Cancel safety
    /// Not safe: ids that were taken for it already are lost, none is repeated.
    pub async fn next_ids(&self, count: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(count.min(1 << 20));
        while taken.len() < count {
            match self.take((count - taken.len()) as u64) {
                Some(range) => taken.extend(range),
                None => self.wait().await?,
            }
        }
        Ok(taken)
    }

    /// Takes so many ids at most out of memory; `None` where there is none.
    fn take(&self, most: u64) -> Option<Range<u64>> {
        let mut ids = lock(&self.shared.ids);
        if ids.present.is_empty() {
            ids.present = ids.next.take()?;
        }
        let Range {
            start: first,
            end: last,
        } = ids.present;
        let end = first + most.min(last - first);
        ids.present.start = end;
        let IdConfig {
            range_size,
            fetch_ahead,
            ..
        } = self.shared.config;
        // Once a range: where that fails, whoever needs the next one tries again.
        let half = range_size / 2;
        let passed = last - first > half && last - end <= half;
        if passed && fetch_ahead && ids.next.is_none() {
            self.fetch(&mut ids);
        }
        Some(first..end)
    }

    /// Waits for the next range.
    async fn wait(&self) -> Result<()> {
        let mut fetched = {
            let mut ids = lock(&self.shared.ids);
            // Another one that waited may have got it: a second range would take its place.
            if !ids.present.is_empty() || ids.next.is_some() {
                return Ok(());
            }
            self.fetch(&mut ids)
        };
        // Until it has ended, however that is.
        while fetched.changed().await.is_ok() {}
        let outcome = fetched.borrow().clone();
        let aborted = || Error::new(ErrorKind::Internal, "what fetched ids has ended too early");
        outcome.unwrap_or_else(|| Err(aborted()))
    }

    /// Fetches the next range, unless that is done already; returns what comes of it.
    fn fetch(&self, ids: &mut Ids) -> watch::Receiver<Option<Result<()>>> {
        // One that panicked has closed its channel.
        let running = ids.fetch.as_ref();
        if let Some(fetch) = running.filter(|fetch| fetch.has_changed().is_ok()) {
            return fetch.clone();
        }
        let (told, fetch) = watch::channel(None);
        ids.fetch = Some(fetch.clone());
        let shared = Arc::clone(&self.shared);
        self.scope.spawn(async move {
            let taken = shared.source.lock().await.take_range(&shared.config).await;
            if let Err(error) = &taken {
                tracing::warn!(%error, "no ids could be fetched");
            }
            told.send_replace(Some(shared.fetched(taken)));
        });
        fetch
    }
}

impl Shared {
    /// Keeps what was fetched. From then on the next range may be fetched.
    fn fetched(&self, taken: Result<Range<u64>>) -> Result<()> {
        let mut ids = lock(&self.ids);
        ids.fetch = None;
        taken.map(|range| ids.next = Some(range))
    }
}

impl Source {
    /// Tries until a range is ours.
    async fn take_range(&mut self, config: &IdConfig) -> Result<Range<u64>> {
        let mut backoff = Backoff::new(WAIT, LONGEST_WAIT);
        let (began, mut conflicts) = (Instant::now(), 0);
        let mut answered = began;
        loop {
            let error = match self.try_once(config).await {
                Ok(Some(range)) => return Ok(range),
                Ok(None) => {
                    conflicts += 1;
                    answered = Instant::now();
                    self.contended(config, conflicts)
                }
                // The write may have happened: that range is nobody's then, and a fresh one is
                // taken. To recognise it as ours is impossible: the number says nothing of who
                // wrote it.
                Err(error) if error.is_retryable() => error,
                Err(error) => return Err(error),
            };
            // A service that throttles is there.
            if error.kind() == ErrorKind::Exhausted {
                answered = Instant::now();
            }
            let left = config.retry_for.saturating_sub(began.elapsed());
            let left = left.min(AWAY.saturating_sub(answered.elapsed()));
            if left.is_zero() {
                return Err(error);
            }
            // The last try is at the end of the time.
            let wait = backoff.next(&mut self.rng).min(left);
            tokio::time::sleep(wait).await;
        }
    }

    /// Reads, adds, writes; `None` where somebody else was faster.
    async fn try_once(&mut self, config: &IdConfig) -> Result<Option<Range<u64>>> {
        let first = match self.store.get_data().await? {
            Some(text) => {
                self.seen = true;
                number(&text).ok_or_else(|| {
                    let shown: String = text.chars().take(40).collect();
                    let rule = format_args!("must be a number up to {MOST}, but is {shown:?}");
                    Error::invalid(&self.store.to_string(), rule)
                })?
            }
            None if self.seen => {
                let rule = "was deleted: ids would begin again, so write the next free id there";
                return Err(Error::invalid(&self.store.to_string(), rule));
            }
            None => config.start,
        };
        let end = first.checked_add(config.range_size);
        let Some(end) = end.filter(|end| *end <= MOST) else {
            let rule = format_args!("no {} ids are left after {first}", config.range_size);
            return Err(Error::invalid(&self.store.to_string(), rule));
        };
        let written = self.store.try_optimistic_write(&end.to_string()).await?;
        // Whoever wrote it has seen it.
        self.seen |= written;
        Ok(written.then_some(first..end))
    }

    fn contended(&self, config: &IdConfig, conflicts: u32) -> Error {
        let message = format!(
            "others were faster {conflicts} times within {} at {}; a greater range_size than {} \
             writes less often",
            Span(config.retry_for),
            self.store,
            config.range_size
        );
        Error::new(ErrorKind::Conflict, message)
    }
}

/// Reads the next free id; an editor may have added the end of a line.
fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end();
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .parse()
        .ok()
        .filter(|number| plain && *number <= MOST)
}
