//! Processes that end and start again: three relays and their nats-server, on ports that stay.

use std::{net::TcpListener, path::Path, time::Duration};

use anyhow::{Result, bail};

use super::{super::broker::Broker, RELAYS, deployment::found_each_other};

/// The running processes.
#[derive(Debug)]
pub(super) struct Processes<'a> {
    nats: &'a Path,
    nats_port: u16,
    /// `None` while it is killed.
    broker: Option<Broker>,
    relays: Vec<Broker>,
    ports: Vec<u16>,
    /// The arguments of all relays.
    args: Vec<String>,
}

/// The ports of the processes. They lie below those that a system gives to connections: a client that
/// connects to a free port of that range may get the same port, and connect to itself.
const PORTS: std::ops::Range<u16> = 15_000..30_000;
/// Attempts to find a free port.
const ATTEMPTS: u32 = 100;

impl<'a> Processes<'a> {
    /// Starts all, the relays with these further arguments, and waits until the relays have found each
    /// other.
    pub(super) async fn start(nats: &'a Path, store: &Path, further: &[String]) -> Result<Self> {
        let nats_port = free_port()?;
        let mut args = vec![
            format!("--store=sqlite:{}", store.display()),
            format!("--cluster=nats://127.0.0.1:{nats_port}"),
        ];
        args.extend_from_slice(further);
        let mut processes = Self {
            nats,
            nats_port,
            broker: None,
            relays: Vec::new(),
            ports: Vec::new(),
            args,
        };
        processes.start_broker().await?;
        for number in 0..RELAYS {
            processes.ports.push(free_port()?);
            let relay = processes.start_relay(number).await?;
            processes.relays.push(relay);
        }
        processes.found_each_other().await?;
        Ok(processes)
    }

    /// Returns the URLs of the relays.
    pub(super) fn urls(&self) -> Vec<String> {
        self.relays
            .iter()
            .map(|relay| relay.target.clone())
            .collect()
    }

    /// Kills a relay with SIGKILL, and starts it again when `down` has ended.
    pub(super) async fn kill_relay(&mut self, number: usize, down: impl Future) -> Result<()> {
        self.relays.remove(number).kill().await;
        down.await;
        let relay = self.start_relay(number).await?;
        self.relays.insert(number, relay);
        Ok(())
    }

    /// Ends a relay in order, and starts it again.
    ///
    /// # Errors
    /// It did not end within this time.
    pub(super) async fn restart_relay(&mut self, number: usize, within: Duration) -> Result<()> {
        self.relays.remove(number).drain(within).await?;
        let relay = self.start_relay(number).await?;
        self.relays.insert(number, relay);
        Ok(())
    }

    /// Kills the nats-server with SIGKILL, and starts it again when `down` has ended.
    pub(super) async fn kill_broker(&mut self, down: impl Future) -> Result<()> {
        if let Some(broker) = self.broker.take() {
            broker.stop().await;
        }
        down.await;
        self.start_broker().await
    }

    /// Waits until each relay has found the others.
    pub(super) async fn found_each_other(&self) -> Result<()> {
        found_each_other(&self.relays).await
    }

    pub(super) async fn stop(self) {
        for process in self.relays.into_iter().chain(self.broker) {
            process.stop().await;
        }
    }

    async fn start_broker(&mut self) -> Result<()> {
        self.broker = Some(Broker::nats(self.nats, self.nats_port).await?);
        Ok(())
    }

    async fn start_relay(&self, number: usize) -> Result<Broker> {
        let mut args = self.args.clone();
        args.push(format!("--relay-id=relay-{}", number + 1));
        args.push(format!("--port={}", self.ports[number]));
        Broker::relay(&args).await
    }
}

fn free_port() -> Result<u16> {
    for _ in 0..ATTEMPTS {
        let port = fastrand::u16(PORTS);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port")
}
