//! The blobs of a page: each is deleted, moved or left.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::SystemTime,
};

use futures_util::StreamExt;

use super::{
    Counts,
    judge::{Destination, Reason, SWEPT_FROM, Verdict, judge, origin, provenance},
};
use crate::{
    base::sync::lock,
    error::{ErrorKind, Result},
    store::{
        BlobEntry, BlobName, Page,
        container::{Account, Container},
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
        page: Page,
        now: SystemTime,
    ) -> Counts {
        let mut counts = Counts {
            seen: page.unnameable,
            left: page.unnameable,
            ..Counts::default()
        };
        let mut left: BTreeMap<Reason, (u64, BlobName)> = BTreeMap::new();
        let handled = page.entries.into_iter().map(|head| async move {
            let name = head.name.clone();
            (name, self.handle(container, head, now).await)
        });
        let mut handled = futures_util::stream::iter(handled).buffer_unordered(self.parallel);
        while let Some((name, outcome)) = handled.next().await {
            counts.count(outcome.as_ref());
            if let Some(Verdict::Leave(reason)) = outcome {
                left.entry(reason).or_insert((0, name)).0 += 1;
            }
        }
        for (reason, (blobs, first)) in left {
            let why = reason.as_str();
            tracing::warn!(%container, blobs, %first, why, "expired blobs are left alone");
        }
        counts
    }

    /// Returns what was done with a blob; `None` for a failure.
    async fn handle(
        &self,
        container: &dyn Container,
        head: BlobEntry,
        now: SystemTime,
    ) -> Option<Verdict> {
        let name = head.name.clone();
        match self.try_handle(container, head, now).await {
            Ok(done) => Some(done),
            // Another writer has changed it. The next round uses its new expiry.
            Err(error) if error.kind() == ErrorKind::Conflict => Some(Verdict::Changed),
            Err(error) => {
                tracing::warn!(%container, blob = %name, %error, "an expired blob could not be removed");
                None
            }
        }
    }

    async fn try_handle(
        &self,
        container: &dyn Container,
        head: BlobEntry,
        now: SystemTime,
    ) -> Result<Verdict> {
        let Some(head) = with_metadata(container, head).await? else {
            return Ok(Verdict::Changed);
        };
        let verdict = self.judge(container, &head, now)?;
        match &verdict {
            Verdict::Delete => {}
            Verdict::Move(to) => {
                if !self.copy(container, &head, to, now).await? {
                    return Ok(Verdict::Leave(Reason::Occupied));
                }
            }
            _ => return Ok(verdict),
        }
        match container.delete_unchanged(&head).await? {
            true => Ok(verdict),
            false => Ok(Verdict::Changed),
        }
    }

    /// Decides on a blob whose metadata is known.
    pub(super) fn judge(
        &self,
        container: &dyn Container,
        head: &BlobEntry,
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
        head: &BlobEntry,
        to: &Destination,
        now: SystemTime,
    ) -> Result<bool> {
        let dead = self.dead_container(&to.container).await?;
        let over = dead.head(&to.name).await?;
        let origin = origin(head, &container.address());
        let is_ours = |found: &BlobEntry| {
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
}

/// Reads a blob's metadata if the list had none. Returns `None` for a deleted blob.
pub(super) async fn with_metadata(
    container: &dyn Container,
    head: BlobEntry,
) -> Result<Option<BlobEntry>> {
    match head.metadata {
        Some(_) => Ok(Some(head)),
        None => container.head(&head.name).await,
    }
}

impl Counts {
    /// Counts a blob; `None` for a failure.
    pub(super) fn count(&mut self, done: Option<&Verdict>) {
        self.seen += 1;
        let count = match done {
            Some(Verdict::Unmarked) => &mut self.unmarked,
            Some(Verdict::Alive) => &mut self.alive,
            Some(Verdict::Delete) => &mut self.deleted,
            Some(Verdict::Move(_)) => &mut self.moved,
            Some(Verdict::Changed) => &mut self.changed,
            Some(Verdict::Leave(_)) => &mut self.left,
            None => &mut self.failed,
        };
        *count += 1;
    }
}
