//! The figures of one interval, for programs.

use reveille::{LatencyBuckets, RelayLevels, RelayTotals, Savings, Stats};
use serde_json::{Value, json};

use super::view::Rates;
use crate::output::{millis, time};

/// Returns the figures; counts are those of `/metrics`.
pub(super) fn figures(before: &Stats, now: &Stats) -> Value {
    let rates = Rates::between(before, now);
    json!({
        "at": time(now.at),
        "findings": now.findings.iter().map(|finding| json!({
            "text": finding.text,
            "urgent": finding.urgent,
            "queue": finding.queue,
            "listener_id": finding.listener_id,
            "relay_id": finding.relay_id,
        })).collect::<Vec<_>>(),
        "notifications_per_second": rates.notified,
        "wake_entries_per_second": rates.woken,
        "wake_p50_us": percentile(&rates.wake, 50),
        "wake_p99_us": percentile(&rates.wake, 99),
        "handler_p50_us": percentile(&rates.handler, 50),
        "handler_p99_us": percentile(&rates.handler, 99),
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
        "busiest": now.busiest.iter().map(|queue| json!({
            "queue": format!("{}/{}", queue.storage_account, queue.queue_name),
            "notifications": queue.notifications,
            "messages": queue.messages,
            "backlog": queue.backlog,
            "listeners": queue.listeners,
        })).collect::<Vec<_>>(),
    })
}

fn percentile(latency: &LatencyBuckets, percent: u8) -> Option<u64> {
    let bound = latency.percentile(percent)?;
    u64::try_from(bound.as_micros()).ok()
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
