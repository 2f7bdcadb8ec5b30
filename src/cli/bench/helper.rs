//! A process of the bench's own: this program again, with a hidden verb.
//!
//! Parent and child talk in lines. The child ends when its standard input closes, which happens
//! even where the parent is killed; a parent that lets go of it kills it.

use std::{io::BufRead, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc,
};

/// A child process, seen from its parent.
#[derive(Debug)]
pub(super) struct Helper {
    name: &'static str,
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Even the slowest work on a busy machine says something within this time.
const PATIENCE: Duration = Duration::from_secs(180);

impl Helper {
    /// Starts `reveille bench NAME ARGS`.
    pub(super) fn start(name: &'static str, args: &[String]) -> Result<Self> {
        let program = std::env::current_exe().context("this program's own path is not known")?;
        let mut child = Command::new(program)
            .args(["bench", name])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("the {name} process cannot be started"))?;
        let stdin = child.stdin.take().context("its input is piped")?;
        let stdout = child.stdout.take().context("its output is piped")?;
        Ok(Self {
            name,
            child,
            stdin,
            lines: BufReader::new(stdout).lines(),
        })
    }

    /// Sends a line.
    pub(super) async fn tell(&mut self, line: &str) -> Result<()> {
        let written = self.stdin.write_all(format!("{line}\n").as_bytes()).await;
        written.with_context(|| format!("the {} process has ended", self.name))
    }

    /// Waits for the next line.
    pub(super) async fn line(&mut self) -> Result<String> {
        match tokio::time::timeout(PATIENCE, self.lines.next_line()).await {
            Ok(line) => line?.with_context(|| format!("the {} process has ended", self.name)),
            Err(_) => bail!("the {} process has said nothing for 3 minutes", self.name),
        }
    }

    /// Ends the child, and waits until it has ended.
    pub(super) async fn stop(mut self) {
        drop(self.stdin);
        let ended = tokio::time::timeout(Duration::from_secs(5), self.child.wait()).await;
        if ended.is_err() {
            // Dropping it would kill it as well; this also waits for its end.
            let _ = self.child.kill().await;
        }
    }
}

/// Returns the lines of a child's standard input. The channel closes when the parent has let go.
///
/// A thread reads them, not a task: the runtime would wait for the last read when it ends.
pub(super) fn orders() -> mpsc::Receiver<String> {
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

/// Waits until the parent has let go of this child.
pub(super) async fn abandoned() {
    let mut orders = orders();
    while orders.recv().await.is_some() {}
}

/// Lets this process hold as many connections as the system allows.
pub(super) fn raise_limits() {
    // Where it is refused, the connections beyond the limit fail, and say so.
    let _ = crate::cli::signals::raise_open_files();
}
