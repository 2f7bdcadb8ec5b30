//! The queue of pages in the job's document. Under the lease one page is listed and taken; it is
//! worked later.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{SourceContainer, Sweeper, counts::Counts, document::Document};
use crate::{
    base::{clock::wall, duration::Span},
    coordination::lease::{Lease, LeaseConfig, LeaseGuard},
    error::{Error, ErrorKind, Result},
    store::{BlobName, BlobStore, ETag, PageOptions, container::HeadPage},
};

/// The document and its lease.
#[derive(Debug)]
pub(super) struct PageQueue {
    store: Arc<dyn BlobStore>,
    blob: BlobName,
    lease: Lease,
}

/// The parameters of one request for a page.
#[derive(Debug, Default)]
pub(super) struct PageRequest {
    /// Only a page of this round; `None` begins a round if it is due.
    pub(super) round: Option<u64>,
    /// Begin one more round in an interval that has had its round.
    pub(super) again: bool,
    /// Take no page; only report the counts.
    pub(super) stop: bool,
    /// Containers whose last list failed.
    pub(super) skipped: HashSet<usize>,
}

/// What an instance must still report, kept from one request to the next.
#[derive(Debug, Default)]
pub(super) struct Unreported {
    /// Counts that are not in the document yet.
    pub(super) counts: Counts,
    /// Writes without an answer, by nonce. The document may contain one of them.
    unanswered: Vec<(String, PageClaim)>,
}

/// The result of a request for a page.
#[derive(Debug)]
pub(super) struct PageClaim {
    pub(super) page: NextPage,
    /// The document as it was written.
    pub(super) document: Document,
}

#[derive(Debug)]
pub(super) enum NextPage {
    /// A page that this instance must work.
    Page { source: usize, page: HeadPage },
    /// A container that could not be listed.
    ListFailed { source: usize },
    /// No page is left for this instance.
    Empty,
}

/// After a crash with the lease, other instances wait this long.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The lease is held for a few requests only.
const POLL: Duration = Duration::from_millis(50);
/// Limit of the wait for the lease: two holders that crash one after the other.
const LEASE_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit of the last report of an instance that stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Conflicts come only from edits by hand, or from a holder that has lost its lease.
const ATTEMPTS: usize = 5;
/// Largest allowed difference between this machine's clock and the store's. Clocks that use NTP
/// differ by milliseconds. The lease's time that is compared is at most half a minute old.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

impl PageQueue {
    pub(super) fn new(store: Arc<dyn BlobStore>, job: &str) -> Result<Self> {
        let blob = BlobName::new(&format!("{}{job}", super::FOLDER))?;
        let config = LeaseConfig {
            duration: LEASE_DURATION,
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

    /// Waits for the lease, takes a page, and releases the lease. The same write adds the
    /// unreported counts to the document. Returns `None` if the sweeper was stopped first.
    pub(super) async fn take(
        &self,
        sweeper: &Sweeper,
        request: &PageRequest,
        unreported: &mut Unreported,
    ) -> Result<Option<PageClaim>> {
        let Some(guard) = self.acquire_lease(request, &sweeper.stop).await? else {
            return Ok(None);
        };
        // One check in a round is enough.
        let clock = match request.round {
            None if !request.stop => self.check_clock().await,
            _ => Ok(()),
        };
        let mut claim = clock.map(|()| None);
        for _ in 0..ATTEMPTS {
            if !matches!(claim, Ok(None)) {
                break;
            }
            claim = self.try_take(sweeper, request, unreported).await;
        }
        if let Err(error) = guard.release().await {
            tracing::debug!(%error, "the job's lease was not released and ends by itself");
        }
        if let Ok(Some(_)) = &claim {
            *unreported = Unreported::default();
        }
        claim?.map(Some).ok_or_else(|| {
            let message = format!("{}: other writers keep changing it", self.display_name());
            Error::new(ErrorKind::Conflict, message)
        })
    }

    /// Waits for the lease for a limited time, so that a failing store is reported.
    async fn acquire_lease(
        &self,
        request: &PageRequest,
        stop: &CancellationToken,
    ) -> Result<Option<LeaseGuard>> {
        let timeout = if request.stop {
            STOP_TIMEOUT
        } else {
            LEASE_TIMEOUT
        };
        tokio::select! {
            guard = tokio::time::timeout(timeout, self.lease.acquire()) => match guard {
                Ok(guard) => guard.map(Some),
                Err(_) if request.stop => Ok(None),
                Err(_) => {
                    let message = format!(
                        "{} was not acquired within {LEASE_TIMEOUT:?}: its store does not answer, \
                         or its holder hangs",
                        self.lease
                    );
                    Err(Error::new(ErrorKind::Unavailable, message))
                }
            },
            () = stop.cancelled(), if !request.stop => Ok(None),
        }
    }

    /// Refuses to sweep if this machine's clock differs from the store's, which has just written
    /// the lease's time. Blobs would be removed too early or too late.
    async fn check_clock(&self) -> Result<()> {
        let Some(lease) = self.lease.state().await? else {
            return Ok(());
        };
        let now = wall();
        let (apart, where_to) = match now.duration_since(lease.written) {
            Ok(ahead) => (ahead, "ahead of"),
            Err(behind) => (behind.duration(), "behind"),
        };
        if apart <= MAX_CLOCK_DIFFERENCE {
            return Ok(());
        }
        let message = format!(
            "this machine's clock is {} {where_to} that of {}: nothing is swept until they are \
             within {} of each other",
            Span(Duration::from_secs(apart.as_secs())),
            self.store,
            Span(MAX_CLOCK_DIFFERENCE)
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// Returns `None` if another writer changed the document, or if the outcome of the write is
    /// unknown.
    async fn try_take(
        &self,
        sweeper: &Sweeper,
        request: &PageRequest,
        unreported: &mut Unreported,
    ) -> Result<Option<PageClaim>> {
        let (mut document, etag) = self.read().await?;
        // An earlier write of this instance without an answer is in the document. It reported the
        // counts.
        let ours = |(nonce, _): &(String, PageClaim)| *nonce == document.nonce;
        if let Some(ours) = unreported.unanswered.iter().position(ours) {
            return Ok(Some(unreported.unanswered.swap_remove(ours).1));
        }
        let before = document.clone();
        document.add(&unreported.counts);
        let page = match sweeper.join_or_begin(&mut document, request) {
            true => {
                sweeper
                    .list_next_page(&mut document, &request.skipped)
                    .await
            }
            false => NextPage::Empty,
        };
        if document == before {
            return Ok(Some(PageClaim { page, document }));
        }
        document.nonce = nonce()?;
        let written = self.write(&document, etag.as_ref()).await;
        let claim = PageClaim { page, document };
        match written {
            Ok(_) => Ok(Some(claim)),
            Err(error) if error.kind() == ErrorKind::Conflict || error.is_retryable() => {
                unreported
                    .unanswered
                    .push((claim.document.nonce.clone(), claim));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn read(&self) -> Result<(Document, Option<ETag>)> {
        match self.store.get(&self.blob).await? {
            None => Ok((Document::new(), None)),
            Some(blob) => {
                let document = Document::parse(&blob.content.bytes, &self.display_name())?;
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

    fn display_name(&self) -> String {
        format!("blob `{}` of {}", self.blob, self.store)
    }
}

impl SourceContainer {
    /// Returns its id in the document, and whether it is switched off.
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
    /// Returns whether the requested round runs. Begins a round if one is due.
    fn join_or_begin(&self, document: &mut Document, request: &PageRequest) -> bool {
        if request.stop {
            return false;
        }
        let is_off = |id: &str| {
            let mut ours = self.sources.iter().filter(|source| source.id == id);
            ours.any(|source| source.container.is_none())
        };
        document.turn_off(is_off, wall());
        match request.round {
            Some(round) => document.serial == round && !document.is_finished(),
            None => {
                let containers: Vec<_> = self
                    .sources
                    .iter()
                    .map(SourceContainer::of_document)
                    .collect();
                document.begin(&containers, wall(), self.job.interval, request.again)
            }
        }
    }

    /// Takes the next page. A container whose list fails with a transient error stays open: the
    /// next interval continues with it.
    async fn list_next_page(&self, document: &mut Document, skipped: &HashSet<usize>) -> NextPage {
        let ours = |id: &str| self.source(id).is_some_and(|at| !skipped.contains(&at));
        let Some((at, token)) = document.next(ours) else {
            return NextPage::Empty;
        };
        let source = self.source(&document.containers[at].id).expect("ours");
        match self.sources[source].list(self.job.page_size, token).await {
            Ok(page) => {
                document.record_page(at, page.next.clone(), wall());
                NextPage::Page { source, page }
            }
            Err(error) => {
                let container = &self.sources[source].id;
                let transient = error.is_retryable();
                tracing::warn!(container, transient, %error, "the container cannot be listed");
                if !transient {
                    document.record_page(at, None, wall());
                }
                NextPage::ListFailed { source }
            }
        }
    }

    /// Returns the index of this instance's container with that id.
    fn source(&self, id: &str) -> Option<usize> {
        let is_it = |source: &SourceContainer| source.id == id && source.container.is_some();
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
