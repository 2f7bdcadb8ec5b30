//! Time to live for blobs: what has expired is deleted, or moved to a dead-blob container.
//!
//! A blob says in its metadata from when on nobody needs it (`TimeToLive`), and where it goes then
//! (`DeadBlobContainer`; nowhere: it is deleted). Any number of [`Sweeper`]s share the work by one
//! document under a lease: each takes a page at a time, gives the lease back at once, and works the
//! page then. What is to become of a blob and of the document is decided without I/O. Knows nothing
//! of what the blobs hold.

#[cfg(feature = "console")]
mod console;
mod counts;
mod document;
mod job;
mod judge;
mod mark;
mod page;
mod turns;

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
    mark::mark,
};
use self::{
    judge::Verdict,
    page::{Reaper, with_metadata},
    turns::{Memory, Taken, Turns, Wish},
};
use crate::{
    backoff::Backoff,
    clock::wall,
    error::{Error, Result},
    store::{
        self, PageOptions,
        container::{self, Account, Container},
    },
    sync::lock,
};

/// The folder of the jobs' documents. Nothing may sweep it.
pub const FOLDER: &str = "sweeps/";

/// One of the instances that sweep a job's containers.
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
    sources: Vec<Source>,
    reaper: Reaper,
    turns: Turns,
    stop: CancellationToken,
    stats: Mutex<SweepStats>,
    memory: tokio::sync::Mutex<Memory>,
}

/// What an instance has done since it began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepStats {
    /// What became of blobs.
    pub done: Counts,
    /// Pages worked.
    pub pages: u64,
    /// Rounds that it went along with to their end.
    pub rounds: u64,
    /// When the last of them ended, by this machine's clock.
    pub last_round_at: Option<SystemTime>,
    /// Why the job's own store could not be used, where the last attempt failed.
    pub failure: Option<String>,
}

/// A container that is swept.
#[derive(Debug)]
struct Source {
    id: String,
    prefix: String,
    /// `None` where it is off.
    container: Option<Arc<dyn Container>>,
}

/// What came of a round, as far as this instance went with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepRound {
    /// Its number: its start's multiple of the interval.
    pub round: u64,
    /// What this instance did.
    pub done: Counts,
    /// Pages that this instance worked.
    pub pages: u64,
    /// What all instances did, as far as they have said so.
    pub of_all: Counts,
    /// Every page was taken; others may be at work on theirs.
    pub finished: bool,
}

/// What would become of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedBlob {
    /// The container's address, without a signature.
    pub container: String,
    /// The blob's name.
    pub blob: String,
    /// `delete`, `move` or `leave`.
    pub action: &'static str,
    /// Where it would be moved to, or why it would be left.
    pub detail: String,
}

/// A round begins this much later at most than it might: not all instances at one time.
const JITTER: Duration = Duration::from_secs(1);
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

impl Sweeper {
    /// Makes an instance. Containers are looked at when they are swept, and not now.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for what is no container, no account, or a
    /// variable that is not set; what kept the job's own store from being opened.
    pub async fn new(job: SweepJob, environment: &BTreeMap<String, String>) -> Result<Self> {
        let mut sources = Vec::with_capacity(job.containers.len());
        for place in &job.containers {
            let container = match place.off {
                true => None,
                false => Some(connect(place, environment).await?),
            };
            sources.push(Source {
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
                    let rule = "a store in memory ends with this process, and the dead with it";
                    return Err(Error::invalid("dead.account", rule));
                }
                let account = Account::open(&account, &variables).await?;
                // What is wrong with the account is not a blob's fault.
                account.container("graves")?;
                Some(account)
            }
            None => None,
        };
        let state = job::resolve(&job.state, environment)?;
        let state = store::open_with(&state, environment).await?;
        Ok(Self {
            turns: Turns::new(state, &job.name)?,
            reaper: Reaper::new(dead, job.parallel),
            stop: CancellationToken::new(),
            stats: Mutex::default(),
            memory: tokio::sync::Mutex::default(),
            sources,
            job,
        })
    }

    /// Has this instance end when it has worked the page that it has taken: [`Sweeper::run`] and
    /// [`Sweeper::sweep_once`] return then.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Returns what it has done so far.
    pub fn stats(&self) -> SweepStats {
        lock(&self.stats).clone()
    }

    /// Returns whether the job's document ends with this process: it is in memory.
    pub fn is_alone(&self) -> bool {
        self.turns.store().to_string() == "memory:"
    }

    /// Returns the job.
    pub fn job(&self) -> &SweepJob {
        &self.job
    }

    /// Looks whether every container is there and may be listed.
    ///
    /// # Errors
    /// The first container's that is not or may not; that of the account for the dead.
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
        self.reaper.check().await
    }

    /// Takes part in the round that runs, or begins this interval's, until no page is left to take.
    /// `again` begins one more where this interval has had its round.
    ///
    /// Not cancel safe: a page that was taken is worked by nobody else in this round. To end it,
    /// [`Sweeper::stop`].
    ///
    /// # Errors
    /// What kept the job's own store from being read or written.
    pub async fn sweep_once(&self, again: bool) -> Result<SweepRound> {
        let round = self.go_along(again).await;
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

    async fn go_along(&self, again: bool) -> Result<SweepRound> {
        // Two calls at a time would tell the same twice.
        let mut memory = self.memory.lock().await;
        let mut round = SweepRound::default();
        let mut wish = Wish {
            again,
            ..Wish::default()
        };
        loop {
            wish.stop = self.stop.is_cancelled();
            let Some(turn) = self.turns.take(self, &wish, &mut memory).await? else {
                if wish.stop || memory.untold.is_empty() {
                    return Ok(round);
                }
                continue;
            };
            round.round = turn.document.round;
            round.of_all = turn.document.counts;
            round.finished = turn.document.is_finished();
            (wish.round, wish.again) = (Some(turn.document.serial), false);
            let counts = match turn.taken {
                Taken::Nothing => return Ok(round),
                Taken::Page { source, page } => {
                    let container = self.sources[source].container.as_deref();
                    round.pages += 1;
                    lock(&self.stats).pages += 1;
                    self.reaper
                        .work(container.expect("it is on"), page, wall())
                        .await
                }
                Taken::Failed { source } => {
                    wish.skipped.insert(source);
                    Counts {
                        failed: 1,
                        ..Counts::default()
                    }
                }
            };
            round.done.add(&counts);
            memory.untold.add(&counts);
            lock(&self.stats).done.add(&counts);
        }
    }

    /// Sweeps at each multiple of the interval, and tells `report` of each round in which this
    /// instance worked a page, until it is stopped. Where the job's own store fails it says so and
    /// tries again.
    pub async fn run(&self, mut report: impl FnMut(&SweepRound)) {
        let mut rng = fastrand::Rng::new();
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
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
                    tracing::warn!(%error, "the job cannot go on, and is tried again");
                    backoff.next(&mut rng)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    /// Says what a round would do, and does nothing: neither lease nor document is touched.
    ///
    /// # Errors
    /// What kept a container from being read.
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
                    let verdict = self.reaper.judge(container, &head, wall())?;
                    counts.expect(&verdict);
                    if let Some((action, detail)) = said(&verdict) {
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
        let jitter = JITTER.min(self.job.interval / 20);
        let spread =
            Duration::from_nanos(rng.u64(0..=u64::try_from(jitter.as_nanos()).unwrap_or(0)));
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

fn said(verdict: &Verdict) -> Option<(&'static str, String)> {
    match verdict {
        Verdict::Unmarked | Verdict::Alive => None,
        Verdict::Delete => Some(("delete", String::new())),
        Verdict::Move(to) => Some(("move", format!("{}/{}", to.container, to.name))),
        Verdict::Leave(reason) => Some(("leave", reason.as_str().to_owned())),
    }
}

impl Counts {
    fn expect(&mut self, verdict: &Verdict) {
        self.seen += 1;
        let count = match verdict {
            Verdict::Unmarked => &mut self.unmarked,
            Verdict::Alive => &mut self.alive,
            Verdict::Delete => &mut self.deleted,
            Verdict::Move(_) => &mut self.moved,
            Verdict::Leave(_) => &mut self.left,
        };
        *count += 1;
    }
}
