//! The figures of one interval, for programs.

use reveille::{LatencyBuckets, RelayLevels, RelayTotals, Savings, Stats};
use serde::Serialize;
use serde_json::{Value, json};

use super::view::View;
use crate::{
    output::{Row, millis, time},
    why::finding_json,
};

#[derive(Debug, Serialize)]
pub(super) struct BusyRow {
    queue: String,
    notifications: u64,
    messages: u64,
    backlog: u64,
    listeners: u32,
}

impl Row for BusyRow {
    const COLUMNS: &'static [&'static str] =
        &["queue", "notifications", "messages", "backlog", "listeners"];
}

/// Returns the queues with most notifications in the newest interval.
pub(super) fn busiest(stats: &Stats) -> Vec<BusyRow> {
    let rows = stats.busiest.iter().map(|queue| BusyRow {
        queue: format!("{}/{}", queue.storage_account, queue.queue_name),
        notifications: queue.notifications,
        messages: queue.messages,
        backlog: queue.backlog,
        listeners: queue.listeners,
    });
    rows.collect()
}

/// Returns the figures for programs; counts are those of `/metrics`.
pub(super) fn figures(view: &View) -> Value {
    let (now, rates) = (&view.stats, &view.rates);
    let micros = |latency: &LatencyBuckets, percent| {
        let bound = latency.percentile(percent)?;
        u64::try_from(bound.as_micros()).ok()
    };
    json!({
        "at": time(now.at),
        "findings": now.findings.iter().map(finding_json).collect::<Vec<_>>(),
        "notifications_per_second": rates.notified,
        "wake_entries_per_second": rates.woken,
        "wake_p50_us": micros(&rates.wake, 50),
        "wake_p99_us": micros(&rates.wake, 99),
        "handler_p50_us": micros(&rates.handler, 50),
        "handler_p99_us": micros(&rates.handler, 99),
        "totals": totals(&now.totals),
        "levels": levels(&now.levels),
        "savings": savings(&now.savings),
        "relays": now.relays.iter().map(|relay| json!({
            "relay_id": relay.relay_id,
            "epoch": relay.epoch,
            "version": relay.version,
            "uptime_ms": millis(relay.uptime),
            "draining": relay.draining,
            "degraded": relay.degraded,
            "totals": totals(&relay.totals),
            "levels": levels(&relay.levels),
            "savings": savings(&relay.savings),
        })).collect::<Vec<_>>(),
        "unanswered_relays": now.unanswered,
        "busiest": busiest(now),
    })
}

fn totals(totals: &RelayTotals) -> Value {
    json!({
        "notifications": totals.notifications,
        "messages": totals.messages,
        "wakes": totals.wakes,
        "wake_entries": totals.wake_entries,
        "timed": totals.timed,
        "heartbeats": totals.heartbeats,
        "catch_ups": totals.catch_ups,
        "sentinels": totals.sentinels,
        "reassigned": totals.reassigned,
        "refused": totals.refused,
    })
}

fn levels(levels: &RelayLevels) -> Value {
    json!({
        "queues": levels.queues,
        "subscriptions": levels.subscriptions,
        "asleep": levels.asleep,
        "awake": levels.awake,
        "polling": levels.polling,
        "active_dequeue_tasks": levels.active_dequeue_tasks,
        "connections": levels.connections,
        "flag_watchers": levels.flag_watchers,
        "timers": levels.timers,
        "unassigned": levels.unassigned,
    })
}

fn savings(savings: &Savings) -> Value {
    json!({
        "polls_avoided": savings.polls_avoided,
        "assumed_poll_ms": millis(savings.assumed_poll),
        "price": savings.price(),
        "currency": savings.currency,
    })
}
