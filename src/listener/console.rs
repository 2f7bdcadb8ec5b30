//! Health and metrics of a listener process.

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;

use super::{ListenerMode, ListenerMonitor};
use crate::{
    console::{Check, Console, Metrics, StatusSource, metric_table},
    error::Result,
};

impl ListenerMonitor {
    /// Serves an admin port; port 0 is any free one. Requests may state `hosts` as their host, in
    /// addition to IP addresses and `localhost`.
    ///
    /// A listener is ready until its shutdown begins. `/readyz?verbose` also shows its relay, which
    /// is not required: without a relay the listener polls.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if it cannot listen on the
    /// address.
    pub async fn serve(self, listen: SocketAddr, hosts: &[String]) -> Result<Console> {
        Console::start(Arc::new(self), listen, hosts).await
    }

    fn is_pushed(&self) -> bool {
        self.state().mode == ListenerMode::Pushed
    }
}

#[async_trait]
impl StatusSource for ListenerMonitor {
    async fn checks(&self, _reads_store: bool) -> Vec<Check> {
        let stopping = self.is_stopping().then(|| "shutting down".to_owned());
        let polling = (!self.is_pushed()).then(|| {
            let cause = self.cause();
            let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
            format!("no relay sends wake-ups, and the queue is polled{cause}")
        });
        vec![
            Check::required("listener", stopping),
            Check::optional("relay", polling),
        ]
    }

    fn metrics(&self) -> Metrics {
        let state = self.state();
        let stats = state.stats;
        Metrics {
            counters: metric_table! {
                listener_wake_ups = stats.wake_ups, "Wake-ups received";
                listener_gets = stats.gets, "Gets issued";
                listener_empty_gets = stats.empty_gets, "Gets that returned no message";
                listener_received = stats.received, "Messages received";
                listener_handled = stats.handled, "Messages handled and deleted";
                listener_failed = stats.failed, "Handlings that failed";
                listener_poisoned = stats.poisoned, "Messages moved to the poison queue";
                listener_lost = stats.lost,
                    "Messages that another listener received while they were handled";
                listener_errors = stats.errors, "Errors of all kinds";
            },
            gauges: metric_table! {
                listener_active_dequeue_tasks = state.active_dequeue_tasks as u64,
                    "Dequeue tasks working or waiting for work";
                listener_total_dequeue_tasks = state.total_dequeue_tasks as u64,
                    "Maximum of dequeue tasks active at one time";
                listener_pushed = u64::from(self.is_pushed()),
                    "1 if a relay sends wake-ups, 0 if the queue is polled";
            },
            histograms: metric_table! {
                listener_handling_seconds = self.0.handling_times.snapshot(),
                    "Duration of handling a message";
            },
        }
    }
}
