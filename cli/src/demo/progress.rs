//! The demo's progress: a spinner on a terminal, plain lines elsewhere.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// Prints the progress of the demo to stderr.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    terminal: bool,
    since: Instant,
}

impl Progress {
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
        }
    }

    /// Shows the current step.
    pub(super) fn doing(&self, step: &str) {
        self.bar.set_message(step.to_owned());
    }

    /// Prints a finished step.
    pub(super) fn done(&self, step: &str) {
        let line = format!("[{:>5.1}s] {step}", self.since.elapsed().as_secs_f64());
        if self.terminal {
            self.bar.println(line);
        } else {
            output::note(line);
        }
    }

    /// Ends the display.
    pub(super) fn clear(self) {
        self.bar.finish_and_clear();
    }
}
