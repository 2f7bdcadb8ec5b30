//! The bench's child processes: this program with a hidden verb.
//!
//! Parent and child write lines to each other. A child ends when its standard input closes, which
//! also happens if the parent is killed.

use std::{ffi::OsString, io::BufRead as _, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Resource, Rlimit};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{ChildStdin, ChildStdout, Command},
    sync::mpsc,
    time::timeout,
};

/// The parent's handle of a child process. Dropping it kills the child.
#[derive(Debug)]
pub(crate) struct Child {
    name: &'static str,
    process: tokio::process::Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Longest wait for a line of a child, even for the slowest benchmark on a busy machine.
const LINE_TIMEOUT: Duration = Duration::from_secs(600);
/// A child that has not ended this long after its standard input closed is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl Child {
    /// Starts `reveille-bench NAME ARGS`, with further environment variables.
    pub(crate) fn start(
        name: &'static str,
        args: &[String],
        variables: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("the path of this program is unknown")?;
        let mut process = Command::new(program)
            .arg(name)
            .args(args)
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("the {name} process cannot be started"))?;
        let stdin = process.stdin.take().context("stdin is piped")?;
        let stdout = process.stdout.take().context("stdout is piped")?;
        Ok(Self {
            name,
            process,
            stdin,
            lines: BufReader::new(stdout).lines(),
        })
    }

    /// Sends a line.
    pub(crate) async fn send(&mut self, line: &str) -> Result<()> {
        let written = self.stdin.write_all(format!("{line}\n").as_bytes()).await;
        written.with_context(|| format!("the {} process has ended", self.name))
    }

    /// Waits for the next line.
    pub(crate) async fn line(&mut self) -> Result<String> {
        match timeout(LINE_TIMEOUT, self.lines.next_line()).await {
            Ok(line) => line?.with_context(|| format!("the {} process has ended", self.name)),
            Err(_) => bail!(
                "the {} process wrote no line for {LINE_TIMEOUT:?}",
                self.name
            ),
        }
    }

    /// Waits for the next line, which must be this one.
    pub(crate) async fn expect(&mut self, expected: &str) -> Result<()> {
        let line = self.line().await?;
        ensure!(
            line == expected,
            "the {} process printed {line:?}",
            self.name
        );
        Ok(())
    }

    /// Ends the child, and waits until it has ended.
    pub(crate) async fn stop(mut self) {
        drop(self.stdin);
        if timeout(STOP_TIMEOUT, self.process.wait()).await.is_err() {
            // A drop would also kill it; this waits for its end as well.
            let _ = self.process.kill().await;
        }
    }
}

/// Returns the lines of a child's standard input. The channel closes when the parent closes it.
///
/// A thread reads them, not a task: the runtime would wait for the last read when it ends.
pub(crate) fn commands() -> mpsc::Receiver<String> {
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
pub(crate) async fn parent_closed() {
    let mut commands = commands();
    while commands.recv().await.is_some() {}
}

/// Raises the soft limit on open files to the hard limit: each connection is an open file.
pub(crate) fn raise_limits() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // If the system refuses, connections beyond the limit fail with an error.
    let _ = rustix::process::setrlimit(Resource::Nofile, raised);
}
