//! The measurements, their costs, and the table of both.
//!
//! Latency is measured by the machine's clock, from put to handler.

use std::{fmt, time::Duration};

use comfy_table::{CellAlignment, Table, presets};
use reveille::duration::Span;
use serde::Serialize;

use super::{
    IDLE, Way,
    billing::{ITEMS, TRANSACTIONS},
    fleet::{Fleet, Idle, Outcome},
};

/// The price of 10,000 storage transactions, in US dollars.
const PER_10_000: f64 = 0.01;

/// All measurements of the demo.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) transactions: u64,
    pub(super) work_items: usize,
    /// The price of the batch.
    pub(super) cents: u64,
    pub(super) fleets: Vec<FleetFigures>,
}

/// Measurements of one fleet.
#[derive(Debug, Serialize)]
pub(super) struct FleetFigures {
    way: Way,
    listeners: usize,
    idle_tasks: usize,
    idle_storage_transactions: u64,
    idle_storage_transactions_per_minute: f64,
    latency_p50_ms: f64,
    latency_p99_ms: f64,
    drained_after_ms: Option<f64>,
    at_zero_after_ms: Option<f64>,
    busy_storage_transactions: u64,
    month_cost: f64,
    transactions: u64,
    cents: u64,
    exact: bool,
}

/// A month has this many days, each with these idle minutes and one batch like this one.
const DAYS: f64 = 30.0;
const IDLE_MINUTES: f64 = 22.0 * 60.0;

impl FleetFigures {
    /// `cents` is the expected price of the batch.
    pub(super) fn new(fleet: &Fleet, idle: Idle, outcome: &Outcome, cents: u64) -> Self {
        let totals = &outcome.totals;
        let mut waited = totals.waited.clone();
        waited.sort_unstable();
        let month = month(idle.transactions, IDLE, outcome.transactions);
        Self {
            way: fleet.way,
            listeners: fleet.size(),
            idle_tasks: idle.tasks,
            idle_storage_transactions: idle.transactions,
            idle_storage_transactions_per_minute: per_minute(idle.transactions, IDLE),
            latency_p50_ms: millis(percentile(&waited, 50)),
            latency_p99_ms: millis(percentile(&waited, 99)),
            drained_after_ms: outcome.drained.map(millis),
            at_zero_after_ms: outcome.at_zero.map(millis),
            busy_storage_transactions: outcome.transactions,
            month_cost: price(month),
            transactions: totals.transactions,
            cents: totals.cents,
            exact: totals.transactions == TRANSACTIONS
                && totals.cents == cents
                && totals.items() == ITEMS,
        }
    }

    /// Returns the rows of the table: labels and values.
    fn rows(&self) -> [(String, String); 10] {
        let row = |label: &str, value: &dyn fmt::Display| (label.to_owned(), value.to_string());
        let idle_label = format!("storage transactions, {} idle", Span(IDLE));
        let month_label = format!("a month* at ${PER_10_000} per 10,000");
        let per_minute = format!("{:.0}", self.idle_storage_transactions_per_minute);
        let drained_after = or_never(self.drained_after_ms);
        [
            row("listeners, with the controller", &self.listeners),
            row("dequeue tasks while idle", &self.idle_tasks),
            row(&idle_label, &self.idle_storage_transactions),
            row("the same, per minute", &per_minute),
            row(
                "latency p50, from put to handling",
                &span(self.latency_p50_ms),
            ),
            row("latency p99", &span(self.latency_p99_ms)),
            row("last result, after the last put", &drained_after),
            row(
                "storage transactions for the batch",
                &self.busy_storage_transactions,
            ),
            row(&month_label, &format!("${:.2}", self.month_cost)),
            row("total of the transactions", &money(self.cents)),
        ]
    }
}

impl fmt::Display for FleetFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} transactions, {}, {} after the last put: {}",
            self.way.name(),
            self.transactions,
            money(self.cents),
            or_never(self.drained_after_ms),
            if self.exact { "exact" } else { "NOT EXACT" }
        )?;
        if let Some(after) = self.at_zero_after_ms {
            write!(f, "; back at 0 dequeue tasks {} after it", span(after))?;
        }
        Ok(())
    }
}

impl Figures {
    /// Returns whether no result was lost or counted twice.
    pub(super) fn exact(&self) -> bool {
        self.fleets.iter().all(|fleet| fleet.exact)
    }

    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        let mut table = Table::new();
        let names = self.fleets.iter().map(|fleet| fleet.way.name());
        table
            .load_style(presets::UTF8_FULL_CONDENSED)
            .set_header([""].into_iter().chain(names));
        let columns: Vec<_> = self.fleets.iter().map(FleetFigures::rows).collect();
        for (number, (label, _)) in columns[0].iter().enumerate() {
            let values = columns.iter().map(|rows| &rows[number].1);
            table.add_row([label].into_iter().chain(values));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        println!("{table}\n* 30 days of 22 idle hours, and one such batch a day");
        Ok(())
    }
}

fn per_minute(idle_transactions: u64, idle: Duration) -> f64 {
    (idle_transactions as f64 * 600.0 / idle.as_secs_f64()).round() / 10.0
}

/// Returns the storage transactions of a month.
fn month(idle_transactions: u64, idle: Duration, busy_transactions: u64) -> f64 {
    let idle_minute = idle_transactions as f64 * 60.0 / idle.as_secs_f64();
    DAYS * (IDLE_MINUTES * idle_minute + busy_transactions as f64)
}

/// Returns the price of storage transactions in dollars and cents.
fn price(transactions: f64) -> f64 {
    (transactions / 10_000.0 * PER_10_000 * 100.0).round() / 100.0
}

fn or_never(ms: Option<f64>) -> String {
    ms.map_or_else(|| "never".to_owned(), span)
}

pub(super) fn span(ms: f64) -> String {
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
        for (transactions, cost) in [(0, 0.0), (60, 2.38), (200 * 60, 475.2)] {
            let month = month(transactions, Duration::from_secs(60), 0);
            assert!((price(month) - cost).abs() < 1e-9, "{month}");
        }
    }
}
