//! Time to live for blobs: expired blobs are deleted, or moved to a dead-blob container.
//!
//! A blob's metadata holds its expiry (`TimeToLive`) and the container it is moved to
//! (`DeadBlobContainer`; without one it is deleted). Any number of [`Sweeper`]s share the work
//! through one document under a lease. Each takes a page at a time, releases the lease at once, and
//! then works the page. Decisions on blobs and on the document are made without I/O. The content of
//! blobs is never read for a decision.

#[cfg(feature = "console")]
mod console;
pub(crate) mod document;
mod job;
pub(crate) mod judge;
mod page;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

pub use self::{
    document::Counts,
    job::{DeadAccount, SCHEMA, SweepContainer, SweepJob},
    judge::{DEAD_BLOB_CONTAINER, SWEPT_AT, SWEPT_FROM, TIME_TO_LIVE},
};
use self::{
    document::Document,
    judge::{Verdict, is_protected, stamp},
    page::{BlobRemover, with_metadata},
};
use crate::{
    base::{
        backoff::{Backoff, jitter},
        clock::wall,
        sync::lock,
    },
    coordination::lease::{Lease, LeaseConfig},
    error::{Error, ErrorKind, Result},
    store::{
        self, BlobName, BlobStore, Page, PageOptions,
        container::{self, Account, Container},
        write_over,
    },
};

/// The folder of the jobs' documents. Never sweep it.
pub const FOLDER: &str = "sweeps/";

/// An instance that sweeps a job's containers.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reveille::Result<()> {
/// use reveille::sweep::{SweepJob, Sweeper};
///
/// let job = SweepJob::parse(
///     r#"{"name": "sessions", "state": "memory:", "containers": [{"url": "memory:"}]}"#,
/// )?;
/// let sweeper = Sweeper::new(job, &reveille::store::environment()).await?;
/// let round = sweeper.sweep_once(false).await?;
/// assert_eq!(round.done.failed, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sweeper {
    job: SweepJob,
    /// Of the job's containers, in their order; `None` for those that are off.
    sources: Vec<Option<Arc<dyn Container>>>,
    remover: BlobRemover,
    /// The store of the document and its lease.
    state: Arc<dyn BlobStore>,
    document: BlobName,
    lease: Lease,
    stats: Mutex<SweepStats>,
}

/// What an instance has done since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepStats {
    /// Blobs, by outcome.
    pub done: Counts,
    /// Pages worked.
    pub pages: u64,
    /// Finished rounds in which it worked a page.
    pub rounds: u64,
    /// The end of the last of these rounds, by this machine's clock.
    pub last_round_at: Option<SystemTime>,
    /// Why the last attempt failed, if it did.
    pub failure: Option<String>,
}

/// The result of a round for this instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepRound {
    /// The round's number.
    pub round: u64,
    /// What this instance did.
    pub done: Counts,
    /// Pages that this instance worked.
    pub pages: u64,
    /// What all instances have reported.
    pub of_all: Counts,
    /// Whether every page was taken. Other instances may still work on theirs.
    pub finished: bool,
}

/// The planned action on a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedBlob {
    /// The container's address, without a signature.
    pub container: String,
    /// The blob's name.
    pub blob: String,
    /// `delete`, `move` or `leave`.
    pub action: &'static str,
    /// The destination of a move, or the reason to leave the blob.
    pub detail: String,
}

/// After a crash with the lease, other instances wait this long.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The lease is held for a few requests only.
const LEASE_POLL: Duration = Duration::from_millis(50);
/// Limit of the wait for the lease: two holders that crash one after the other.
const LEASE_TIMEOUT: Duration = Duration::from_secs(60);
/// Clocks that use NTP differ by milliseconds, and the lease was written a few requests ago.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);
/// Largest random delay of a round's start, so that instances do not start together.
const JITTER: Duration = Duration::from_secs(1);
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Attempts at a write of metadata that conflicts with other writers.
const ATTEMPTS: usize = 5;

/// A page that was taken: the container's index, and the list or why it failed.
type TakenPage = (usize, Result<Page>);

impl Sweeper {
    /// Makes an instance. Containers are accessed when they are swept.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an invalid container or account, or a
    /// variable that is not set; any error from opening the job's own store.
    pub async fn new(job: SweepJob, environment: &BTreeMap<String, String>) -> Result<Self> {
        let mut sources = Vec::with_capacity(job.containers.len());
        for place in &job.containers {
            sources.push(match place.off {
                true => None,
                false => {
                    let variables = job::environment(&place.environment, environment)?;
                    let url = job::resolve(&place.url, environment)?;
                    Some(container::connect(&url, &variables).await?)
                }
            });
        }
        let dead = match &job.dead {
            Some(dead) => {
                let variables = job::environment(&dead.environment, environment)?;
                let account = job::resolve(&dead.account, environment)?;
                if account == "memory:" {
                    let rule =
                        "must not be a store in memory: moved blobs would end with this process";
                    return Err(Error::invalid("dead.account", rule));
                }
                let account = Account::open(&account, &variables).await?;
                // Finds an error of the account now, instead of at each blob.
                account.container("graves")?;
                Some(account)
            }
            None => None,
        };
        let state = job::resolve(&job.state, environment)?;
        let state = store::open_with(&state, environment).await?;
        Ok(Self {
            document: BlobName::new(&format!("{FOLDER}{}", job.name))?,
            lease: job_lease(&state, &job.name)?,
            remover: BlobRemover::new(dead, job.parallel),
            state,
            sources,
            job,
            stats: Mutex::default(),
        })
    }

    /// Returns what this instance has done since its start.
    pub fn stats(&self) -> SweepStats {
        lock(&self.stats).clone()
    }

    /// Returns whether the job's document is in memory, and so ends with this process.
    pub fn is_alone(&self) -> bool {
        self.state.to_string() == "memory:"
    }

    /// Checks that every container exists and can be listed.
    ///
    /// # Errors
    /// The error of the first container that fails.
    pub async fn check(&self) -> Result<()> {
        let one = PageOptions {
            size: 1,
            token: None,
        };
        for (place, source) in self.job.containers.iter().zip(&self.sources) {
            if let Some(container) = source {
                container.list(&place.prefix, &one).await?;
            }
        }
        Ok(())
    }

    /// Takes part in the running round, or begins this interval's round, until no page is left to
    /// take. `again` begins one more round in an interval that has had its round.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if this machine's clock differs from that of the document's store
    /// by more than a minute; any error from reading or writing the document. If the answer to a
    /// write was lost, its page is left to the next round.
    ///
    /// # Cancel safety
    /// Safe: a page of a cancelled call is left to the next round.
    pub async fn sweep_once(&self, again: bool) -> Result<SweepRound> {
        let swept = self.work_round(again).await;
        let mut stats = lock(&self.stats);
        stats.failure = swept.as_ref().err().map(ToString::to_string);
        if let Ok(round) = &swept
            && round.finished
            && round.pages > 0
        {
            stats.rounds += 1;
            stats.last_round_at = Some(wall());
        }
        swept
    }

    async fn work_round(&self, again: bool) -> Result<SweepRound> {
        let mut round = SweepRound::default();
        let (mut joined, mut report) = (None, Counts::default());
        loop {
            let (document, page) = self.take_page(joined, again, &report).await?;
            joined = Some(document.round);
            round.round = document.round;
            round.of_all = document.counts;
            round.finished = document.is_finished();
            report = match page {
                None => return Ok(round),
                Some((source, Ok(page))) => {
                    round.pages += 1;
                    lock(&self.stats).pages += 1;
                    let container = self.sources[source].as_deref();
                    let container = container.expect("only those that are on are listed");
                    self.remover.work(container, page, wall()).await
                }
                Some((source, Err(error))) => {
                    let container = self.job.containers[source].id();
                    tracing::warn!(container, %error, "the container cannot be listed; it is left out of the round");
                    Counts {
                        failed: 1,
                        ..Counts::default()
                    }
                }
            };
            round.done.add(&report);
            lock(&self.stats).done.add(&report);
        }
    }

    /// Waits for the lease, takes a page, and releases the lease. The same write adds the counts of
    /// the page before to the document. `joined` is the round of that page.
    async fn take_page(
        &self,
        joined: Option<u64>,
        again: bool,
        report: &Counts,
    ) -> Result<(Document, Option<TakenPage>)> {
        let guard = tokio::time::timeout(LEASE_TIMEOUT, self.lease.acquire()).await;
        let guard = guard.unwrap_or_else(|_| {
            let message = format!(
                "{} was not acquired within {LEASE_TIMEOUT:?}: its store does not answer, or its \
                 holder hangs",
                self.lease
            );
            Err(Error::new(ErrorKind::Unavailable, message))
        })?;
        let taken = self.take_under_lease(joined, again, report).await;
        if let Err(error) = guard.release().await {
            tracing::debug!(%error, "the job's lease was not released and ends by itself");
        }
        taken
    }

    /// Compares this machine's clock with that of the store, which has just written the lease. A
    /// wrong clock would remove blobs too early or too late.
    async fn check_clock(&self) -> Result<()> {
        let Some(lease) = self.lease.state().await? else {
            return Ok(());
        };
        let (own, store) = (wall(), lease.written);
        let ahead = own.duration_since(store);
        let apart = ahead.unwrap_or_else(|behind| behind.duration());
        if apart <= MAX_CLOCK_DIFFERENCE {
            return Ok(());
        }
        let message = format!(
            "this machine's clock is at {} and that of {} at {}: nothing is swept until they are \
             within a minute of each other",
            stamp(own),
            self.state,
            stamp(store)
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    async fn take_under_lease(
        &self,
        joined: Option<u64>,
        again: bool,
        report: &Counts,
    ) -> Result<(Document, Option<TakenPage>)> {
        // One check in a round is enough.
        if joined.is_none() {
            self.check_clock().await?;
        }
        let found = self.state.get(&self.document).await?;
        let before = match &found {
            Some(blob) => {
                let shown = format!("blob `{}` of {}", self.document, self.state);
                Document::parse(&blob.content.bytes, &shown)?
            }
            None => Document::default(),
        };
        let mut document = before.clone();
        document.counts.add(report);
        let runs = match joined {
            Some(round) => document.round == round && !document.is_finished(),
            None => {
                let places = self.job.containers.iter();
                let own: Vec<_> = places.map(|place| (place.id(), place.off)).collect();
                document.join(&own, wall(), self.job.interval, again)
            }
        };
        let mut page = None;
        if runs && let Some(at) = document.next() {
            page = self.list_page(&mut document, at).await;
        }
        if document != before {
            let content = bytes::Bytes::from(document.to_bytes()).into();
            let etag = found.as_ref().map(|blob| &blob.etag);
            write_over(&*self.state, &self.document, content, etag).await?;
        }
        Ok((document, page))
    }

    /// Takes the next page of a container. One that cannot be listed is left out of the round.
    async fn list_page(&self, document: &mut Document, at: usize) -> Option<TakenPage> {
        let progress = &document.containers[at];
        let places = &self.job.containers;
        let source = places.iter().position(|place| place.id() == progress.id)?;
        let page = PageOptions {
            size: self.job.page_size,
            token: progress.token.clone(),
        };
        let container = self.sources[source].as_ref()?;
        let listed = container.list(&places[source].prefix, &page).await;
        let next = listed.as_ref().ok().and_then(|page| page.next.clone());
        document.record_page(at, next, wall());
        Some((source, listed))
    }

    /// Sweeps at each multiple of the interval, for ever. Calls `report` for each round in which this
    /// instance worked a page. A failure of the job's own store is logged and retried.
    ///
    /// # Cancel safety
    /// As [`Sweeper::sweep_once`].
    pub async fn run(&self, mut report: impl FnMut(&SweepRound)) {
        let mut rng = fastrand::Rng::new();
        let mut backoff = Backoff::new(RETRY_BACKOFF.0, RETRY_BACKOFF.1);
        loop {
            let wait = match self.sweep_once(false).await {
                Ok(round) => {
                    backoff.reset();
                    if round.pages > 0 || round.done.failed > 0 {
                        report(&round);
                    }
                    self.until_next(wall(), &mut rng)
                }
                Err(error) => {
                    tracing::warn!(%error, "the sweep job failed; retrying");
                    backoff.next(&mut rng)
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Lists what a round would do, without doing it. Neither lease nor document is accessed.
    ///
    /// # Errors
    /// Any error from reading a container.
    pub async fn dry_run(&self, mut plan: impl FnMut(PlannedBlob)) -> Result<Counts> {
        let mut counts = Counts::default();
        for (place, source) in self.job.containers.iter().zip(&self.sources) {
            let Some(container) = source.as_deref() else {
                continue;
            };
            let mut page = PageOptions {
                size: self.job.page_size,
                token: None,
            };
            loop {
                let listed = match container.list(&place.prefix, &page).await {
                    Ok(listed) => listed,
                    Err(error) => {
                        let container = container.address();
                        tracing::warn!(container, %error, "a container cannot be listed");
                        counts.failed += 1;
                        break;
                    }
                };
                counts.seen += listed.unnameable;
                counts.left += listed.unnameable;
                for head in listed.entries {
                    let Some(head) = with_metadata(container, head).await? else {
                        continue;
                    };
                    let verdict = self.remover.judge(container, &head, wall())?;
                    counts.count(Some(&verdict));
                    if let Some((action, detail)) = describe(&verdict) {
                        plan(PlannedBlob {
                            container: container.address(),
                            blob: head.name.to_string(),
                            action,
                            detail,
                        });
                    }
                }
                page.token = listed.next;
                if page.token.is_none() {
                    break;
                }
            }
        }
        Ok(counts)
    }

    fn until_next(&self, now: SystemTime, rng: &mut fastrand::Rng) -> Duration {
        let next = document::next_boundary(now, self.job.interval);
        let spread = jitter(JITTER.min(self.job.interval / 20), rng);
        next.duration_since(now).unwrap_or_default() + spread
    }
}

fn job_lease(state: &Arc<dyn BlobStore>, job: &str) -> Result<Lease> {
    let config = LeaseConfig {
        duration: LEASE_DURATION,
        poll: LEASE_POLL,
        ..LeaseConfig::default()
    };
    Lease::new(Arc::clone(state), &format!("sweep-{job}"), config)
}

fn describe(verdict: &Verdict) -> Option<(&'static str, String)> {
    match verdict {
        Verdict::Unmarked | Verdict::Alive | Verdict::Changed => None,
        Verdict::Delete => Some(("delete", String::new())),
        Verdict::Move(to) => Some(("move", format!("{}/{}", to.container, to.name))),
        Verdict::Leave(reason) => Some(("leave", reason.as_str().to_owned())),
    }
}

/// Writes an expiry and the destination of the expired blob into its metadata; without a time it
/// removes both. Other metadata stays. Returns the time as written.
///
/// `url` names the blob: `az://CONTAINER/BLOB`, `s3://BUCKET/BLOB`, `gs://BUCKET/BLOB`, or
/// `sqlite:PATH#BLOB`.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is no such blob; [`ErrorKind::Invalid`] for a URL of no blob,
/// and for the blob of a flag, a lease, a counter of ids or a job;
/// [`ErrorKind::Conflict`] if other writers keep changing it.
pub async fn set_expiry(
    url: &str,
    end: Option<SystemTime>,
    dead_container: Option<&str>,
    environment: &BTreeMap<String, String>,
) -> Result<Option<String>> {
    let (container, name) = container::open_blob(url, environment).await?;
    if end.is_some() && is_protected(&name) {
        let rule = format_args!(
            "`{name}` belongs to a flag, a lease, a counter of ids or a job, and is never swept"
        );
        return Err(Error::invalid("blob", rule));
    }
    let mut outcome = Err(Error::new(ErrorKind::Internal, "no attempt was made"));
    for _ in 0..ATTEMPTS {
        let head = container.head(&name).await?.ok_or_else(|| {
            let message = format!("there is no blob `{name}` in {container}");
            Error::new(ErrorKind::NotFound, message)
        })?;
        let mut metadata = head.metadata.unwrap_or_default();
        metadata.remove(TIME_TO_LIVE);
        metadata.remove(DEAD_BLOB_CONTAINER);
        let end = end.map(stamp);
        if let Some(end) = &end {
            metadata.insert(TIME_TO_LIVE.to_owned(), end.clone());
            let dead = dead_container.map(|dead| (DEAD_BLOB_CONTAINER.to_owned(), dead.to_owned()));
            metadata.extend(dead);
        }
        match container.set_metadata(&name, metadata, &head.etag).await {
            Ok(()) => return Ok(end),
            Err(error) if error.kind() == ErrorKind::Conflict => outcome = Err(error),
            Err(error) => return Err(error),
        }
    }
    outcome
}
