//! Health and metrics of a sweeper.

use std::{net::SocketAddr, sync::Arc, time::SystemTime};

use async_trait::async_trait;

use super::Sweeper;
use crate::{
    console::{Console, ConsoleConfig, Figures, Part, Subject},
    error::Result,
};

/// Where a sweeper's health and metrics are served: `GET /livez`, `/readyz`, `/metrics`. Ends when it
/// is dropped.
#[derive(Debug)]
pub struct SweepConsole {
    console: Console,
}

struct Watched(Arc<Sweeper>);

impl SweepConsole {
    /// Listens; port 0 is any free one. Requests may state `hosts` as their host, beside IP addresses
    /// and `localhost`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where the address cannot be listened
    /// on.
    pub async fn start(
        sweeper: Arc<Sweeper>,
        listen: SocketAddr,
        hosts: &[String],
    ) -> Result<Self> {
        let config = ConsoleConfig {
            listen,
            hosts: hosts.to_vec(),
        };
        let console = Console::start(&config, Arc::new(Watched(sweeper))).await?;
        Ok(Self { console })
    }

    /// Returns where it listens.
    pub fn address(&self) -> SocketAddr {
        self.console.address()
    }
}

#[async_trait]
impl Subject for Watched {
    fn parts(&self) -> &'static [Part] {
        // It does nothing without its job's document.
        &[Part {
            name: "job",
            required: true,
        }]
    }

    async fn unready(&self, _part: &str) -> Vec<String> {
        self.0.stats().failure.into_iter().collect()
    }

    fn figures(&self) -> Figures {
        let stats = self.0.stats();
        let ended = stats.last_round_at.unwrap_or(SystemTime::UNIX_EPOCH);
        let ended = ended.duration_since(SystemTime::UNIX_EPOCH);
        let done = stats.done;
        Figures {
            counters: vec![
                ("sweep_seen", "Blobs looked at", done.seen),
                ("sweep_deleted", "Blobs deleted", done.deleted),
                (
                    "sweep_moved",
                    "Blobs moved to a dead-blob container",
                    done.moved,
                ),
                (
                    "sweep_changed",
                    "Blobs written while they were worked on",
                    done.changed,
                ),
                ("sweep_left", "Expired blobs left alone", done.left),
                ("sweep_failed", "Blobs and lists that failed", done.failed),
                ("sweep_pages", "Pages worked", stats.pages),
                (
                    "sweep_rounds",
                    "Rounds gone along with to their end",
                    stats.rounds,
                ),
            ],
            gauges: vec![(
                "sweep_last_round_timestamp_seconds",
                "When the last of these rounds ended, since 1970",
                ended.unwrap_or_default().as_secs(),
            )],
            histograms: Vec::new(),
        }
    }
}
