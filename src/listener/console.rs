//! Health and metrics of a listener process.

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;

use super::{ListenerMode, ListenerMonitor};
use crate::{
    console::{Check, Console, ConsolePort, Metrics, StatusSource},
    error::Result,
};

/// A listener's admin port: `GET /livez`, `/readyz`, `/metrics`. Ends when it is dropped.
///
/// A listener is ready until its shutdown begins. `/readyz?verbose` also shows its relay, which is
/// not required: without a relay the listener polls.
#[derive(Debug)]
pub struct ListenerConsole {
    console: Console,
}

struct ListenerStatus(ListenerMonitor);

impl ListenerConsole {
    /// Listens; port 0 is any free one. Requests may state `hosts` as their host, in addition to IP
    /// addresses and `localhost`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if it cannot listen on the
    /// address.
    pub async fn start(
        listener: ListenerMonitor,
        listen: SocketAddr,
        hosts: &[String],
    ) -> Result<Self> {
        let port = ConsolePort::bind(listen).await?;
        let console = Console::serve(
            port,
            hosts,
            Arc::new(ListenerStatus(listener)),
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
impl StatusSource for ListenerStatus {
    async fn checks(&self, _reads_store: bool) -> Vec<Check> {
        let stopping = self.0.is_stopping().then(|| "shutting down".to_owned());
        let polling = (!self.is_pushed()).then(|| {
            let cause = self.0.cause();
            let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
            format!("no relay sends wake-ups, and the queue is polled{cause}")
        });
        vec![
            Check::required("listener", stopping),
            Check::optional("relay", polling),
        ]
    }

    fn metrics(&self) -> Metrics {
        let state = self.0.state();
        let stats = state.stats;
        Metrics {
            counters: vec![
                ("listener_wake_ups", "Wake-ups received", stats.wake_ups),
                ("listener_gets", "Gets issued", stats.gets),
                (
                    "listener_empty_gets",
                    "Gets that returned no message",
                    stats.empty_gets,
                ),
                ("listener_received", "Messages received", stats.received),
                (
                    "listener_handled",
                    "Messages handled and deleted",
                    stats.handled,
                ),
                ("listener_failed", "Handlings that failed", stats.failed),
                (
                    "listener_poisoned",
                    "Messages moved to the poison queue",
                    stats.poisoned,
                ),
                (
                    "listener_lost",
                    "Messages that another listener received while they were handled",
                    stats.lost,
                ),
                ("listener_errors", "Errors of all kinds", stats.errors),
            ],
            gauges: vec![
                (
                    "listener_active_dequeue_tasks",
                    "Dequeue tasks working or waiting for work",
                    state.active_dequeue_tasks as u64,
                ),
                (
                    "listener_total_dequeue_tasks",
                    "Maximum of dequeue tasks active at one time",
                    state.total_dequeue_tasks as u64,
                ),
                (
                    "listener_pushed",
                    "1 if a relay sends wake-ups, 0 if the queue is polled",
                    u64::from(self.is_pushed()),
                ),
            ],
            histograms: vec![(
                "listener_handling_seconds",
                "Duration of handling a message or a batch",
                self.0.handling_times(),
            )],
        }
    }
}

impl ListenerStatus {
    fn is_pushed(&self) -> bool {
        self.0.state().mode == ListenerMode::Pushed
    }
}
