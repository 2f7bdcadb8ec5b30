//! What the console shows of a relay's cluster.

use crate::{
    console::Metrics,
    relay::{cluster::ClusterStats, runtime::Relay},
};

/// Returns why the relay must not get clients: it starts, or it is cut off from the others.
pub(super) fn failures(relay: &Relay) -> Vec<String> {
    let state = relay.cluster_state().filter(|state| !state.ready);
    let reason = state.map(|state| match state.isolated {
        true => "cut off from the other relays of the cluster: no message returns from NATS",
        false => "the link to the other relays of the cluster has not held for long enough yet",
    });
    reason.map(str::to_owned).into_iter().collect()
}

/// Adds the figures of the cluster; a relay without one has none.
pub(super) fn add_metrics(relay: &Relay, metrics: &mut Metrics) {
    let (Some(state), Some((stats, relays))) = (relay.cluster_state(), relay.cluster_stats())
    else {
        return;
    };
    metrics.counters.extend(counters(&stats));
    if let Some(confirmations) = relay.cluster_confirmations() {
        metrics.histograms.push((
            "cluster_confirmation_seconds",
            "Time from the first publication of a frame until the broker has returned it",
            confirmations,
        ));
    }
    let present = relays
        .iter()
        .filter(|peer| !peer.missing && !peer.left)
        .count() as u64;
    metrics.gauges.push((
        "cluster_relays",
        "Other relays of the cluster that are present",
        present,
    ));
    metrics.gauges.push((
        "cluster_degraded",
        "1 while listeners poll, because the relay is or was cut off from the others",
        u64::from(state.degraded),
    ));
}

fn counters(stats: &ClusterStats) -> Vec<(&'static str, &'static str, u64)> {
    vec![
        (
            "cluster_frames_sent",
            "Frames for the other relays",
            stats.frames_sent,
        ),
        (
            "cluster_entries_sent",
            "Queues in frames for the other relays",
            stats.entries_sent,
        ),
        (
            "cluster_frames_received",
            "Frames of the other relays",
            stats.frames_received,
        ),
        (
            "cluster_entries_received",
            "Queues in frames of the other relays",
            stats.entries_received,
        ),
        (
            "cluster_messages_repeated",
            "Frames that were published again, because they did not return in time",
            stats.repeated,
        ),
        (
            "cluster_resyncs",
            "Resyncs of the queues of missed frames",
            stats.resyncs,
        ),
        (
            "cluster_resynced_queues",
            "Queues in resyncs of missed frames",
            stats.resynced_queues,
        ),
        (
            "cluster_resyncs_of_all",
            "Resyncs of all queues",
            stats.resyncs_of_all,
        ),
        (
            "cluster_relays_missed",
            "Relays that fell silent without leaving",
            stats.missing,
        ),
        (
            "cluster_isolations",
            "Times that the relay was cut off from the others",
            stats.degraded,
        ),
        (
            "cluster_messages_refused",
            "Messages between relays that broke a rule and were dropped",
            stats.refused,
        ),
        (
            "cluster_passed_on",
            "Times that the work of a queue was passed on, because no member here took it",
            stats.passed_on,
        ),
    ]
}
