//! The demo's processes as their parent sees them: started, heard, ended with it.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use super::child::Told;

/// A process of this program; killed when it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    lines: Lines<BufReader<ChildStdout>>,
    child: Child,
}

/// Nothing in this story takes longer, on however slow a machine.
const PATIENCE: Duration = Duration::from_secs(10);

impl Process {
    /// Starts `reveille demo ARGS`.
    pub(super) fn start(name: &str, args: &[&str]) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .arg("demo")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take().context("it has a standard output")?;
        Ok(Self {
            name: name.to_owned(),
            lines: BufReader::new(stdout).lines(),
            child,
        })
    }

    /// Waits for its next line.
    pub(super) async fn line(&mut self) -> anyhow::Result<String> {
        match timeout(PATIENCE, self.lines.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            Ok(_) => bail!("{} ended unexpectedly", self.name),
            Err(_) => bail!("{} said nothing for {} s", self.name, PATIENCE.as_secs()),
        }
    }

    /// Waits for the next thing that it tells.
    pub(super) async fn told(&mut self) -> anyhow::Result<Told> {
        Ok(serde_json::from_str(&self.line().await?)?)
    }

    /// Waits until it has been told of `count` notifications; returns each wake-up's latency.
    pub(super) async fn woken(&mut self, count: u64) -> anyhow::Result<Vec<Duration>> {
        let mut latencies = Vec::new();
        let mut sum = 0;
        while sum < count {
            if let Told::Woken {
                notifications,
                after_us,
                ..
            } = self.told().await?
            {
                sum += notifications;
                latencies.push(Duration::from_micros(after_us));
            }
        }
        if sum > count {
            bail!(
                "{} was told of {sum} notifications instead of {count}",
                self.name
            );
        }
        Ok(latencies)
    }

    /// Waits until it was released; returns how long after the unleash.
    pub(super) async fn released(&mut self) -> anyhow::Result<Duration> {
        loop {
            if let Told::Released { after_us, .. } = self.told().await? {
                return Ok(Duration::from_micros(after_us));
            }
        }
    }

    /// Ends it, and waits until it has ended.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        if timeout(Duration::from_secs(3), self.child.wait())
            .await
            .is_err()
        {
            self.child.kill().await?;
        }
        Ok(())
    }
}
