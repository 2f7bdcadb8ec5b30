//! What a relay's console tells: whether it is ready, and its figures.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    console::{Figure, Figures, Part, Subject},
    error::{Error, ErrorKind},
    flag::Flags,
    relay::{Refused, Relay},
    server::{Connections, Incident},
    store::{BlobName, BlobStore},
    task::longest_poll,
};

/// What the console asks of this node.
pub(super) struct Watched {
    pub(super) relay: Relay,
    pub(super) flags: Flags,
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) connections: Connections,
    pub(super) log_lines_dropped: Option<fn() -> u64>,
}

/// Asking the store whether it can be read must not hold up the probe.
const STORE_ANSWERS: Duration = Duration::from_secs(2);

impl Watched {
    /// Returns the limits that are reached: what comes now waits or is refused until something ends.
    fn full(&self) -> Vec<String> {
        let (open, max) = (self.connections.open(), self.connections.max());
        let connections =
            (open >= max).then(|| format!("full: {open} of {max} connections are open"));
        connections.into_iter().chain(self.relay.full()).collect()
    }

    /// Returns why the store cannot be read, or `None` where it can.
    async fn unreadable_store(&self) -> Option<String> {
        let probe = match BlobName::new("flags/ready") {
            Ok(name) => name,
            Err(error) => return Some(error.to_string()),
        };
        let read = tokio::time::timeout(STORE_ANSWERS, self.store.get(&probe)).await;
        let slow = |_| {
            Err(Error::new(
                ErrorKind::Timeout,
                format!("store {} does not answer", self.store),
            ))
        };
        read.unwrap_or_else(slow)
            .err()
            .map(|error| error.to_string())
    }
}

#[async_trait]
impl Subject for Watched {
    fn parts(&self) -> &'static [Part] {
        &[
            Part {
                name: "relay",
                required: true,
            },
            Part {
                name: "capacity",
                required: true,
            },
            // Wake-ups need none: only flags do.
            Part {
                name: "store",
                required: false,
            },
        ]
    }

    async fn unready(&self, part: &str) -> Vec<String> {
        match part {
            "relay" if self.relay.is_draining() => vec!["shutting down".to_owned()],
            "capacity" if !self.relay.is_draining() => self.full(),
            "store" => self.unreadable_store().await.into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn figures(&self) -> Figures {
        let mut figures = self.relay_figures();
        figures.counters.extend(self.peer_counters());
        let dropped = self.log_lines_dropped.map_or(0, |count| count());
        figures.counters.push((
            "log_lines_dropped",
            "Lines of the log dropped because nobody read them",
            dropped,
        ));
        if let Some(longest) = longest_poll() {
            let micros = longest.as_micros().try_into().unwrap_or(u64::MAX);
            let help = "Processor time of the longest poll of a task";
            figures
                .gauges
                .push(("longest_poll_microseconds", help, micros));
        }
        figures
    }
}

impl Watched {
    fn relay_figures(&self) -> Figures {
        use std::sync::atomic::Ordering::Relaxed;
        let (hub, sent) = self.relay.stats();
        Figures {
            counters: vec![
                ("notifications", "Notifications counted", hub.notified),
                ("wakes", "Wake messages sent", sent.wakes.load(Relaxed)),
                (
                    "wake_entries",
                    "Queues told of in wake messages",
                    sent.entries.load(Relaxed),
                ),
                (
                    "wake_notifications",
                    "Notifications told of in wake messages",
                    sent.notifications.load(Relaxed),
                ),
                (
                    "heartbeats",
                    "Heartbeats sent",
                    sent.heartbeats.load(Relaxed),
                ),
                ("timed_wakeups", "Timers fired", hub.timed),
                ("fanouts", "Walks left to the fan-out", hub.fanned_out),
                ("queues_forgotten", "Queues forgotten", hub.forgotten),
                (
                    "notify_refused",
                    "Requests of publishers refused for want of room",
                    sent.refusals.count(Refused::Notify),
                ),
                (
                    "subscribe_refused",
                    "Subscriptions refused for want of room",
                    sent.refusals.count(Refused::Subscribe),
                ),
                (
                    "report_refused",
                    "Reports of listeners refused for want of room",
                    sent.refusals.count(Refused::Report),
                ),
            ],
            gauges: vec![
                ("queues", "Queues remembered", hub.queues),
                (
                    "cursors",
                    "Queues that subscriptions are attached to",
                    hub.cursors,
                ),
                ("timers", "Timed wake-ups that wait", hub.timers),
                (
                    "subscriptions",
                    "Subscriptions that hold a stream",
                    hub.subscriptions,
                ),
                (
                    "connections",
                    "Connections open",
                    self.connections.open() as u64,
                ),
                (
                    "connections_limit",
                    "Connections that can be open",
                    self.connections.max() as u64,
                ),
                (
                    "full",
                    "Limits that are reached, as /readyz names them",
                    self.full().len() as u64,
                ),
                (
                    "flag_watchers",
                    "Streams that watch a flag",
                    self.flags.watchers(),
                ),
            ],
            histograms: vec![(
                "wake_latency_seconds",
                "From the first notification that a Wake tells of, when it was accepted, to the \
                 Wake's hand-over to its stream",
                sent.wake_latency.snapshot(),
            )],
        }
    }

    /// Returns what peers did that they should not.
    fn peer_counters(&self) -> Vec<Figure> {
        let incidents = [
            (
                Incident::AddressFull,
                "connections_refused",
                "Connections closed for want of room for their address",
            ),
            (
                Incident::Silent,
                "connections_silent",
                "Connections closed before they had sent a preface",
            ),
            (
                Incident::Full,
                "connections_full",
                "Connections closed after their preface for want of a place",
            ),
            (
                Incident::Unused,
                "connections_unused",
                "Connections closed before they had opened a stream",
            ),
            (
                Incident::StalledFrame,
                "connections_stalled",
                "Connections closed because a frame did not end",
            ),
            (
                Incident::Flood,
                "connections_flooding",
                "Connections closed for a flood of control frames",
            ),
            (
                Incident::LateRequest,
                "requests_late",
                "Requests ended because they were not complete in time",
            ),
            (
                Incident::OverBudget,
                "requests_over_budget",
                "Requests refused because too much of others was held unfinished",
            ),
            (
                Incident::UnreadAnswer,
                "answers_unread",
                "Streams reset because a unary answer was not taken in time",
            ),
            (
                Incident::NoGrpc,
                "requests_not_grpc",
                "Requests refused by their method or content type",
            ),
        ];
        let figure = |(incident, name, help)| (name, help, self.connections.incidents(incident));
        let mut counters: Vec<_> = incidents.map(figure).into();
        counters.push((
            "connections_displaced",
            "Connections closed before their preface because newer ones came",
            self.connections.evictions(),
        ));
        counters
    }
}
