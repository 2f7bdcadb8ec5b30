//! The measurements of the fleets, their costs, and the table of both.
//!
//! Latency is measured by the machine's clock, from put to handler.

use std::time::Duration;

use reveille::duration::Span;
use serde::Serialize;
use serde_json::json;

use super::{IDLE, Way, fleet::Outcome};
use crate::output;

/// Measurements of one fleet.
#[derive(Debug, Serialize)]
pub(super) struct FleetFigures {
    way: Way,
    idle_storage_transactions: u64,
    latency_p50_ms: f64,
    at_zero_after_ms: Option<f64>,
    busy_storage_transactions: u64,
    month_cost: f64,
}

/// The price of 10,000 storage transactions, in US dollars.
const PER_10_000: f64 = 0.01;
/// A month has this many days, each with these idle minutes and one batch like this one.
const DAYS: f64 = 30.0;
const IDLE_MINUTES: f64 = 22.0 * 60.0;

impl FleetFigures {
    pub(super) fn new(way: Way, idle_transactions: u64, mut outcome: Outcome) -> Self {
        let waited = &mut outcome.waited;
        waited.sort_unstable();
        let median = waited.get(waited.len() / 2).copied().unwrap_or_default();
        Self {
            way,
            idle_storage_transactions: idle_transactions,
            latency_p50_ms: millis(median),
            at_zero_after_ms: outcome.at_zero.map(millis),
            busy_storage_transactions: outcome.transactions,
            month_cost: month_cost(per_minute(idle_transactions), outcome.transactions),
        }
    }
}

pub(super) fn table(fleets: &[FleetFigures]) -> String {
    let row = |label: &str, value: fn(&FleetFigures) -> String| {
        let mut row = json!({ "": label });
        for fleet in fleets {
            row[fleet.way.name()] = value(fleet).into();
        }
        row
    };
    let rows = [
        row("storage transactions in an idle minute", |of| {
            format!("{:.0}", per_minute(of.idle_storage_transactions))
        }),
        row("latency from put to handling, p50", |of| {
            Span(Duration::from_secs_f64(of.latency_p50_ms / 1e3)).to_string()
        }),
        row("a month* at $0.01 per 10,000 transactions", |of| {
            format!("${:.2}", of.month_cost)
        }),
    ];
    let table = output::table_of(" woken polling", &rows);
    format!("{table}\n* 30 days of 22 idle hours, and one such batch a day")
}

fn per_minute(idle_transactions: u64) -> f64 {
    idle_transactions as f64 * 60.0 / IDLE.as_secs_f64()
}

/// Returns the price of a month's storage transactions in dollars and cents.
fn month_cost(per_idle_minute: f64, of_batch: u64) -> f64 {
    let transactions = DAYS * (IDLE_MINUTES * per_idle_minute + of_batch as f64);
    (transactions / 10_000.0 * PER_10_000 * 100.0).round() / 100.0
}

/// Returns milliseconds, with the precision of a microsecond.
fn millis(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_month_follows_from_the_idle_transactions() {
        for (per_minute, cost) in [(0.0, 0.0), (60.0, 2.38), (200.0 * 60.0, 475.2)] {
            let month = month_cost(per_minute, 0);
            assert!((month - cost).abs() < 1e-9, "{month}");
        }
    }
}
