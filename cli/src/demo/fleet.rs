//! The demo's child processes, as their parent controls them.

use std::{ffi::OsString, path::Path, time::Duration};

use anyhow::bail;

use super::{
    Mode,
    protocol::{ChildEvent, FleetState},
};
use crate::subprocess::Subprocess;

/// A fleet of listener processes with the same mode.
#[derive(Debug)]
pub(super) struct Fleet(Vec<Worker>);

/// The process of one listener.
#[derive(Debug)]
pub(super) struct Worker(Subprocess);

/// Longest wait for a line of a child, on a machine of any speed.
const LINE_TIMEOUT: Duration = Duration::from_secs(20);

/// Starts `reveille demo relay`.
pub(super) fn start_relay(store: &str, console: bool) -> anyhow::Result<Subprocess> {
    let console = console.then_some("--console");
    let args = ["demo", "relay", "--store", store]
        .into_iter()
        .chain(console);
    Subprocess::start("relay", args, LINE_TIMEOUT)
}

impl Fleet {
    pub(super) fn start(
        mode: Mode,
        listeners: usize,
        relay: &str,
        home: &Path,
    ) -> anyhow::Result<Self> {
        let workers = (1..=listeners).map(|number| Worker::start(mode, number, relay, home));
        workers.collect::<anyhow::Result<_>>().map(Self)
    }

    /// Waits until all listeners are parked.
    pub(super) async fn wait_parked(&mut self) -> anyhow::Result<()> {
        for worker in &mut self.0 {
            worker.wait_parked().await?;
        }
        Ok(())
    }

    /// Waits until all listeners are released; returns the time from the unleash to each release.
    pub(super) async fn wait_released(&mut self) -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::new();
        for worker in &mut self.0 {
            times.push(worker.wait_released().await?);
        }
        Ok(times)
    }

    /// Queries all listeners, and returns the sum of their states.
    pub(super) async fn state(&mut self) -> anyhow::Result<FleetState> {
        for worker in &mut self.0 {
            worker.query_state().await?;
        }
        let mut sum = FleetState::default();
        for worker in &mut self.0 {
            sum = sum.plus(worker.state().await?);
        }
        Ok(sum)
    }

    /// Ends all processes concurrently.
    pub(super) async fn stop(self) {
        futures_util::future::join_all(self.0.into_iter().map(Worker::stop)).await;
    }
}

impl Worker {
    /// Starts `reveille demo worker`.
    pub(super) fn start(
        mode: Mode,
        number: usize,
        relay: &str,
        home: &Path,
    ) -> anyhow::Result<Self> {
        let id = format!("{}-{number}", mode.name());
        let mut args: Vec<OsString> = ["demo", "worker", "--relay", relay, "--id", &id]
            .map(OsString::from)
            .to_vec();
        args.extend(["--mode", mode.name(), "--home"].map(OsString::from));
        args.push(home.into());
        Subprocess::start(&id, args, LINE_TIMEOUT).map(Self)
    }

    /// Waits until the listener is released; returns the time since the unleash.
    pub(super) async fn wait_released(&mut self) -> anyhow::Result<Duration> {
        loop {
            if let ChildEvent::Released { after_us } = self.event().await? {
                return Ok(Duration::from_micros(after_us));
            }
        }
    }

    pub(super) async fn stop(self) {
        self.0.stop().await;
    }

    async fn wait_parked(&mut self) -> anyhow::Result<()> {
        match self.event().await? {
            ChildEvent::Parked => Ok(()),
            event => bail!("{} is not parked, but reports {event:?}", self.0.name()),
        }
    }

    async fn query_state(&mut self) -> anyhow::Result<()> {
        self.0.send("state").await
    }

    async fn state(&mut self) -> anyhow::Result<FleetState> {
        loop {
            if let ChildEvent::State(state) = self.event().await? {
                return Ok(state);
            }
        }
    }

    async fn event(&mut self) -> anyhow::Result<ChildEvent> {
        Ok(serde_json::from_str(&self.0.line().await?)?)
    }
}
