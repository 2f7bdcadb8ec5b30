//! The queues that were certainly drained when the relay ended, in its store: the next start has no
//! doubt about them.
//!
//! The list is written after the last notification was accepted, and removed before it is used. So a
//! relay that crashes leaves none. Relays on one store need ids of their own. In a cluster there is no
//! list: another relay may have counted a notification since, and may have crashed then.

use super::{Scaler, is_drained};
use crate::{
    error::Result,
    relay::{runtime::Moment, server::own_lists::own_named},
    store::{BlobContent, BlobName, BlobStore},
    types::QueueAddress,
};

/// Queues beyond this are in doubt after a start: 4,000 of the longest names.
const MOST_BYTES: usize = 1024 * 1024;

impl Scaler {
    /// Reads the list of the last end of this relay, and removes it.
    pub(crate) async fn restore(&self, store: &dyn BlobStore) {
        match self.take(store).await {
            Ok(0) => {}
            Ok(queues) => tracing::info!(queues, "queues of scalers were drained at the last end"),
            Err(error) => {
                tracing::warn!(%error, "the drained queues are not known: scalers start workloads to look");
            }
        }
    }

    async fn take(&self, store: &dyn BlobStore) -> Result<usize> {
        if self.relay.cluster_state().is_some() {
            return Ok(0);
        }
        let name = self.blob()?;
        let Some(blob) = store.get_start(&name, MOST_BYTES).await? else {
            return Ok(0);
        };
        // It must not be used again after a crash.
        store.delete(&name, None).await?;
        let text = String::from_utf8_lossy(&blob.content.bytes);
        let queues: Vec<QueueAddress> = text.lines().filter_map(|line| line.parse().ok()).collect();
        for queue in &queues {
            self.relay
                .scaled_queue(queue)?
                .set_drained(Moment::default());
        }
        Ok(queues.len())
    }

    /// Writes the list. No notification may be accepted any longer.
    pub(crate) async fn keep(&self, store: &dyn BlobStore) {
        let list = self.list();
        if list.is_empty() || self.relay.cluster_state().is_some() {
            return;
        }
        if let Err(error) = self.write(store, list).await {
            tracing::warn!(%error, "the drained queues were not written: scalers start workloads to look");
        }
    }

    async fn write(&self, store: &dyn BlobStore, list: String) -> Result<()> {
        let name = self.blob()?;
        // One that the start could not read.
        store.delete(&name, None).await?;
        let content = BlobContent {
            bytes: list.into(),
            ..BlobContent::default()
        };
        store.create(&name, content).await?;
        Ok(())
    }

    fn list(&self) -> String {
        let gaps = self.gaps();
        let mut list = String::new();
        for (queue, scaled) in self.relay.scaled_queues() {
            let moment = scaled.moment(gaps.count);
            let found = own_named(&self.relay, std::slice::from_ref(&queue)).pop();
            if found.as_ref().is_some_and(is_drained) {
                scaled.set_drained(moment);
            }
            // A timer ends with the relay, and nothing else tells of its message.
            let has_timers = found.is_some_and(|found| found.timers > 0);
            let line = format!("{queue}\n");
            if scaled.is_drained(gaps.count) && !has_timers && list.len() + line.len() <= MOST_BYTES
            {
                list.push_str(&line);
            }
        }
        list
    }

    fn blob(&self) -> Result<BlobName> {
        BlobName::new(&format!("scaler-drained/{}", self.relay.relay_id()))
    }
}
