//! Health and metrics of a listener process.

use std::net::SocketAddr;

use async_trait::async_trait;

use super::{ListenerMode, ListenerMonitor};
use crate::{
    console::{Console, ConsoleConfig, Figures, Part, Subject},
    error::Result,
};

/// An HTTP server for a listener's health and metrics: `GET /livez`, `/readyz`, `/metrics`.
/// Dropping it ends it.
///
/// A listener is ready until it stops. `/readyz?verbose` also names its relay, which is not
/// required: without it the listener polls.
#[derive(Debug)]
pub struct ListenerConsole {
    console: Console,
}

struct Watched(ListenerMonitor);

impl ListenerConsole {
    /// Starts the server; port 0 is any free port. A request's host may be an IP address,
    /// `localhost` or one of `hosts`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where the address cannot be
    /// bound.
    pub async fn start(
        listener: ListenerMonitor,
        listen: SocketAddr,
        hosts: &[String],
    ) -> Result<Self> {
        let config = ConsoleConfig {
            listen,
            hosts: hosts.to_vec(),
        };
        let console = Console::start(&config, std::sync::Arc::new(Watched(listener))).await?;
        Ok(Self { console })
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.console.address()
    }
}

#[async_trait]
impl Subject for Watched {
    fn parts(&self) -> &'static [Part] {
        &[
            Part {
                name: "listener",
                required: true,
            },
            Part {
                name: "relay",
                required: false,
            },
        ]
    }

    async fn unready(&self, part: &str) -> Vec<String> {
        let reason = match part {
            "listener" => self.0.is_stopping().then_some("shutting down"),
            _ => (!self.is_pushed()).then_some("no relay sends wake-ups: the queue is polled"),
        };
        reason.map(str::to_owned).into_iter().collect()
    }

    fn figures(&self) -> Figures {
        let state = self.0.state();
        let stats = state.stats;
        Figures {
            counters: vec![
                ("listener_wake_ups", "Wake-ups received", stats.wake_ups),
                ("listener_gets", "Gets issued", stats.gets),
                (
                    "listener_empty_gets",
                    "Gets that found nothing",
                    stats.empty_gets,
                ),
                ("listener_received", "Messages got", stats.received),
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
                    "Messages that another listener got while they were handled",
                    stats.lost,
                ),
                ("listener_errors", "Errors of all kinds", stats.errors),
            ],
            gauges: vec![
                (
                    "listener_active_dequeue_tasks",
                    "Dequeue tasks that work or wait for work",
                    state.active_dequeue_tasks as u64,
                ),
                (
                    "listener_total_dequeue_tasks",
                    "The most dequeue tasks that were active at one time",
                    state.total_dequeue_tasks as u64,
                ),
                (
                    "listener_pushed",
                    "1 where a relay sends wake-ups, 0 where the queue is polled",
                    u64::from(self.is_pushed()),
                ),
            ],
            histograms: vec![(
                "listener_handling_seconds",
                "How long the handling of a message or a batch took",
                self.0.handling_times(),
            )],
        }
    }
}

impl Watched {
    fn is_pushed(&self) -> bool {
        self.0.state().mode == ListenerMode::Pushed
    }
}
