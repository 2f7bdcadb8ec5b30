//! Turns at the job's document: under the lease one page is listed and taken, and nothing is worked.

use std::{sync::Arc, time::Duration};

use super::{Source, Sweeper, counts::Counts, document::Document};
use crate::{
    clock::wall,
    error::{Error, ErrorKind, Result},
    lease::{Lease, LeaseConfig},
    store::{BlobName, BlobStore, ETag, PageOptions, container::HeadPage},
};

/// The document and its lease.
#[derive(Debug)]
pub(super) struct Turns {
    store: Arc<dyn BlobStore>,
    blob: BlobName,
    lease: Lease,
}

/// What a turn came to.
#[derive(Debug)]
pub(super) enum Turn {
    Page(Taken),
    /// Nothing is left to take, for us.
    Idle(Box<Document>),
}

/// A page that is ours to work.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) source: usize,
    /// `None` where the container could not be listed.
    pub(super) page: Option<HeadPage>,
}

/// A crash in a turn holds the others up for this long.
const LEASE: Duration = Duration::from_secs(30);
/// A turn is a few requests.
const POLL: Duration = Duration::from_millis(50);
/// Only a hand, or one whose lease was lost meanwhile, writes in between.
const TRIES: usize = 5;

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

    /// Waits for the lease, takes a page, and gives the lease back. What is not told yet is added to
    /// the document's counts by the same write. Without `may` nothing is taken.
    pub(super) async fn take(
        &self,
        sweeper: &Sweeper,
        untold: &Counts,
        again: bool,
        may: bool,
    ) -> Result<Turn> {
        let held = self.lease.acquire().await?;
        let mut turn = Ok(None);
        for _ in 0..TRIES {
            turn = self.try_take(sweeper, untold, again, may).await;
            if !matches!(turn, Ok(None)) {
                break;
            }
        }
        if let Err(error) = held.release().await {
            tracing::debug!(%error, "the job's lease runs out by itself");
        }
        turn?.ok_or_else(|| {
            let message = format!("{} is written by others all the time", self.shown());
            Error::new(ErrorKind::Conflict, message)
        })
    }

    /// Returns `None` where the document was written by another meanwhile.
    async fn try_take(
        &self,
        sweeper: &Sweeper,
        untold: &Counts,
        again: bool,
        may: bool,
    ) -> Result<Option<Turn>> {
        let (mut document, etag) = self.read().await?;
        let before = document.clone();
        document.add(untold);
        let containers: Vec<_> = sweeper.sources.iter().map(Source::of_document).collect();
        // Who is to end takes nothing more, and says what it did.
        let runs = may && document.begin(&containers, wall(), sweeper.job.interval, again);
        let is_ours = |id: &str| sweeper.source(id).is_some();
        let next = document.next(is_ours).filter(|_| runs);
        let taken = match next {
            None => None,
            Some((at, token)) => {
                let source = sweeper.source(&document.containers[at].id);
                let source = source.expect("it is ours");
                let page = sweeper.sources[source]
                    .list(sweeper.job.page_size, token)
                    .await;
                let next = page.as_ref().and_then(|page| page.next.clone());
                document.took(at, next, wall());
                Some(Taken { source, page })
            }
        };
        if document != before && !self.write(&mut document, etag.as_ref()).await? {
            return Ok(None);
        }
        Ok(Some(match taken {
            Some(taken) => Turn::Page(taken),
            None => Turn::Idle(Box::new(document)),
        }))
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

    /// Writes the document where nobody has since it was read; returns whether it was written. A
    /// write without an answer, and a conflict, are settled by the nonce: it may be our own.
    async fn write(&self, document: &mut Document, etag: Option<&ETag>) -> Result<bool> {
        document.nonce = nonce()?;
        let content = bytes::Bytes::from(document.to_bytes()).into();
        let written = match etag {
            Some(etag) => self.store.update(&self.blob, content, etag).await,
            None => self.store.create(&self.blob, content).await,
        };
        let Err(error) = written else {
            return Ok(true);
        };
        if error.kind() != ErrorKind::Conflict && !error.is_retryable() {
            return Err(error);
        }
        let (found, _) = self.read().await?;
        Ok(found.nonce == document.nonce)
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

    /// Lists a page; `None` where that fails, which is said: the round goes on without it.
    async fn list(&self, size: usize, token: Option<String>) -> Option<HeadPage> {
        let container = self.container.as_ref()?;
        match container
            .list(&self.prefix, &PageOptions { size, token })
            .await
        {
            Ok(page) => Some(page),
            Err(error) => {
                tracing::warn!(%container, %error, "not swept in this round");
                None
            }
        }
    }
}

impl Sweeper {
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
