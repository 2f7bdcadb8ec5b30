//! The measurements, their costs, and the table of both.
//!
//! Latency is measured by the machine's clock, from put to handler.

use std::time::Duration;

use reveille::duration::Span;
use serde::Serialize;
use serde_json::json;

use super::{
    IDLE, Way,
    fleet::{Idle, Outcome},
};
use crate::output;

/// The price of 10,000 storage transactions, in US dollars.
const PER_10_000: f64 = 0.01;

/// All measurements of the demo.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) transactions: usize,
    pub(super) work_items: usize,
    /// The price of the batch.
    pub(super) cents: u64,
    pub(super) fleets: Vec<FleetFigures>,
}

/// Measurements of one fleet.
#[derive(Debug, Serialize)]
pub(super) struct FleetFigures {
    way: Way,
    idle_tasks: usize,
    idle_storage_transactions: u64,
    latency_p50_ms: f64,
    latency_p99_ms: f64,
    at_zero_after_ms: Option<f64>,
    busy_storage_transactions: u64,
    month_cost: f64,
}

/// A month has this many days, each with these idle minutes and one batch like this one.
const DAYS: f64 = 30.0;
const IDLE_MINUTES: f64 = 22.0 * 60.0;

impl FleetFigures {
    pub(super) fn new(way: Way, idle: Idle, mut outcome: Outcome) -> Self {
        let waited = &mut outcome.waited;
        waited.sort_unstable();
        Self {
            way,
            idle_tasks: idle.tasks,
            idle_storage_transactions: idle.transactions,
            latency_p50_ms: millis(percentile(waited, 50)),
            latency_p99_ms: millis(percentile(waited, 99)),
            at_zero_after_ms: outcome.at_zero.map(millis),
            busy_storage_transactions: outcome.transactions,
            month_cost: month_cost(per_minute(idle.transactions), outcome.transactions),
        }
    }
}

impl Figures {
    pub(super) fn table(&self) -> String {
        let row = |label: &str, value: fn(&FleetFigures) -> String| {
            let mut row = json!({ "": label });
            for fleet in &self.fleets {
                row[fleet.way.name()] = value(fleet).into();
            }
            row
        };
        let rows = [
            row("dequeue tasks while idle", |of| of.idle_tasks.to_string()),
            row("storage transactions in an idle minute", |of| {
                format!("{:.0}", per_minute(of.idle_storage_transactions))
            }),
            row("latency p50, from put to handling", |of| {
                span(of.latency_p50_ms)
            }),
            row("latency p99", |of| span(of.latency_p99_ms)),
            row("storage transactions for the batch", |of| {
                of.busy_storage_transactions.to_string()
            }),
            row("a month* at $0.01 per 10,000", |of| {
                format!("${:.2}", of.month_cost)
            }),
        ];
        let table = output::table_of(" woken polling", &rows);
        format!("{table}\n* 30 days of 22 idle hours, and one such batch a day")
    }
}

fn per_minute(idle_transactions: u64) -> f64 {
    idle_transactions as f64 * 60.0 / IDLE.as_secs_f64()
}

/// Returns the price of a month's storage transactions in dollars and cents.
fn month_cost(per_idle_minute: f64, of_batch: u64) -> f64 {
    let transactions = DAYS * (IDLE_MINUTES * per_idle_minute + of_batch as f64);
    (transactions / 10_000.0 * PER_10_000 * 100.0).round() / 100.0
}

fn span(ms: f64) -> String {
    Span(Duration::from_secs_f64(ms / 1e3)).to_string()
}

/// Returns an amount in dollars.
pub(super) fn money(cents: u64) -> String {
    format!("${}.{:02}", cents / 100, cents % 100)
}

/// Returns milliseconds, with the precision of a microsecond.
fn millis(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}

/// Returns the value that this percentage of the sorted values does not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_measured_value() {
        let spans: Vec<_> = (1..=100).map(Duration::from_millis).collect();
        for (percent, millis) in [(0, 1), (50, 50), (99, 99), (100, 100)] {
            assert_eq!(percentile(&spans, percent), Duration::from_millis(millis));
        }
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn the_cost_of_a_month_follows_from_the_idle_transactions() {
        for (per_minute, cost) in [(0.0, 0.0), (60.0, 2.38), (200.0 * 60.0, 475.2)] {
            let month = month_cost(per_minute, 0);
            assert!((month - cost).abs() < 1e-9, "{month}");
        }
    }
}
