//! The blobs of a page: each is deleted, moved or left.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::SystemTime,
};

use futures_util::StreamExt;

use super::{
    counts::Counts,
    judge::{Destination, Reason, SWEPT_FROM, Verdict, judge, origin, provenance},
};
use crate::{
    base::sync::lock,
    error::{ErrorKind, Result},
    store::{
        BlobName, PageOptions,
        container::{Account, Container, Head, HeadPage},
    },
};

/// Deletes or moves expired blobs.
#[derive(Debug)]
pub(super) struct BlobRemover {
    dead: Option<Account>,
    /// Dead-blob containers that were created or found.
    dead_containers: Mutex<HashMap<String, Arc<dyn Container>>>,
    parallel: usize,
}

/// What happened to a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlobOutcome {
    Unmarked,
    Alive,
    Deleted,
    Moved,
    Changed,
    Left(Reason),
    Failed,
}

impl BlobRemover {
    pub(super) fn new(dead: Option<Account>, parallel: usize) -> Self {
        Self {
            dead,
            dead_containers: Mutex::default(),
            parallel,
        }
    }

    /// Works a page. A failure of one blob is logged and counted, and does not stop the others.
    pub(super) async fn work(
        &self,
        container: &dyn Container,
        page: HeadPage,
        now: SystemTime,
    ) -> Counts {
        let mut counts = Counts {
            seen: page.unnameable,
            left: page.unnameable,
            ..Counts::default()
        };
        let mut left: BTreeMap<Reason, (u64, BlobName)> = BTreeMap::new();
        let handled = page.heads.into_iter().map(|head| async move {
            let name = head.name.clone();
            (name, self.handle(container, head, now).await)
        });
        let mut handled = futures_util::stream::iter(handled).buffer_unordered(self.parallel);
        while let Some((name, outcome)) = handled.next().await {
            counts.count(outcome);
            if let BlobOutcome::Left(reason) = outcome {
                left.entry(reason).or_insert((0, name)).0 += 1;
            }
        }
        for (reason, (blobs, first)) in left {
            let why = reason.as_str();
            tracing::warn!(%container, blobs, %first, why, "expired blobs are left alone");
        }
        counts
    }

    async fn handle(&self, container: &dyn Container, head: Head, now: SystemTime) -> BlobOutcome {
        let name = head.name.clone();
        match self.try_handle(container, head, now).await {
            Ok(outcome) => outcome,
            // Another writer has changed it. The next round uses its new expiry.
            Err(error) if error.kind() == ErrorKind::Conflict => BlobOutcome::Changed,
            Err(error) => {
                tracing::warn!(%container, blob = %name, %error, "an expired blob could not be removed");
                BlobOutcome::Failed
            }
        }
    }

    async fn try_handle(
        &self,
        container: &dyn Container,
        head: Head,
        now: SystemTime,
    ) -> Result<BlobOutcome> {
        let Some(head) = with_metadata(container, head).await? else {
            return Ok(BlobOutcome::Changed);
        };
        let verdict = self.judge(container, &head, now)?;
        let planned = verdict.planned();
        match verdict {
            Verdict::Delete => {}
            Verdict::Move(to) => {
                if !self.copy(container, &head, &to, now).await? {
                    return Ok(BlobOutcome::Left(Reason::Occupied));
                }
            }
            Verdict::Unmarked | Verdict::Alive | Verdict::Leave(_) => return Ok(planned),
        }
        match container.delete_unchanged(&head).await? {
            true => Ok(planned),
            false => Ok(BlobOutcome::Changed),
        }
    }

    /// Decides on a blob whose metadata is known.
    pub(super) fn judge(
        &self,
        container: &dyn Container,
        head: &Head,
        now: SystemTime,
    ) -> Result<Verdict> {
        let none = BTreeMap::new();
        let metadata = head.metadata.as_ref().unwrap_or(&none);
        let verdict = judge(&head.name, metadata, now, self.dead.is_some());
        let Verdict::Move(to) = &verdict else {
            return Ok(verdict);
        };
        let Ok(dead) = self.container(&to.container) else {
            return Ok(Verdict::Leave(Reason::BadDestination));
        };
        let [from, onto] = [(container, &head.name), (&*dead, &to.name)]
            .map(|(container, name)| format!("{}/{name}", container.address()));
        match from == onto {
            true => Ok(Verdict::Leave(Reason::OntoItself)),
            false => Ok(verdict),
        }
    }

    /// Copies a blob if it is unchanged. Returns `false` if another blob has the destination's
    /// name. A copy that an earlier round made of the same blob is overwritten.
    async fn copy(
        &self,
        container: &dyn Container,
        head: &Head,
        to: &Destination,
        now: SystemTime,
    ) -> Result<bool> {
        let dead = self.dead_container(&to.container).await?;
        let over = dead.head(&to.name).await?;
        let origin = origin(head, &container.address());
        let is_ours = |found: &Head| {
            let marks = found.metadata.as_ref();
            marks.and_then(|marks| marks.get(SWEPT_FROM)) == Some(&origin)
        };
        if over.as_ref().is_some_and(|found| !is_ours(found)) {
            return Ok(false);
        }
        let content = container.read(&head.name, &head.etag).await?;
        let metadata = provenance(head, &container.address(), now);
        let over = over.map(|found| found.etag);
        let written = dead.write(&to.name, content, metadata, over.as_ref()).await;
        if written.is_err() {
            // The container may have been deleted: the next blob looks it up again.
            lock(&self.dead_containers).remove(&to.container);
        }
        written.map(|()| true)
    }

    /// Returns a dead-blob container, and creates a missing one.
    async fn dead_container(&self, name: &str) -> Result<Arc<dyn Container>> {
        if let Some(found) = lock(&self.dead_containers).get(name) {
            return Ok(Arc::clone(found));
        }
        let dead = self.container(name)?;
        dead.ensure().await?;
        lock(&self.dead_containers).insert(name.to_owned(), Arc::clone(&dead));
        Ok(dead)
    }

    fn container(&self, name: &str) -> Result<Arc<dyn Container>> {
        if let Some(found) = lock(&self.dead_containers).get(name) {
            return Ok(Arc::clone(found));
        }
        let dead = self.dead.as_ref().expect("judged with one");
        dead.container(name)
    }

    /// Checks that the account for dead blobs can be accessed.
    pub(super) async fn check(&self) -> Result<()> {
        let Some(dead) = &self.dead else {
            return Ok(());
        };
        let nowhere = dead.container("reveille-looks-whether-it-may")?;
        let one = PageOptions {
            size: 1,
            token: None,
        };
        match nowhere.list("", &one).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Reads a blob's metadata if the list had none. Returns `None` for a deleted blob.
pub(super) async fn with_metadata(container: &dyn Container, head: Head) -> Result<Option<Head>> {
    match head.metadata {
        Some(_) => Ok(Some(head)),
        None => container.head(&head.name).await,
    }
}

impl Verdict {
    /// Returns the outcome if nothing fails or changes.
    pub(super) fn planned(&self) -> BlobOutcome {
        match self {
            Self::Unmarked => BlobOutcome::Unmarked,
            Self::Alive => BlobOutcome::Alive,
            Self::Delete => BlobOutcome::Deleted,
            Self::Move(_) => BlobOutcome::Moved,
            Self::Leave(reason) => BlobOutcome::Left(*reason),
        }
    }
}

impl Counts {
    pub(super) fn count(&mut self, outcome: BlobOutcome) {
        self.seen += 1;
        let count = match outcome {
            BlobOutcome::Unmarked => &mut self.unmarked,
            BlobOutcome::Alive => &mut self.alive,
            BlobOutcome::Deleted => &mut self.deleted,
            BlobOutcome::Moved => &mut self.moved,
            BlobOutcome::Changed => &mut self.changed,
            BlobOutcome::Left(_) => &mut self.left,
            BlobOutcome::Failed => &mut self.failed,
        };
        *count += 1;
    }
}
