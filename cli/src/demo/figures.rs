//! The measurements, their costs, and the table of both.
//!
//! Durations are in milliseconds. Latency is measured by the machine's clock, from put to handler.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use reveille::duration::Span;
use serde::Serialize;

use super::{
    Mode,
    billing::{ITEMS, TRANSACTIONS},
    fleet_run::FleetOutcome,
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
    pub(super) release: Release,
    pub(super) pushed: FleetFigures,
    pub(super) polling: FleetFigures,
}

/// All measurements of the demo with agents.
#[derive(Debug, Serialize)]
pub(super) struct AgentFigures {
    processes_started: usize,
    /// Worker processes after the work; `idle_tasks` is their number before it.
    idle_tasks_after: usize,
    /// Processor time of all agents while idle; `None` where the system does not show it.
    idle_processor_ms: Option<f64>,
    /// From the notification of a single message to the first line of its worker.
    first_line_p50_ms: f64,
    first_line_p99_ms: f64,
    latency_max_ms: f64,
    #[serde(flatten)]
    fleet: FleetFigures,
}

/// The release of the parked fleets.
#[derive(Debug, Serialize)]
pub(super) struct Release {
    pub(super) listeners: usize,
    p50_ms: f64,
    max_ms: f64,
    /// Time from the start of a process to its release.
    pub(super) late_starter_ms: f64,
}

/// Measurements of an idle fleet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Idle {
    pub(super) span: Duration,
    pub(super) tasks: usize,
    pub(super) transactions: u64,
}

/// Measurements of one fleet.
#[derive(Debug, Serialize)]
pub(super) struct FleetFigures {
    #[serde(rename = "way")]
    mode: Mode,
    listeners: usize,
    idle_tasks: usize,
    idle_ms: f64,
    idle_storage_transactions: u64,
    idle_storage_transactions_per_minute: f64,
    latency_p50_ms: f64,
    latency_p99_ms: f64,
    drained_after_ms: Option<f64>,
    at_zero_after_ms: Option<f64>,
    busy_storage_transactions: u64,
    month_storage_transactions: f64,
    month_cost: f64,
    pub(super) transactions: u64,
    pub(super) cents: u64,
    pub(super) exact: bool,
}

/// A month has this many days, each with these idle minutes and one batch like this one.
const DAYS: f64 = 30.0;
const IDLE_MINUTES: f64 = 22.0 * 60.0;

impl Release {
    pub(super) fn new(mut after: Vec<Duration>) -> Self {
        after.sort_unstable();
        Self {
            listeners: after.len(),
            p50_ms: millis(quantile(&after, 0.5)),
            max_ms: millis(quantile(&after, 1.0)),
            late_starter_ms: 0.0,
        }
    }
}

impl FleetFigures {
    /// Returns the measurements of a fleet; `cents` is the expected price of the batch.
    pub(super) fn new(
        mode: Mode,
        listeners: usize,
        idle: Idle,
        outcome: &FleetOutcome,
        cents: u64,
    ) -> Self {
        let mut waited = outcome.totals.waited.clone();
        waited.sort_unstable();
        let per_minute = idle.transactions as f64 * 60.0 / idle.span.as_secs_f64();
        let month = DAYS * (IDLE_MINUTES * per_minute + outcome.transactions as f64);
        let totals = &outcome.totals;
        let sums = (totals.transactions, totals.cents);
        Self {
            mode,
            listeners,
            idle_tasks: idle.tasks,
            idle_ms: millis(idle.span),
            idle_storage_transactions: idle.transactions,
            idle_storage_transactions_per_minute: (per_minute * 10.0).round() / 10.0,
            latency_p50_ms: millis(quantile(&waited, 0.5)),
            latency_p99_ms: millis(quantile(&waited, 0.99)),
            drained_after_ms: outcome.drained.map(millis),
            at_zero_after_ms: outcome
                .at_zero
                .filter(|_| mode != Mode::Polling)
                .map(millis),
            busy_storage_transactions: outcome.transactions,
            month_storage_transactions: month.round(),
            month_cost: (month / 10_000.0 * PER_10_000 * 100.0).round() / 100.0,
            transactions: totals.transactions,
            cents: totals.cents,
            exact: sums == (TRANSACTIONS, cents) && totals.items() == ITEMS,
        }
    }

    /// Returns the rows of the table: labels and values.
    fn rows(&self) -> Vec<[String; 2]> {
        let idle = span(self.idle_ms);
        let row = |label: &str, value: String| [label.to_owned(), value];
        vec![
            row(
                "listeners, including the controller",
                self.listeners.to_string(),
            ),
            row("dequeue tasks while idle", self.idle_tasks.to_string()),
            row(
                &format!("storage transactions, {idle} idle"),
                self.idle_storage_transactions.to_string(),
            ),
            row(
                "the same, per minute",
                format!("{:.0}", self.idle_storage_transactions_per_minute),
            ),
            row(
                "latency p50, from put to handling",
                span(self.latency_p50_ms),
            ),
            row("latency p99", span(self.latency_p99_ms)),
            row(
                "last result, after the last put",
                self.drained_after_ms
                    .map_or_else(|| "never".to_owned(), span),
            ),
            row(
                "storage transactions for the batch",
                self.busy_storage_transactions.to_string(),
            ),
            row(
                &format!("a month* at ${PER_10_000} per 10,000"),
                format!("${:.2}", self.month_cost),
            ),
            row(
                &format!("total of {TRANSACTIONS} transactions"),
                money(self.cents),
            ),
        ]
    }
}

impl Figures {
    /// Returns whether no result was lost or counted twice.
    pub(super) fn exact(&self) -> bool {
        self.pushed.exact && self.polling.exact
    }

    /// Prints the measurements.
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        let both = self.pushed.rows().into_iter().zip(self.polling.rows());
        let rows = both.map(|([label, pushed], [_, polling])| vec![label, pushed, polling]);
        print(self, json, &["", "pushed", "polling every 1s"], rows)
    }
}

impl AgentFigures {
    pub(super) fn new(
        fleet: FleetFigures,
        outcome: &FleetOutcome,
        processes_started: usize,
        idle_tasks_after: usize,
        processor: Option<Duration>,
    ) -> Self {
        let mut first_lines = outcome.first_lines.clone();
        first_lines.sort_unstable();
        let slowest = outcome.totals.waited.iter().max().copied();
        Self {
            processes_started,
            idle_tasks_after,
            idle_processor_ms: processor.map(millis),
            first_line_p50_ms: millis(quantile(&first_lines, 0.5)),
            first_line_p99_ms: millis(quantile(&first_lines, 0.99)),
            latency_max_ms: millis(slowest.unwrap_or_default()),
            fleet,
        }
    }

    /// Prints the measurements.
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        let processor = self.idle_processor_ms;
        let further = [
            (
                "worker processes after the work",
                self.idle_tasks_after.to_string(),
            ),
            (
                "worker processes started for it",
                self.processes_started.to_string(),
            ),
            (
                "processor time of the idle agents",
                processor.map_or_else(|| "unknown".to_owned(), span),
            ),
            ("longest latency", span(self.latency_max_ms)),
            (
                "first line of a worker, after notify, p50",
                span(self.first_line_p50_ms),
            ),
            ("the same, p99", span(self.first_line_p99_ms)),
        ];
        let further = further.map(|(label, value)| [label.to_owned(), value]);
        let rows = self.fleet.rows().into_iter().chain(further);
        print(self, json, &["", "three agents"], rows.map(Vec::from))
    }
}

/// Prints measurements as JSON, or as a table with these rows.
fn print(
    figures: &impl Serialize,
    json: bool,
    header: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(figures)?);
        return Ok(());
    }
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_header(header)
        .add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    println!("* 30 days of 22 idle hours, and one such batch a day");
    Ok(())
}

/// Returns a duration as it is printed.
fn span(ms: f64) -> String {
    Span(Duration::from_secs_f64(ms / 1e3)).to_string()
}

/// Returns an amount in dollars.
pub(super) fn money(cents: u64) -> String {
    format!("${}.{:02}", cents / 100, cents % 100)
}

/// Returns a duration in milliseconds, with the precision of a microsecond.
pub(super) fn millis(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}

/// Returns the value that this share of the sorted values does not exceed.
fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (sorted.len() as f64 * share).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank is a small positive number"
    )]
    let at = (rank as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_measured_value() {
        let spans: Vec<_> = (1..=100).map(Duration::from_millis).collect();
        for (share, millis) in [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)] {
            assert_eq!(quantile(&spans, share), Duration::from_millis(millis));
        }
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }

    #[test]
    fn the_cost_of_a_month_follows_from_the_idle_transactions() {
        let outcome = FleetOutcome {
            totals: super::super::billing::Totals::default(),
            drained: None,
            at_zero: None,
            transactions: 0,
            first_lines: Vec::new(),
        };
        for (transactions, cost) in [(0, 0.0), (60, 2.38), (200 * 60, 475.2)] {
            let idle = Idle {
                span: Duration::from_secs(60),
                tasks: 0,
                transactions,
            };
            let measured = FleetFigures::new(Mode::Polling, 1, idle, &outcome, 0);
            assert!((measured.month_cost - cost).abs() < 1e-9, "{measured:?}");
            assert!(!measured.exact, "no result arrived");
        }
    }
}
