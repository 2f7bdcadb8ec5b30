//! A relay's readiness and metrics for its console.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use crate::{
    console::{Check, Metrics, STORE, StatusSource, metric_table},
    coordination::flag::Flags,
    relay::{
        hub::LimitUse,
        runtime::{Refused, Relay},
        server::{Access, Connections, Tls, unreadable_store},
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

/// Time limit of a read of the store: a slow store does not delay a probe of an orchestrator.
const STORE_WITHIN: Duration = Duration::from_secs(2);

impl RelayStatus {
    /// Returns the reached limits, at which new connections wait and new queues, cursors or timers
    /// are refused.
    fn full(&self) -> Vec<String> {
        let limits = self.relay.hub().limits(self.relay.now());
        let limits = self.connections.limits().into_iter().chain(limits);
        let full = limits.filter(|one| one.is_full);
        let full = full.map(|LimitUse { what, limit, .. }| {
            format!("full: the limit of {limit} {what} is reached")
        });
        let memory = &self.connections.memory;
        let memory = memory.limit().filter(|_| memory.is_short()).map(|limit| {
            let limit = limit >> 20;
            format!("full: the process is near its limit of {limit} MiB of memory")
        });
        full.chain(memory).collect()
    }
}

#[async_trait]
impl StatusSource for RelayStatus {
    async fn checks(&self, reads_store: bool) -> Vec<Check> {
        // A relay that shuts down fails for this reason only.
        let is_draining = self.relay.is_draining();
        let draining = is_draining.then(|| "shutting down".to_owned());
        let mut checks = vec![Check::required("relay", draining)];
        if self.relay.cluster_state().is_some() {
            let failure = self.not_in_cluster().filter(|_| !is_draining);
            checks.push(Check::required("cluster", failure));
        }
        let full = self.full().into_iter().filter(|_| !is_draining);
        checks.push(Check::required("capacity", full));
        if self.access.is_controlled() || self.connections.tls.is_some() {
            // The former contents of stale files stay in use, and serve their callers.
            let tls = self.connections.tls.as_deref().and_then(Tls::stale);
            let stale = self.access.stale().into_iter().chain(tls);
            checks.push(Check::optional("access", stale));
        }
        let unreadable = match reads_store {
            true => unreadable_store(&*self.store, STORE_WITHIN).await,
            false => None,
        };
        // Only flags need the store; wake-ups do not.
        checks.push(Check::optional(STORE, unreadable));
        checks
    }

    fn metrics(&self) -> Metrics {
        let mut all = self.relay_metrics();
        self.add_server_metrics(&mut all);
        self.access.add_metrics(&mut all);
        self.add_cluster_metrics(&mut all);
        #[cfg(feature = "courier")]
        if let Some(host) = &self.queues {
            let figures = host.figures();
            all.gauges.extend(metric_table! {
                dead_letters = figures.dead_letters.load(Relaxed),
                    "Messages of the hosted queues that could not be delivered";
                outgoing_messages = figures.outgoing.load(Relaxed),
                    "Messages of the hosted queues that wait for other machines";
            });
        }
        all
    }
}

impl RelayStatus {
    /// Returns why the relay must not get clients: it starts, or it is cut off from the others.
    fn not_in_cluster(&self) -> Option<String> {
        let state = self.relay.cluster_state().filter(|state| !state.ready)?;
        let reason = if state.degraded {
            "cut off from the other relays of the cluster: no message returns from NATS"
        } else {
            "the link to the other relays of the cluster has not held for long enough yet"
        };
        Some(reason.to_owned())
    }

    fn relay_metrics(&self) -> Metrics {
        let (stats, sent) = self.relay.stats();
        let figures = self.relay.figures();
        let counters = metric_table! {
            notifications = stats.notified, "Notifications counted";
            wakes = sent.wakes.load(Relaxed), "Wake messages sent";
            wake_entries = sent.entries.load(Relaxed), "Entries (queues) in wake messages";
            wake_notifications = sent.notifications.load(Relaxed),
                "Notifications covered by wake messages";
            messages = stats.messages, "Messages of the counted notifications";
            catch_ups = stats.catch_ups,
                "Wake-ups sent because the relay is not certain what the subscriber has seen";
            sentinel_checks = stats.sentinels, "Periodic checks that listeners were asked for";
            reassigned_wakeups = stats.reassigned,
                "Wake-ups that went to another member of a group";
            polls_avoided = figures.polls_avoided,
                "Reads that polling listeners would have made while these slept, less those that the relay asked for";
            heartbeats = sent.heartbeats.load(Relaxed), "Heartbeats sent";
            timed_wakeups = stats.timed, "Timers fired";
            fanouts = stats.fanned_out, "Large wake-ups run by the fan-out task";
            queues_forgotten = stats.forgotten, "Queues forgotten";
            queues_without_room = stats.unnamed,
                "Causes of other relays that were told under a pattern's name: their queues found no room";
            notify_refused = sent.refusals.count(Refused::Notify as usize),
                "Events of publishers refused at a limit";
            subscribe_refused = sent.refusals.count(Refused::Subscribe as usize),
                "Subscriptions refused at a limit";
            report_refused = sent.refusals.count(Refused::Report as usize),
                "Reports of listeners refused at a limit";
            log_lines_dropped = self.log_lines_dropped.map_or(0, |count| count()),
                "Log lines dropped because their reader stalled";
        };
        let gauges = metric_table! {
            queues = stats.queues, "Queue entries";
            cursors = stats.cursors, "Cursors: queues attached to subscriptions";
            timers = stats.timers, "Pending timed wake-ups";
            subscriptions = stats.subscriptions, "Subscriptions with an open stream";
            subscriptions_asleep = figures.levels.asleep,
                "Subscriptions without a dequeue task, by their newest reports";
            subscriptions_awake = stats.awake,
                "Subscriptions with dequeue tasks, by their newest reports";
            subscriptions_polling = stats.polling,
                "Subscriptions that poll without wake-ups, by their newest reports";
            active_dequeue_tasks = stats.tasks,
                "Dequeue tasks of all listeners, by their newest reports";
            unassigned_messages = stats.unassigned,
                "Messages for which no member of a group was ready";
            full = self.full().len() as u64, "Number of reached limits, as listed by /readyz";
            flag_watchers = self.flags.watchers(), "Streams that watch a flag";
        };
        let histograms = metric_table! {
            wake_latency_seconds = sent.wake_latency.snapshot(),
                "Time from the acceptance of a Wake's first notification to the Wake's hand-over to its stream";
            handler_latency_seconds = sent.handler_latency.snapshot(),
                "Mean times from a notification to its handler, as listeners report them";
        };
        Metrics {
            counters,
            gauges,
            histograms,
        }
    }

    /// Adds the metrics of connections, streams, memory and misbehaving peers.
    fn add_server_metrics(&self, all: &mut Metrics) {
        let (streams, streams_limit) = self.connections.streams();
        let memory = &self.connections.memory;
        all.gauges.extend(metric_table! {
            connections = self.connections.open() as u64, "Open connections";
            connections_limit = self.connections.max() as u64, "Maximum of open connections";
            streams = streams as u64, "Open streams";
            streams_limit = streams_limit as u64, "Maximum of open streams";
            memory_limit_bytes = memory.limit().unwrap_or_default(),
                "Maximum of resident memory; 0 without one";
            short_of_memory = u64::from(memory.is_short()),
                "1 near the maximum of resident memory, where new streams and queues are refused";
        });
        all.counters.extend(self.connections.incidents.metrics());
        all.counters.extend(metric_table! {
            connections_displaced = self.connections.handshakes.evictions(),
                "Connections closed before their preface for newer ones";
        });
        let Some(tls) = &self.connections.tls else {
            return;
        };
        all.gauges.extend(metric_table! {
            tls_files_stale = u64::from(tls.stale().is_some()),
                "1 while the files of TLS cannot be read, and former ones are in use";
        });
        let end = tls.ends_at();
        let end = end.and_then(|end| end.duration_since(SystemTime::UNIX_EPOCH).ok());
        if let Some(end) = end {
            all.gauges.extend(metric_table! {
                tls_certificate_end_timestamp_seconds = end.as_secs(),
                    "The end of the certificate, in seconds since 1970";
            });
        }
    }

    /// Adds the metrics of the cluster; a relay without one has none.
    fn add_cluster_metrics(&self, all: &mut Metrics) {
        let (Some(state), Some((stats, relays))) =
            (self.relay.cluster_state(), self.relay.cluster_stats())
        else {
            return;
        };
        let present = relays.iter().filter(|peer| peer.is_present());
        all.counters.extend(metric_table! {
            cluster_frames_sent = stats.frames_sent, "Frames for the other relays";
            cluster_entries_sent = stats.entries_sent, "Queues in frames for the other relays";
            cluster_frames_received = stats.frames_received, "Frames of the other relays";
            cluster_entries_received = stats.entries_received,
                "Queues in frames of the other relays";
            cluster_messages_repeated = stats.repeated,
                "Frames that were published again, because they did not return in time";
            cluster_resyncs = stats.resyncs, "Resyncs of the queues of missed frames";
            cluster_resynced_queues = stats.resynced_queues, "Queues in resyncs of missed frames";
            cluster_resyncs_of_all = stats.resyncs_of_all, "Resyncs of all queues";
            cluster_relays_missed = stats.missing, "Relays that fell silent without leaving";
            cluster_isolations = stats.degraded, "Times that the relay was cut off from the others";
            cluster_messages_refused = stats.refused,
                "Messages between relays that broke a rule and were dropped";
            cluster_passed_on = stats.passed_on,
                "Times that the work of a queue was passed on, because no member here took it";
        });
        all.gauges.extend(metric_table! {
            cluster_relays = present.count() as u64, "Other relays of the cluster that are present";
            cluster_degraded = u64::from(state.degraded),
                "1 while listeners poll, because the relay is or was cut off from the others";
        });
        if let Some(times) = self.relay.cluster_confirmations() {
            all.histograms.extend(metric_table! {
                cluster_confirmation_seconds = times,
                    "Time from the first publication of a frame until the broker has returned it";
            });
        }
    }
}
