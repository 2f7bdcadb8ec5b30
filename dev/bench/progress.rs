//! The bench's progress on stderr: a bar on a terminal, plain lines elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The progress of one benchmark.
#[derive(Debug)]
pub(super) struct Progress {
    name: String,
    bar: ProgressBar,
}

impl Progress {
    /// Starts a progress bar of `runs` runs.
    pub(super) fn new(name: &str, runs: usize) -> Self {
        // Hidden if stderr is not a terminal.
        let bar = ProgressBar::new(runs as u64);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} [{bar:20}] {wide_msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        let name = name.to_owned();
        Self { name, bar }
    }

    /// Shows the start of a run.
    pub(super) fn begin(&self, run: &str) {
        let prefix = format!("{}: {run}", self.name);
        if self.bar.is_hidden() {
            eprintln!("{prefix}");
        }
        self.bar.set_prefix(prefix);
    }

    /// Shows the next step of the run.
    pub(super) fn step(&self, step: &str) {
        if self.bar.is_hidden() {
            eprintln!("  {step}");
        }
        self.bar.set_message(step.to_owned());
    }

    /// Shows the progress of a step, on a terminal only.
    pub(super) fn tick(&self, status: &str) {
        self.bar.set_message(status.to_owned());
    }

    /// Shows the end of a run.
    pub(super) fn done(&self) {
        self.bar.inc(1);
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
