//! The queues that were certainly empty when the relay ended, in its store: the next start has no doubt
//! about them.
//!
//! The list is written after the last notification was accepted, and its content is replaced before it
//! is used. So a relay that crashes leaves none, and one that overlaps with the next does not write.
//! Relays on one store need ids of their own. In a cluster there is no list: another relay may have
//! counted a notification since, and may have crashed then.

use std::time::Duration;

use super::{Scaler, learn_emptiness};
use crate::{
    base::sync::lock,
    error::{Error, ErrorKind, Result},
    relay::server::lists::ranked::own_named,
    store::{BlobContent, BlobName, BlobStore, ETag},
    types::QueueAddress,
};

/// The list in the store.
#[derive(Debug, Default)]
pub(super) enum List {
    /// It could not be read, or there is none in a cluster.
    #[default]
    Unknown,
    Missing,
    /// This relay has replaced its content.
    Owned(ETag),
}

/// Queues beyond this are in doubt after a start: 4,000 of the longest names.
const MOST_BYTES: usize = 1024 * 1024;
/// A store that is slow delays neither start nor end for longer.
const WITHIN: Duration = Duration::from_secs(3);

impl Scaler {
    /// Reads the list of the last end of this relay, and replaces its content.
    pub(super) async fn restore(&self, store: &dyn BlobStore) {
        if self.relay.cluster_state().is_some() {
            return;
        }
        match in_time(self.take(store)).await {
            Ok(0) => {}
            Ok(queues) => tracing::info!(queues, "queues of scalers were empty at the last end"),
            Err(error) => {
                tracing::warn!(%error, "it is not known which queues of scalers were empty: workloads start to look");
            }
        }
    }

    async fn take(&self, store: &dyn BlobStore) -> Result<usize> {
        let name = self.blob()?;
        let Some(blob) = store.get_start(&name, MOST_BYTES).await? else {
            *lock(&self.list) = List::Missing;
            return Ok(0);
        };
        let etag = store.update(&name, self.content(""), &blob.etag).await?;
        *lock(&self.list) = List::Owned(etag);
        let text = String::from_utf8_lossy(&blob.content.bytes);
        let queues: Vec<QueueAddress> = text.lines().filter_map(|line| line.parse().ok()).collect();
        for queue in &queues {
            self.relay.was_empty_at_start(queue)?;
        }
        Ok(queues.len())
    }

    /// Writes the list. No notification may be accepted any longer.
    pub(crate) async fn keep(&self, store: &dyn BlobStore) {
        let queues = self.empty_queues();
        if queues.is_empty() {
            return;
        }
        let list = std::mem::take(&mut *lock(&self.list));
        let written = async {
            let (name, content) = (self.blob()?, self.content(&queues));
            match list {
                List::Unknown => Ok(()),
                List::Missing => store.create(&name, content).await.map(drop),
                List::Owned(etag) => store.update(&name, content, &etag).await.map(drop),
            }
        };
        if let Err(error) = in_time(written).await {
            tracing::warn!(%error, "the empty queues of scalers were not written: workloads start to look");
        }
    }

    fn empty_queues(&self) -> String {
        let mut list = String::new();
        for (queue, known) in self.relay.scaled_queues() {
            let (now, missed, causes) = (
                self.relay.clock().now(),
                self.relay.missed_causes(),
                known.causes(),
            );
            let found = own_named(&self.relay, std::slice::from_ref(&queue)).pop();
            let is_empty = learn_emptiness(found.as_ref(), &known, causes, missed, now);
            // A timer ends with the relay, and nothing else tells of its message.
            let has_timers = found.is_some_and(|found| found.timers > 0);
            let line = format!("{queue}\n");
            if is_empty && !has_timers && list.len() + line.len() <= MOST_BYTES {
                list.push_str(&line);
            }
        }
        list
    }

    /// The epoch makes each content, and so each ETag, a new one.
    fn content(&self, queues: &str) -> BlobContent {
        BlobContent {
            bytes: format!("# {}\n{queues}", self.relay.epoch()).into(),
            ..BlobContent::default()
        }
    }

    fn blob(&self) -> Result<BlobName> {
        BlobName::new(&format!("scaler-empty/{}", self.relay.relay_id()))
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let done = tokio::time::timeout(WITHIN, work).await;
    done.unwrap_or_else(|_| {
        let message = format!("the store has not answered within {WITHIN:?}");
        Err(Error::new(ErrorKind::Timeout, message))
    })
}
