//! Turns at the job's document: under the lease one page is listed and taken, and nothing is worked.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{Source, Sweeper, counts::Counts, document::Document};
use crate::{
    clock::wall,
    duration::Span,
    error::{Error, ErrorKind, Result},
    lease::{Lease, LeaseConfig, LeaseGuard},
    store::{BlobName, BlobStore, ETag, PageOptions, container::HeadPage},
};

/// The document and its lease.
#[derive(Debug)]
pub(super) struct Turns {
    store: Arc<dyn BlobStore>,
    blob: BlobName,
    lease: Lease,
}

/// What a turn is taken for.
#[derive(Debug, Default)]
pub(super) struct Wish {
    /// Only a page of this round; `None` begins one, if it is time.
    pub(super) round: Option<u64>,
    /// One more round where this interval has had its own.
    pub(super) again: bool,
    /// Nothing is taken any more, and only said what was done.
    pub(super) stop: bool,
    /// Containers that could not be listed just now.
    pub(super) skipped: HashSet<usize>,
}

/// What an instance has to tell, from one turn to the next.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// What the document does not say yet.
    pub(super) untold: Counts,
    /// What was written without an answer, by its nonce: it may be what stands there.
    sent: Vec<(String, Turn)>,
}

/// What a turn came to.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) taken: Taken,
    /// As it was written.
    pub(super) document: Document,
}

#[derive(Debug)]
pub(super) enum Taken {
    /// A page is ours to work.
    Page { source: usize, page: HeadPage },
    /// A container could not be listed; for `good`, it is done with in this round.
    Failed { source: usize },
    /// Nothing is left to take, for us.
    Nothing,
}

/// A crash in a turn holds the others up for this long.
const LEASE: Duration = Duration::from_secs(15);
/// A turn is a few requests.
const POLL: Duration = Duration::from_millis(50);
/// Two holders that crash, one after the other.
const PATIENCE: Duration = Duration::from_secs(60);
/// Whoever ends says what it did, if that is quickly done.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Only a hand, or one whose lease was lost meanwhile, writes in between.
const TRIES: usize = 5;
/// How far this machine's clock may be from the store's. Clocks that are kept by NTP are within
/// milliseconds; a lease that was written and read again is at most half a minute old.
const CLOCKS: Duration = Duration::from_secs(60);

impl Turns {
    pub(super) fn new(store: Arc<dyn BlobStore>, job: &str) -> Result<Self> {
        let blob = BlobName::new(&format!("{}{job}", super::FOLDER))?;
        let config = LeaseConfig {
            duration: LEASE,
            poll: POLL,
            ..LeaseConfig::default()
        };
        let lease = Lease::new(Arc::clone(&store), &format!("sweep-{job}"), config)?;
        Ok(Self { store, blob, lease })
    }

    /// Returns the store of the document.
    pub(super) fn store(&self) -> &dyn BlobStore {
        &*self.store
    }

    /// Waits for the lease, takes a page, and gives the lease back. What is not told yet is added to
    /// the document's counts by the same write. `None` where the sweeper was stopped first.
    pub(super) async fn take(
        &self,
        sweeper: &Sweeper,
        wish: &Wish,
        memory: &mut Memory,
    ) -> Result<Option<Turn>> {
        let Some(held) = self.hold(wish, &sweeper.stop).await? else {
            return Ok(None);
        };
        // Once a round is enough.
        let clock = match wish.round {
            None if !wish.stop => self.check_clock().await,
            _ => Ok(()),
        };
        let mut turn = clock.map(|()| None);
        for _ in 0..TRIES {
            if !matches!(turn, Ok(None)) {
                break;
            }
            turn = self.try_take(sweeper, wish, memory).await;
        }
        if let Err(error) = held.release().await {
            tracing::debug!(%error, "the job's lease runs out by itself");
        }
        if let Ok(Some(_)) = &turn {
            *memory = Memory::default();
        }
        turn?.map(Some).ok_or_else(|| {
            let message = format!("{} is written by others all the time", self.shown());
            Error::new(ErrorKind::Conflict, message)
        })
    }

    /// Waits for the lease, and not for ever: a store that is away is said.
    async fn hold(&self, wish: &Wish, stop: &CancellationToken) -> Result<Option<LeaseGuard>> {
        let patience = if wish.stop { LAST_WORDS } else { PATIENCE };
        tokio::select! {
            held = tokio::time::timeout(patience, self.lease.acquire()) => match held {
                Ok(held) => held.map(Some),
                Err(_) if wish.stop => Ok(None),
                Err(_) => {
                    let message = format!(
                        "{} was not had within {PATIENCE:?}: its store is away, or whoever holds it \
                         hangs",
                        self.lease
                    );
                    Err(Error::new(ErrorKind::Unavailable, message))
                }
            },
            () = stop.cancelled(), if !wish.stop => Ok(None),
        }
    }

    /// Refuses to go on where this machine's clock is far from the store's, which has just written
    /// the time of the lease: blobs would be removed before their time, or long after it.
    async fn check_clock(&self) -> Result<()> {
        let Some(lease) = self.lease.state().await? else {
            return Ok(());
        };
        let now = wall();
        let (apart, where_to) = match now.duration_since(lease.written) {
            Ok(ahead) => (ahead, "ahead of"),
            Err(behind) => (behind.duration(), "behind"),
        };
        if apart <= CLOCKS {
            return Ok(());
        }
        let message = format!(
            "this machine's clock is {} {where_to} that of {}: nothing is swept until they are \
             within {} of each other",
            Span(Duration::from_secs(apart.as_secs())),
            self.store,
            Span(CLOCKS)
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// Returns `None` where the document was written by another meanwhile, or it is not known whether
    /// it was written by us.
    async fn try_take(
        &self,
        sweeper: &Sweeper,
        wish: &Wish,
        memory: &mut Memory,
    ) -> Result<Option<Turn>> {
        let (mut document, etag) = self.read().await?;
        // A write without an answer, or one that came late; it told what was untold.
        let ours = |(nonce, _): &(String, Turn)| *nonce == document.nonce;
        if let Some(ours) = memory.sent.iter().position(ours) {
            return Ok(Some(memory.sent.swap_remove(ours).1));
        }
        let before = document.clone();
        document.add(&memory.untold);
        let taken = match sweeper.runs(&mut document, wish) {
            true => sweeper.take_of(&mut document, &wish.skipped).await,
            false => Taken::Nothing,
        };
        if document == before {
            return Ok(Some(Turn { taken, document }));
        }
        document.nonce = nonce()?;
        let written = self.write(&document, etag.as_ref()).await;
        let turn = Turn { taken, document };
        match written {
            Ok(_) => Ok(Some(turn)),
            Err(error) if error.kind() == ErrorKind::Conflict || error.is_retryable() => {
                memory.sent.push((turn.document.nonce.clone(), turn));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn read(&self) -> Result<(Document, Option<ETag>)> {
        match self.store.get(&self.blob).await? {
            None => Ok((Document::new(), None)),
            Some(blob) => {
                let document = Document::parse(&blob.content.bytes, &self.shown())?;
                Ok((document, Some(blob.etag)))
            }
        }
    }

    async fn write(&self, document: &Document, etag: Option<&ETag>) -> Result<ETag> {
        let content = bytes::Bytes::from(document.to_bytes()).into();
        match etag {
            Some(etag) => self.store.update(&self.blob, content, etag).await,
            None => self.store.create(&self.blob, content).await,
        }
    }

    fn shown(&self) -> String {
        format!("blob `{}` of {}", self.blob, self.store)
    }
}

impl Source {
    /// Returns what it is called in the document, and whether it is off.
    fn of_document(&self) -> (String, bool) {
        (self.id.clone(), self.container.is_none())
    }

    async fn list(&self, size: usize, token: Option<String>) -> Result<HeadPage> {
        let container = self.container.as_ref().expect("it is on");
        let page = PageOptions { size, token };
        container.list(&self.prefix, &page).await
    }
}

impl Sweeper {
    /// Returns whether a round runs that is wished for; begins one where it is time.
    fn runs(&self, document: &mut Document, wish: &Wish) -> bool {
        if wish.stop {
            return false;
        }
        let is_off = |id: &str| {
            let mut ours = self.sources.iter().filter(|source| source.id == id);
            ours.any(|source| source.container.is_none())
        };
        document.turn_off(is_off, wall());
        match wish.round {
            Some(round) => document.serial == round && !document.is_finished(),
            None => {
                let containers: Vec<_> = self.sources.iter().map(Source::of_document).collect();
                document.begin(&containers, wall(), self.job.interval, wish.again)
            }
        }
    }

    /// Takes the next page. A container that cannot be listed for a reason that may pass is left open:
    /// the next interval goes on with it.
    async fn take_of(&self, document: &mut Document, skipped: &HashSet<usize>) -> Taken {
        let ours = |id: &str| self.source(id).is_some_and(|at| !skipped.contains(&at));
        let Some((at, token)) = document.next(ours) else {
            return Taken::Nothing;
        };
        let source = self.source(&document.containers[at].id).expect("ours");
        match self.sources[source].list(self.job.page_size, token).await {
            Ok(page) => {
                document.took(at, page.next.clone(), wall());
                Taken::Page { source, page }
            }
            Err(error) => {
                let container = &self.sources[source].id;
                let passes = error.is_retryable();
                tracing::warn!(container, passes, %error, "it cannot be listed");
                if !passes {
                    document.took(at, None, wall());
                }
                Taken::Failed { source }
            }
        }
    }

    /// Returns which of our containers the document calls so.
    fn source(&self, id: &str) -> Option<usize> {
        let is_it = |source: &Source| source.id == id && source.container.is_some();
        self.sources.iter().position(is_it)
    }
}

fn nonce() -> Result<String> {
    let [high, low] = [getrandom::u64(), getrandom::u64()].map(|random| {
        random.map_err(|error| {
            let message = format!("no randomness from the system: {error}");
            Error::new(ErrorKind::Internal, message)
        })
    });
    Ok(format!("{:016x}{:016x}", high?, low?))
}
