//! The demo's processes as their parent sees them: started, asked, ended with it.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::{
    Way,
    child::{State, Told},
};

/// A process of this program; killed when it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    child: Child,
}

/// Listeners that hear of work in the same way.
#[derive(Debug)]
pub(super) struct Fleet(Vec<Process>);

/// Nothing that a process is asked takes longer, on however slow a machine.
const PATIENCE: Duration = Duration::from_secs(20);

impl Fleet {
    /// Starts a fleet.
    pub(super) fn start(
        way: Way,
        listeners: usize,
        relay: &str,
        home: &Path,
    ) -> anyhow::Result<Self> {
        let listeners = (1..=listeners).map(|n| Process::worker(way, n, relay, home));
        listeners.collect::<anyhow::Result<_>>().map(Self)
    }

    /// Waits until all are parked.
    pub(super) async fn parked(&mut self) -> anyhow::Result<()> {
        for listener in &mut self.0 {
            listener.parked().await?;
        }
        Ok(())
    }

    /// Waits until all are released; returns how long after the unleash each was.
    pub(super) async fn released(&mut self) -> anyhow::Result<Vec<Duration>> {
        let mut after = Vec::new();
        for listener in &mut self.0 {
            after.push(listener.released().await?);
        }
        Ok(after)
    }

    /// Asks all of them what they do.
    pub(super) async fn state(&mut self) -> anyhow::Result<State> {
        for listener in &mut self.0 {
            listener.ask().await?;
        }
        let mut sum = State::default();
        for listener in &mut self.0 {
            sum = sum.and(listener.answer().await?);
        }
        Ok(sum)
    }

    /// Ends all of them, all at once.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        let ends = self.0.into_iter().map(Process::end);
        futures_util::future::try_join_all(ends).await?;
        Ok(())
    }
}

impl Process {
    /// Starts `reveille demo relay`.
    pub(super) fn relay(store: &str) -> anyhow::Result<Self> {
        let mut command = demo()?;
        command.args(["relay", "--store", store]);
        Self::start("the relay", command)
    }

    /// Starts `reveille demo worker`.
    pub(super) fn worker(
        way: Way,
        number: usize,
        relay: &str,
        home: &Path,
    ) -> anyhow::Result<Self> {
        let id = format!("{}-{number}", way.name());
        let mut command = demo()?;
        command
            .args(["worker", "--relay", relay, "--id", &id])
            .args(["--way", way.name(), "--home"])
            .arg(home);
        Self::start(&id, command)
    }

    fn start(name: &str, mut command: Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdin = child.stdin.take().context("it has a standard input")?;
        let stdout = child.stdout.take().context("it has a standard output")?;
        Ok(Self {
            name: name.to_owned(),
            stdin,
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

    /// Waits until it was released; returns how long after the unleash.
    pub(super) async fn released(&mut self) -> anyhow::Result<Duration> {
        loop {
            if let Told::Released { after_us } = self.told().await? {
                return Ok(Duration::from_micros(after_us));
            }
        }
    }

    /// Ends it, and waits until it has ended.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        drop(self.stdin);
        let ended = timeout(Duration::from_secs(3), self.child.wait()).await;
        if ended.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }

    async fn parked(&mut self) -> anyhow::Result<()> {
        match self.told().await? {
            Told::Parked => Ok(()),
            told => bail!("{} should be parked, but told {told:?}", self.name),
        }
    }

    async fn ask(&mut self) -> anyhow::Result<()> {
        let asked = self.stdin.write_all(b"state\n").await;
        asked.with_context(|| format!("{} ended unexpectedly", self.name))
    }

    async fn answer(&mut self) -> anyhow::Result<State> {
        loop {
            if let Told::State(state) = self.told().await? {
                return Ok(state);
            }
        }
    }

    async fn told(&mut self) -> anyhow::Result<Told> {
        Ok(serde_json::from_str(&self.line().await?)?)
    }
}

fn demo() -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.arg("demo");
    Ok(command)
}
