//! Time to live for blobs: expired blobs are deleted, or moved to a dead-blob container.
//!
//! A blob's metadata holds its expiry (`TimeToLive`) and the container it is moved to
//! (`DeadBlobContainer`; without one it is deleted). Any number of [`Sweeper`]s share the work
//! through one document under a lease. Each takes a page at a time, releases the lease at once, and
//! then works the page. Decisions on blobs and on the document are made without I/O. The content of
//! blobs is never read for a decision.

#[cfg(feature = "console")]
mod console;
mod counts;
pub(crate) mod document;
mod job;
pub(crate) mod judge;
mod page;
mod page_queue;
mod set_expiry;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use tokio_util::sync::CancellationToken;

#[cfg(feature = "console")]
pub use self::console::SweepConsole;
pub use self::{
    counts::Counts,
    job::{DeadAccount, SCHEMA, SweepContainer, SweepJob},
    judge::{DEAD_BLOB_CONTAINER, SWEPT_AT, SWEPT_FROM, TIME_TO_LIVE},
    set_expiry::set_expiry,
};
use self::{
    judge::Verdict,
    page::{BlobRemover, with_metadata},
    page_queue::{NextPage, PageQueue, PageRequest, Unreported},
};
use crate::{
    base::{
        backoff::{Backoff, jitter},
        clock::wall,
        sync::lock,
    },
    error::{Error, Result},
    store::{
        self, PageOptions,
        container::{self, Account, Container},
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
    sources: Vec<SourceContainer>,
    remover: BlobRemover,
    page_queue: PageQueue,
    stop: CancellationToken,
    stats: Mutex<SweepStats>,
    unreported: tokio::sync::Mutex<Unreported>,
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
    /// Why the job's own store failed in the last attempt, if it did.
    pub failure: Option<String>,
}

/// A container that is swept.
#[derive(Debug)]
struct SourceContainer {
    id: String,
    prefix: String,
    /// `None` if it is switched off.
    container: Option<Arc<dyn Container>>,
}

/// The result of a round for this instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepRound {
    /// The round's number: its start as a multiple of the interval.
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

/// Largest random delay of a round's start, so that instances do not start together.
const JITTER: Duration = Duration::from_secs(1);
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

impl Sweeper {
    /// Makes an instance. Containers are accessed when they are swept.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an invalid container or account, or a
    /// variable that is not set; any error from opening the job's own store.
    pub async fn new(job: SweepJob, environment: &BTreeMap<String, String>) -> Result<Self> {
        let mut sources = Vec::with_capacity(job.containers.len());
        for place in &job.containers {
            let container = match place.off {
                true => None,
                false => Some(connect(place, environment).await?),
            };
            sources.push(SourceContainer {
                id: place.id(),
                prefix: place.prefix.clone(),
                container,
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
            page_queue: PageQueue::new(state, &job.name)?,
            remover: BlobRemover::new(dead, job.parallel),
            stop: CancellationToken::new(),
            stats: Mutex::default(),
            unreported: tokio::sync::Mutex::default(),
            sources,
            job,
        })
    }

    /// Stops this instance after the page that it works on. [`Sweeper::run`] and
    /// [`Sweeper::sweep_once`] then return.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Returns what it has done so far.
    pub fn stats(&self) -> SweepStats {
        lock(&self.stats).clone()
    }

    /// Returns whether the job's document is in memory, and so ends with this process.
    pub fn is_alone(&self) -> bool {
        self.page_queue.store().to_string() == "memory:"
    }

    /// Returns the job.
    pub fn job(&self) -> &SweepJob {
        &self.job
    }

    /// Checks that every container exists and can be listed.
    ///
    /// # Errors
    /// The error of the first container that fails, or of the account for dead blobs.
    pub async fn check(&self) -> Result<()> {
        let one = PageOptions {
            size: 1,
            token: None,
        };
        for source in &self.sources {
            if let Some(container) = &source.container {
                container.list(&source.prefix, &one).await?;
            }
        }
        self.remover.check().await
    }

    /// Takes part in the running round, or begins this interval's round, until no page is left to
    /// take. `again` begins one more round in an interval that has had its round.
    ///
    /// Not cancel safe: a page of a cancelled call is not worked by any instance in this round. Use
    /// [`Sweeper::stop`] instead.
    ///
    /// # Errors
    /// Any error from reading or writing the job's document.
    pub async fn sweep_once(&self, again: bool) -> Result<SweepRound> {
        let round = self.join_round(again).await;
        let mut stats = lock(&self.stats);
        stats.failure = round.as_ref().err().map(ToString::to_string);
        if round
            .as_ref()
            .is_ok_and(|round| round.finished && round.pages > 0)
        {
            stats.rounds += 1;
            stats.last_round_at = Some(wall());
        }
        round
    }

    async fn join_round(&self, again: bool) -> Result<SweepRound> {
        // Two calls at a time would report the same counts twice.
        let mut unreported = self.unreported.lock().await;
        let mut round = SweepRound::default();
        let mut request = PageRequest {
            again,
            ..PageRequest::default()
        };
        loop {
            request.stop = self.stop.is_cancelled();
            let Some(claim) = self
                .page_queue
                .take(self, &request, &mut unreported)
                .await?
            else {
                if request.stop || unreported.counts.is_empty() {
                    return Ok(round);
                }
                continue;
            };
            round.round = claim.document.round;
            round.of_all = claim.document.counts;
            round.finished = claim.document.is_finished();
            (request.round, request.again) = (Some(claim.document.serial), false);
            let counts = match claim.page {
                NextPage::Empty => return Ok(round),
                NextPage::Page { source, page } => {
                    let container = self.sources[source].container.as_deref();
                    round.pages += 1;
                    lock(&self.stats).pages += 1;
                    self.remover
                        .work(container.expect("it is on"), page, wall())
                        .await
                }
                NextPage::ListFailed { source } => {
                    request.skipped.insert(source);
                    Counts {
                        failed: 1,
                        ..Counts::default()
                    }
                }
            };
            round.done.add(&counts);
            unreported.counts.add(&counts);
            lock(&self.stats).done.add(&counts);
        }
    }

    /// Sweeps at each multiple of the interval until it is stopped. Calls `report` for each round
    /// in which this instance worked a page. A failure of the job's own store is logged and
    /// retried.
    pub async fn run(&self, mut report: impl FnMut(&SweepRound)) {
        let mut rng = fastrand::Rng::new();
        let mut backoff = Backoff::new(RETRY_BACKOFF.0, RETRY_BACKOFF.1);
        while !self.stop.is_cancelled() {
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
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    /// Lists what a round would do, without doing it. Neither lease nor document is accessed.
    ///
    /// # Errors
    /// Any error from reading a container.
    pub async fn dry_run(&self, mut plan: impl FnMut(PlannedBlob)) -> Result<Counts> {
        let mut counts = Counts::default();
        for source in &self.sources {
            let Some(container) = source.container.as_deref() else {
                continue;
            };
            let mut page = PageOptions {
                size: self.job.page_size,
                token: None,
            };
            loop {
                let listed = match container.list(&source.prefix, &page).await {
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
                for head in listed.heads {
                    let Some(head) = with_metadata(container, head).await? else {
                        continue;
                    };
                    let verdict = self.remover.judge(container, &head, wall())?;
                    counts.count(verdict.planned());
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

async fn connect(
    place: &SweepContainer,
    environment: &BTreeMap<String, String>,
) -> Result<Arc<dyn Container>> {
    let variables = job::environment(&place.environment, environment)?;
    let url = job::resolve(&place.url, environment)?;
    container::connect(&url, &variables).await
}

fn describe(verdict: &Verdict) -> Option<(&'static str, String)> {
    match verdict {
        Verdict::Unmarked | Verdict::Alive => None,
        Verdict::Delete => Some(("delete", String::new())),
        Verdict::Move(to) => Some(("move", format!("{}/{}", to.container, to.name))),
        Verdict::Leave(reason) => Some(("leave", reason.as_str().to_owned())),
    }
}
