//! Health and metrics of a sweeper.

use std::{net::SocketAddr, sync::Arc, time::SystemTime};

use async_trait::async_trait;

use super::Sweeper;
use crate::{
    console::{Console, ConsolePort, Metrics, Part, StatusSource},
    error::Result,
};

/// A sweeper's admin port: `GET /livez`, `/readyz`, `/metrics`. Ends when it is dropped.
#[derive(Debug)]
pub struct SweepConsole {
    console: Console,
}

struct SweeperStatus(Arc<Sweeper>);

impl SweepConsole {
    /// Listens; port 0 is any free one. Requests may state `hosts` as their host, in addition to IP
    /// addresses and `localhost`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if it cannot listen on the
    /// address.
    pub async fn start(
        sweeper: Arc<Sweeper>,
        listen: SocketAddr,
        hosts: &[String],
    ) -> Result<Self> {
        let port = ConsolePort::bind(listen).await?;
        let console = Console::serve(
            port,
            hosts,
            Arc::new(SweeperStatus(sweeper)),
            None,
            axum::Router::new(),
        );
        Ok(Self { console })
    }

    /// Returns the address of the port.
    pub fn address(&self) -> SocketAddr {
        self.console.address()
    }
}

#[async_trait]
impl StatusSource for SweeperStatus {
    fn parts(&self) -> &'static [Part] {
        // A sweeper does nothing without its job's document.
        &[Part {
            name: "job",
            required: true,
        }]
    }

    async fn failures(&self, _part: &str) -> Vec<String> {
        self.0.stats().failure.into_iter().collect()
    }

    fn metrics(&self) -> Metrics {
        let stats = self.0.stats();
        let ended = stats.last_round_at.unwrap_or(SystemTime::UNIX_EPOCH);
        let ended = ended.duration_since(SystemTime::UNIX_EPOCH);
        let done = stats.done;
        Metrics {
            counters: vec![
                ("sweep_seen", "Blobs examined", done.seen),
                ("sweep_deleted", "Blobs deleted", done.deleted),
                (
                    "sweep_moved",
                    "Blobs moved to a dead-blob container",
                    done.moved,
                ),
                (
                    "sweep_changed",
                    "Blobs changed by others while they were processed",
                    done.changed,
                ),
                ("sweep_left", "Expired blobs left in place", done.left),
                ("sweep_failed", "Failed blobs and lists", done.failed),
                ("sweep_pages", "Processed pages", stats.pages),
                ("sweep_rounds", "Rounds followed to their end", stats.rounds),
            ],
            gauges: vec![(
                "sweep_last_round_timestamp_seconds",
                "End of the last of these rounds, in seconds since 1970",
                ended.unwrap_or_default().as_secs(),
            )],
            histograms: Vec::new(),
        }
    }
}
