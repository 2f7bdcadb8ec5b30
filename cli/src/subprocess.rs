//! A child process of this program that exchanges lines with its parent.
//!
//! Parent and child write lines to each other. The child ends when its standard input closes, which
//! also happens if the parent is killed. Dropping a [`Subprocess`] kills the child.

use std::{
    ffi::{OsStr, OsString},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

/// The parent's handle of a child process.
#[derive(Debug)]
pub(crate) struct Subprocess {
    name: String,
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// Longest wait for a line.
    line_timeout: Duration,
}

/// A child that has not ended this long after its standard input closed is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl Subprocess {
    /// Starts this program with these arguments. `name` is for error messages.
    pub(crate) fn start<T: AsRef<OsStr>>(
        name: &str,
        args: impl IntoIterator<Item = T>,
        line_timeout: Duration,
    ) -> Result<Self> {
        Self::start_with(name, args, [], line_timeout)
    }

    /// As [`Subprocess::start`], with further variables.
    pub(crate) fn start_with<T: AsRef<OsStr>>(
        name: &str,
        args: impl IntoIterator<Item = T>,
        variables: impl IntoIterator<Item = (&'static str, OsString)>,
        line_timeout: Duration,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("the path of this program is unknown")?;
        let mut child = Command::new(program)
            .args(args)
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("the {name} process cannot be started"))?;
        let stdin = child.stdin.take().context("stdin is piped")?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        Ok(Self {
            name: name.to_owned(),
            child,
            stdin,
            lines: BufReader::new(stdout).lines(),
            line_timeout,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a line.
    pub(crate) async fn send(&mut self, line: &str) -> Result<()> {
        let written = self.stdin.write_all(format!("{line}\n").as_bytes()).await;
        written.with_context(|| format!("the {} process has ended", self.name))
    }

    /// Waits for the next line.
    pub(crate) async fn line(&mut self) -> Result<String> {
        match timeout(self.line_timeout, self.lines.next_line()).await {
            Ok(line) => line?.with_context(|| format!("the {} process has ended", self.name)),
            Err(_) => {
                let seconds = self.line_timeout.as_secs();
                bail!("the {} process wrote no line for {seconds} s", self.name)
            }
        }
    }

    /// Kills the child with SIGKILL, and waits until it has ended.
    pub(crate) async fn kill(mut self) {
        // A child that has ended already is no error.
        let _ = self.child.kill().await;
    }

    /// Ends the child, and waits until it has ended.
    pub(crate) async fn stop(self) {
        self.end_within(STOP_TIMEOUT).await;
    }

    /// Ends the child, and waits until it has ended. Returns false if it is killed after this time.
    pub(crate) async fn end_within(mut self, limit: Duration) -> bool {
        drop(self.stdin);
        let ended = timeout(limit, self.child.wait()).await;
        if ended.is_err() {
            // A drop would also kill it; this waits for its end as well.
            let _ = self.child.kill().await;
        }
        ended.is_ok()
    }
}
