//! The bench's child processes: this program with a hidden verb.
//!
//! The parent side starts a [`Subprocess`]. The child side reads the parent's commands, one a line,
//! and ends when its standard input closes.

use std::{ffi::OsString, io::BufRead as _, time::Duration};

use anyhow::{Result, ensure};
use tokio::sync::mpsc;

use crate::cli::{signals, subprocess::Subprocess};

/// Longest wait for a line of a child, even for the slowest benchmark on a busy machine.
const LINE_TIMEOUT: Duration = Duration::from_secs(180);

/// Starts `reveille-bench NAME ARGS`.
pub(super) fn start(name: &'static str, args: &[String]) -> Result<Subprocess> {
    start_with(name, args, [])
}

/// As [`start`], with further variables.
pub(super) fn start_with(
    name: &'static str,
    args: &[String],
    variables: impl IntoIterator<Item = (&'static str, OsString)>,
) -> Result<Subprocess> {
    let verb = name.to_owned();
    let args = [&verb].into_iter().chain(args);
    Subprocess::start_with(name, args, variables, LINE_TIMEOUT)
}

/// Waits for the next line of a child, which must be this one.
pub(super) async fn expect(process: &mut Subprocess, expected: &str) -> Result<()> {
    let line = process.line().await?;
    ensure!(
        line == expected,
        "the {} process printed {line:?}",
        process.name()
    );
    Ok(())
}

/// Returns the lines of a child's standard input. The channel closes when the parent closes it.
///
/// A thread reads them, not a task: the runtime would wait for the last read when it ends.
pub(super) fn commands() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Waits until the parent closes the standard input of this child.
pub(super) async fn parent_closed() {
    let mut commands = commands();
    while commands.recv().await.is_some() {}
}

/// Lets this process hold as many connections as the system allows.
pub(super) fn raise_limits() {
    // If the system refuses, connections beyond the limit fail with an error.
    let _ = signals::raise_open_files();
}
