//! Health and metrics of a sweeper.

use std::{net::SocketAddr, sync::Arc, time::SystemTime};

use async_trait::async_trait;

use super::Sweeper;
use crate::{
    console::{Check, Console, Metrics, StatusSource, metric_table},
    error::Result,
};

impl Sweeper {
    /// Serves an admin port; port 0 is any free one. Requests may state `hosts` as their host, in
    /// addition to IP addresses and `localhost`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if it cannot listen on the
    /// address.
    pub async fn serve(self: Arc<Self>, listen: SocketAddr, hosts: &[String]) -> Result<Console> {
        Console::start(self, listen, hosts).await
    }
}

#[async_trait]
impl StatusSource for Sweeper {
    async fn checks(&self, _reads_store: bool) -> Vec<Check> {
        // A sweeper does nothing without its job's document.
        vec![Check::required("job", self.stats().failure)]
    }

    fn metrics(&self) -> Metrics {
        let stats = self.stats();
        let done = stats.done;
        let ended = stats.last_round_at.unwrap_or(SystemTime::UNIX_EPOCH);
        let ended = ended.duration_since(SystemTime::UNIX_EPOCH);
        Metrics {
            counters: metric_table! {
                sweep_seen = done.seen, "Blobs examined";
                sweep_deleted = done.deleted, "Blobs deleted";
                sweep_moved = done.moved, "Blobs moved to a dead-blob container";
                sweep_changed = done.changed, "Blobs changed by others while they were processed";
                sweep_left = done.left, "Expired blobs left in place";
                sweep_failed = done.failed, "Failed blobs and lists";
                sweep_pages = stats.pages, "Processed pages";
                sweep_rounds = stats.rounds, "Rounds followed to their end";
            },
            gauges: metric_table! {
                sweep_last_round_timestamp_seconds = ended.unwrap_or_default().as_secs(),
                    "End of the last of these rounds, in seconds since 1970";
            },
            histograms: Vec::new(),
        }
    }
}
