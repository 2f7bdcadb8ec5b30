//! How the demo shows itself: a spinner on a terminal, plain lines elsewhere.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::output;

/// The story's teller.
#[derive(Debug)]
pub(super) struct Stage {
    bar: ProgressBar,
    terminal: bool,
    since: Instant,
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
            output::note(line);
        }
    }

    /// Ends the display.
    pub(super) fn clear(self) {
        self.bar.finish_and_clear();
    }
}
