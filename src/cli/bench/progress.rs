//! What the bench is doing, on stderr: a bar on a terminal, plain lines elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::output;

/// The runs of one work.
#[derive(Debug)]
pub(super) struct Progress {
    name: &'static str,
    bar: ProgressBar,
}

impl Progress {
    /// Begins to show `runs` runs.
    pub(super) fn new(name: &'static str, runs: usize) -> Self {
        // Hidden where stderr is no terminal.
        let bar = ProgressBar::new(runs as u64);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} [{bar:20}] {wide_msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { name, bar }
    }

    /// A run begins.
    pub(super) fn begin(&self, run: &str) {
        let prefix = format!("{}: {run}", self.name);
        if self.bar.is_hidden() {
            output::note(&prefix);
        }
        self.bar.set_prefix(prefix);
    }

    /// The run does something new.
    pub(super) fn say(&self, what: &str) {
        if self.bar.is_hidden() {
            output::note(format_args!("  {what}"));
        }
        self.bar.set_message(what.to_owned());
    }

    /// The run goes on: shown on a terminal only.
    pub(super) fn tick(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// The run has ended.
    pub(super) fn done(&self) {
        self.bar.inc(1);
    }

    /// All have.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
