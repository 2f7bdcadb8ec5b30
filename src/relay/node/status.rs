//! A relay's readiness and metrics for its console.

use std::{sync::Arc, time::SystemTime};

use async_trait::async_trait;

use super::cluster_status;
use crate::{
    console::{Metric, Metrics, Part, StatusSource},
    coordination::flag::Flags,
    relay::{
        runtime::{Refused, Relay, RelayFigures},
        server::{Access, Connections, Incident, Tls, unreadable_store},
    },
    store::BlobStore,
};

/// The source of a relay node's readiness and metrics.
pub(super) struct RelayStatus {
    pub(super) relay: Relay,
    pub(super) flags: Flags,
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) connections: Arc<Connections>,
    pub(super) access: Access,
    pub(super) log_lines_dropped: Option<fn() -> u64>,
    /// The host of `--queues`.
    #[cfg(feature = "courier")]
    pub(super) queues: Option<Arc<crate::courier::Host>>,
}

impl RelayStatus {
    /// Returns the reached limits, at which new connections wait and new queues, cursors or timers
    /// are refused.
    fn full(&self) -> Vec<String> {
        let (open, max) = (self.connections.open(), self.connections.max());
        let connections =
            (open >= max).then(|| format!("full: {open} of {max} connections are open"));
        let (open, max) = self.connections.streams();
        let streams = (open >= max).then(|| format!("full: {open} of {max} streams are open"));
        let memory = &self.connections.memory;
        let memory = memory.limit().filter(|_| memory.is_short()).map(|limit| {
            let limit = limit >> 20;
            format!("full: the process is near its limit of {limit} MiB of memory")
        });
        let own = [connections, streams, memory].into_iter().flatten();
        own.chain(self.relay.full()).collect()
    }
}

const RELAY: Part = Part {
    name: "relay",
    required: true,
};
const CAPACITY: Part = Part {
    name: "capacity",
    required: true,
};
/// Only flags need the store; wake-ups do not.
const STORE: Part = Part {
    name: "store",
    required: false,
};
const CLUSTER: Part = Part {
    name: "cluster",
    required: true,
};
/// What the files of access and of TLS said before is in use, which serves its callers.
const ACCESS: Part = Part {
    name: "access",
    required: false,
};
const PARTS: &[Part] = &[RELAY, CAPACITY, STORE];
const GUARDED_PARTS: &[Part] = &[RELAY, CAPACITY, ACCESS, STORE];
const CLUSTER_PARTS: &[Part] = &[RELAY, CLUSTER, CAPACITY, STORE];
const GUARDED_CLUSTER_PARTS: &[Part] = &[RELAY, CLUSTER, CAPACITY, ACCESS, STORE];

#[async_trait]
impl StatusSource for RelayStatus {
    fn parts(&self) -> &'static [Part] {
        let is_guarded = self.access.is_controlled() || self.connections.tls.is_some();
        match (self.relay.cluster_state().is_some(), is_guarded) {
            (false, false) => PARTS,
            (false, true) => GUARDED_PARTS,
            (true, false) => CLUSTER_PARTS,
            (true, true) => GUARDED_CLUSTER_PARTS,
        }
    }

    async fn failures(&self, part: &str) -> Vec<String> {
        match part {
            "relay" if self.relay.is_draining() => vec!["shutting down".to_owned()],
            "cluster" if !self.relay.is_draining() => cluster_status::failures(&self.relay),
            "capacity" if !self.relay.is_draining() => self.full(),
            "access" => {
                let tls = self.connections.tls.as_deref().map(Tls::failures);
                let rules = self.access.stale().into_iter();
                rules.chain(tls.into_iter().flatten()).collect()
            }
            "store" => {
                let failure = unreadable_store(Arc::clone(&self.store)).await;
                failure.into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = self.relay_metrics();
        metrics.gauges.extend(self.server_gauges());
        metrics.counters.extend(self.peer_counters());
        metrics.counters.extend(self.access_counters());
        metrics.gauges.push((
            "access_rules_stale",
            "1 while a file of access cannot be read, and what it said before is in use",
            u64::from(self.access.refusals().is_stale),
        ));
        metrics.gauges.extend(self.tls_gauges());
        #[cfg(feature = "courier")]
        if let Some(host) = &self.queues {
            metrics.gauges.extend(queue_gauges(host.figures()));
        }
        cluster_status::add_metrics(&self.relay, &mut metrics);
        let dropped = self.log_lines_dropped.map_or(0, |count| count());
        metrics.counters.push((
            "log_lines_dropped",
            "Log lines dropped because their reader stalled",
            dropped,
        ));
        metrics
    }
}

/// Returns the gauges of hosted queues.
#[cfg(feature = "courier")]
fn queue_gauges(figures: &crate::courier::HostFigures) -> [Metric; 2] {
    use std::sync::atomic::Ordering::Relaxed;
    [
        (
            "dead_letters",
            "Messages of the hosted queues that could not be delivered",
            figures.dead_letters.load(Relaxed),
        ),
        (
            "outgoing_messages",
            "Messages of the hosted queues that wait for other machines",
            figures.outgoing.load(Relaxed),
        ),
    ]
}

impl RelayStatus {
    fn relay_metrics(&self) -> Metrics {
        let (_, sent) = self.relay.stats();
        let figures = self.relay.figures();
        Metrics {
            counters: self.relay_counters(&figures),
            gauges: self.relay_gauges(&figures),
            histograms: vec![
                (
                    "wake_latency_seconds",
                    "Time from the acceptance of a Wake's first notification to the Wake's hand-over \
                     to its stream",
                    sent.wake_latency.snapshot(),
                ),
                (
                    "handler_latency_seconds",
                    "Mean times from a notification to its handler, as listeners report them",
                    sent.handler_latency.snapshot(),
                ),
            ],
        }
    }

    fn relay_counters(&self, figures: &RelayFigures) -> Vec<Metric> {
        use std::sync::atomic::Ordering::Relaxed;
        let (hub, sent) = self.relay.stats();
        vec![
            ("notifications", "Notifications counted", hub.notified),
            ("wakes", "Wake messages sent", sent.wakes.load(Relaxed)),
            (
                "wake_entries",
                "Entries (queues) in wake messages",
                sent.entries.load(Relaxed),
            ),
            (
                "wake_notifications",
                "Notifications covered by wake messages",
                sent.notifications.load(Relaxed),
            ),
            (
                "messages",
                "Messages of the counted notifications",
                hub.messages,
            ),
            (
                "catch_ups",
                "Wake-ups sent because the relay is not certain what the subscriber has seen",
                hub.load.catch_ups,
            ),
            (
                "sentinel_checks",
                "Periodic checks that listeners were asked for",
                hub.load.sentinels,
            ),
            (
                "reassigned_wakeups",
                "Wake-ups that went to another member of a group",
                hub.load.reassigned,
            ),
            (
                "polls_avoided",
                "Reads that polling listeners would have made while these slept, less those that the \
                 relay asked for",
                figures.polls_avoided,
            ),
            (
                "heartbeats",
                "Heartbeats sent",
                sent.heartbeats.load(Relaxed),
            ),
            ("timed_wakeups", "Timers fired", hub.timed),
            (
                "fanouts",
                "Large wake-ups run by the fan-out task",
                hub.fanned_out,
            ),
            ("queues_forgotten", "Queues forgotten", hub.forgotten),
            (
                "notify_refused",
                "Requests of publishers refused at a limit",
                sent.refusals.count(Refused::Notify),
            ),
            (
                "subscribe_refused",
                "Subscriptions refused at a limit",
                sent.refusals.count(Refused::Subscribe),
            ),
            (
                "report_refused",
                "Reports of listeners refused at a limit",
                sent.refusals.count(Refused::Report),
            ),
        ]
    }

    fn relay_gauges(&self, figures: &RelayFigures) -> Vec<Metric> {
        let hub = &figures.hub;
        vec![
            ("queues", "Queue entries", hub.queues),
            (
                "cursors",
                "Cursors: queues attached to subscriptions",
                hub.cursors,
            ),
            ("timers", "Pending timed wake-ups", hub.timers),
            (
                "subscriptions",
                "Subscriptions with an open stream",
                hub.subscriptions,
            ),
            (
                "subscriptions_asleep",
                "Subscriptions without a dequeue task, by their newest reports",
                figures.asleep(),
            ),
            (
                "subscriptions_awake",
                "Subscriptions with dequeue tasks, by their newest reports",
                hub.load.awake,
            ),
            (
                "subscriptions_polling",
                "Subscriptions that poll without wake-ups, by their newest reports",
                hub.load.polling,
            ),
            (
                "active_dequeue_tasks",
                "Dequeue tasks of all listeners, by their newest reports",
                hub.load.tasks,
            ),
            (
                "unassigned_messages",
                "Messages for which no member of a group was ready",
                hub.unassigned,
            ),
            (
                "full",
                "Number of reached limits, as listed by /readyz",
                self.full().len() as u64,
            ),
            (
                "flag_watchers",
                "Streams that watch a flag",
                self.flags.watchers(),
            ),
        ]
    }

    /// Returns the gauges of connections, streams and memory.
    fn server_gauges(&self) -> [Metric; 6] {
        let (streams, streams_limit) = self.connections.streams();
        let memory = &self.connections.memory;
        [
            (
                "connections",
                "Open connections",
                self.connections.open() as u64,
            ),
            (
                "connections_limit",
                "Maximum of open connections",
                self.connections.max() as u64,
            ),
            ("streams", "Open streams", streams as u64),
            (
                "streams_limit",
                "Maximum of open streams",
                streams_limit as u64,
            ),
            (
                "memory_limit_bytes",
                "Maximum of resident memory; 0 without one",
                memory.limit().unwrap_or_default(),
            ),
            (
                "short_of_memory",
                "1 near the maximum of resident memory, where new streams and queues are refused",
                u64::from(memory.is_short()),
            ),
        ]
    }

    /// Returns the gauges of the certificate; none without TLS.
    fn tls_gauges(&self) -> Vec<Metric> {
        let Some(tls) = &self.connections.tls else {
            return Vec::new();
        };
        let ends_at = tls.ends_at().and_then(|end| {
            let since = end.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            Some((
                "tls_certificate_end_timestamp_seconds",
                "The end of the certificate, in seconds since 1970",
                since.as_secs(),
            ))
        });
        let stale = (
            "tls_files_stale",
            "1 while the files of TLS cannot be read, and former ones are in use",
            u64::from(tls.is_stale()),
        );
        ends_at.into_iter().chain([stale]).collect()
    }

    /// Returns the counters of refused callers.
    fn access_counters(&self) -> [Metric; 4] {
        let refusals = self.access.refusals();
        [
            (
                "requests_unauthenticated",
                "Requests refused for their credential",
                refusals.unauthenticated,
            ),
            (
                "requests_denied",
                "Requests refused because no rule allows them to their caller",
                refusals.denied,
            ),
            (
                "requests_over_quota",
                "Requests refused at a limit of their principal",
                refusals.over_quota,
            ),
            (
                "audit_lines_lost",
                "Lines of the audit log lost because the disk did not take them",
                refusals.audit_lines_lost,
            ),
        ]
    }

    /// Returns the counters of misbehaving peers.
    fn peer_counters(&self) -> Vec<Metric> {
        let incidents = Incident::ALL.iter().map(|incident| {
            let (name, help) = incident.metric();
            (name, help, self.connections.incidents.count(*incident))
        });
        let mut counters: Vec<_> = incidents.collect();
        counters.push((
            "connections_displaced",
            "Connections closed before their preface for newer ones",
            self.connections.handshakes.evictions(),
        ));
        counters
    }
}
