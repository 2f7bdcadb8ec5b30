//! A page's blobs: each judged, and deleted, moved or left.

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
    error::{ErrorKind, Result},
    store::{
        BlobName, PageOptions,
        container::{Account, Container, Head, HeadPage},
    },
    sync::lock,
};

/// Takes what has died out of containers.
#[derive(Debug)]
pub(super) struct Reaper {
    dead: Option<Account>,
    /// Dead-blob containers, once they were made or found.
    there: Mutex<HashMap<String, Arc<dyn Container>>>,
    parallel: usize,
}

/// What became of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unmarked,
    Alive,
    Deleted,
    Moved,
    Changed,
    Left(Reason),
    Failed,
}

impl Reaper {
    pub(super) fn new(dead: Option<Account>, parallel: usize) -> Self {
        Self {
            dead,
            there: Mutex::default(),
            parallel,
        }
    }

    /// Works a page. One blob's failure is said and counted, and stops no other.
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
        while let Some((name, fate)) = handled.next().await {
            counts.count(fate);
            if let Fate::Left(reason) = fate {
                left.entry(reason).or_insert((0, name)).0 += 1;
            }
        }
        for (reason, (blobs, first)) in left {
            let why = reason.as_str();
            tracing::warn!(%container, blobs, %first, why, "expired blobs are left alone");
        }
        counts
    }

    async fn handle(&self, container: &dyn Container, head: Head, now: SystemTime) -> Fate {
        let name = head.name.clone();
        match self.try_handle(container, head, now).await {
            Ok(fate) => fate,
            // Somebody has written it since: its new time counts, in the next round.
            Err(error) if error.kind() == ErrorKind::Conflict => Fate::Changed,
            Err(error) => {
                tracing::warn!(%container, blob = %name, %error, "an expired blob stays");
                Fate::Failed
            }
        }
    }

    async fn try_handle(
        &self,
        container: &dyn Container,
        head: Head,
        now: SystemTime,
    ) -> Result<Fate> {
        let Some(head) = with_metadata(container, head).await? else {
            return Ok(Fate::Changed);
        };
        let deleted = match self.judge(container, &head, now)? {
            Verdict::Unmarked => return Ok(Fate::Unmarked),
            Verdict::Alive => return Ok(Fate::Alive),
            Verdict::Leave(reason) => return Ok(Fate::Left(reason)),
            Verdict::Delete => Fate::Deleted,
            Verdict::Move(to) => match self.copy(container, &head, &to, now).await? {
                true => Fate::Moved,
                false => return Ok(Fate::Left(Reason::Occupied)),
            },
        };
        match container.delete_unchanged(&head).await? {
            true => Ok(deleted),
            false => Ok(Fate::Changed),
        }
    }

    /// Says what is to be done with a blob whose metadata is known.
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

    /// Copies a blob that is still what it was; returns whether its place was free. What an earlier
    /// round has copied of it, and not deleted, is written over.
    async fn copy(
        &self,
        container: &dyn Container,
        head: &Head,
        to: &Destination,
        now: SystemTime,
    ) -> Result<bool> {
        let dead = self.there(&to.container).await?;
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
            // It may have been deleted: looked for again with the next blob.
            lock(&self.there).remove(&to.container);
        }
        written.map(|()| true)
    }

    /// Returns a dead-blob container, which is made where it is missing.
    async fn there(&self, name: &str) -> Result<Arc<dyn Container>> {
        if let Some(found) = lock(&self.there).get(name) {
            return Ok(Arc::clone(found));
        }
        let dead = self.container(name)?;
        dead.ensure().await?;
        lock(&self.there).insert(name.to_owned(), Arc::clone(&dead));
        Ok(dead)
    }

    fn container(&self, name: &str) -> Result<Arc<dyn Container>> {
        if let Some(found) = lock(&self.there).get(name) {
            return Ok(Arc::clone(found));
        }
        let dead = self.dead.as_ref().expect("judged with one");
        dead.container(name)
    }

    /// Looks whether the dead's account lets us in.
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

/// Asks for a blob's metadata where the list had none; `None` for one that is gone.
pub(super) async fn with_metadata(container: &dyn Container, head: Head) -> Result<Option<Head>> {
    match head.metadata {
        Some(_) => Ok(Some(head)),
        None => container.head(&head.name).await,
    }
}

impl Counts {
    fn count(&mut self, fate: Fate) {
        self.seen += 1;
        let count = match fate {
            Fate::Unmarked => &mut self.unmarked,
            Fate::Alive => &mut self.alive,
            Fate::Deleted => &mut self.deleted,
            Fate::Moved => &mut self.moved,
            Fate::Changed => &mut self.changed,
            Fate::Left(_) => &mut self.left,
            Fate::Failed => &mut self.failed,
        };
        *count += 1;
    }
}
