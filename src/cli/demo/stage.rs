//! How the demo shows itself: a spinner on a terminal, plain lines elsewhere, a table at the end.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use reveille::duration::Span;

/// The story's teller.
#[derive(Debug)]
pub(super) struct Stage {
    bar: ProgressBar,
    terminal: bool,
    since: Instant,
    rows: Vec<(String, String)>,
}

impl Stage {
    pub(super) fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(80));
        Self {
            bar,
            terminal,
            since: Instant::now(),
            rows: Vec::new(),
        }
    }

    /// Says what is being done.
    pub(super) fn doing(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Says what was done.
    pub(super) fn done(&self, what: &str) {
        let line = format!("[{:>5.1}s] {what}", self.since.elapsed().as_secs_f64());
        if self.terminal {
            self.bar.println(line);
        } else {
            eprintln!("{line}");
        }
    }

    /// Keeps a line for the table.
    pub(super) fn row(&mut self, what: &str, figure: impl Into<String>) {
        self.rows.push((what.to_owned(), figure.into()));
    }

    /// Prints the table.
    pub(super) fn finish(self, json: bool) -> anyhow::Result<()> {
        self.bar.finish_and_clear();
        if json {
            let rows: serde_json::Map<_, _> = self
                .rows
                .into_iter()
                .map(|(what, figure)| (what, figure.into()))
                .collect();
            println!("{}", serde_json::to_string_pretty(&rows)?);
            return Ok(());
        }
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_FULL_CONDENSED)
            .set_header(["what", "measured"]);
        for (what, figure) in self.rows {
            table.add_row([what, figure]);
        }
        println!("{table}");
        Ok(())
    }
}

/// Writes the middle and the greatest of some latencies.
pub(super) fn middle_and_greatest(mut latencies: Vec<Duration>) -> String {
    latencies.sort_unstable();
    let middle = latencies
        .get(latencies.len() / 2)
        .copied()
        .unwrap_or_default();
    let greatest = latencies.last().copied().unwrap_or_default();
    format!("p50 {}, max {}", Span(middle), Span(greatest))
}
