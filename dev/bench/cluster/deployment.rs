//! The servers of one run: one relay, nats-server alone, or a cluster with its nats-server.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::time::{Instant, sleep};

use super::{
    super::{Server, broker::Broker, directory::Directory, metrics::Metrics, usage::Usage},
    RELAYS,
    link::Link,
};

/// How the servers are started.
#[derive(Debug, Clone)]
pub(super) struct Options {
    /// The program nats-server.
    pub(super) nats: PathBuf,
    /// Delay of the link to the nats-server of [`Server::FarCluster`], each way.
    pub(super) delay: Duration,
    /// Count the bytes between relays and nats-server.
    pub(super) counts_bytes: bool,
    /// The store of the flags; `None` for a new file.
    pub(super) store: Option<String>,
    /// Further arguments of the relays.
    pub(super) relay_args: Vec<String>,
}

/// The running servers.
#[derive(Debug)]
pub(super) struct Deployment {
    /// The servers of the clients: the relays, or the nats-server of a run without relays.
    pub(super) servers: Vec<Broker>,
    /// The nats-server of a cluster.
    broker: Option<Broker>,
    link: Option<Link>,
    /// The file of the flags.
    _directory: Directory,
}

/// Processor time and memory of the servers of clients, and of the cluster's nats-server.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeploymentUsage {
    pub(super) servers: Usage,
    pub(super) broker: Usage,
}

/// Longest wait until the relays have found each other.
const START_TIMEOUT: Duration = Duration::from_secs(60);

impl Options {
    pub(super) fn new(nats: PathBuf) -> Self {
        Self {
            nats,
            delay: Duration::ZERO,
            counts_bytes: false,
            store: None,
            relay_args: Vec::new(),
        }
    }
}

impl Deployment {
    /// Starts the servers, and waits until the relays of a cluster have found each other.
    pub(super) async fn start(server: Server, options: &Options) -> Result<Self> {
        let directory = Directory::new()?;
        let file = || format!("sqlite:{}", directory.path().join("flags.db").display());
        let store = options.store.clone().unwrap_or_else(file);
        let mut args = options.relay_args.clone();
        args.push(format!("--store={store}"));
        let (mut servers, mut broker, mut link) = (Vec::new(), None, None);
        match server {
            Server::Nats => servers.push(Broker::nats(&options.nats, 0).await?),
            Server::Relay(_) => servers.push(Broker::relay(&args).await?),
            Server::Cluster | Server::FarCluster | Server::ClusterOfOne => {
                let nats = Broker::nats(&options.nats, 0).await?;
                let mut target = nats.target.clone();
                let is_far = server == Server::FarCluster;
                if is_far || options.counts_bytes {
                    let delay = if is_far {
                        options.delay
                    } else {
                        Duration::ZERO
                    };
                    target = link.insert(Link::start(target, delay).await?).address();
                }
                broker = Some(nats);
                args.push(format!("--cluster=nats://{target}"));
                let relays = match server {
                    Server::ClusterOfOne => 1,
                    _ => RELAYS,
                };
                for number in 1..=relays {
                    let id = format!("--relay-id=relay-{number}");
                    servers.push(Broker::relay(&[&args[..], &[id]].concat()).await?);
                }
                found_each_other(&servers).await?;
            }
            Server::RawNats | Server::Redis | Server::Rabbitmq => {
                bail!("{server} is no side of this benchmark")
            }
        }
        Ok(Self {
            servers,
            broker,
            link,
            _directory: directory,
        })
    }

    /// Returns the server of publishers.
    pub(super) fn first(&self) -> &Broker {
        &self.servers[0]
    }

    /// Returns another server than that of publishers, if there is one.
    pub(super) fn other(&self) -> &Broker {
        self.servers.get(1).unwrap_or(&self.servers[0])
    }

    /// Returns the bytes between relays and nats-server; `None` if they are not counted.
    pub(super) fn link_bytes(&self) -> Option<u64> {
        self.link.as_ref().map(Link::bytes)
    }

    /// Returns the sum of a metric of all relays; `None` if a server has no such metric.
    pub(super) async fn sum(&self, name: &str) -> Result<Option<u64>> {
        let mut sum = Some(0);
        for server in &self.servers {
            let metrics = server.metrics().await?;
            let value = metrics.and_then(|metrics| metrics.value(name));
            sum = sum.zip(value).map(|(sum, value)| sum + value);
        }
        Ok(sum)
    }

    /// Returns the servers' usage so far.
    pub(super) fn usage(&self) -> DeploymentUsage {
        let servers = self.servers.iter().map(Broker::usage);
        DeploymentUsage {
            servers: servers.reduce(Usage::plus).unwrap_or_default(),
            broker: self.broker.as_ref().map(Broker::usage).unwrap_or_default(),
        }
    }

    /// Ends all servers.
    pub(super) async fn stop(self) {
        for server in self.servers.into_iter().chain(self.broker) {
            server.stop().await;
        }
    }
}

/// Waits until each relay sees all others, and is not degraded.
///
/// It reads the metrics and not `/readyz`, which also reads the store.
pub(super) async fn found_each_other(relays: &[Broker]) -> Result<()> {
    let others = relays.len() as u64 - 1;
    let began = Instant::now();
    for relay in relays {
        // On a busy machine a single read may fail.
        while !has_found(relay, others).await.unwrap_or_default() {
            ensure!(
                began.elapsed() < START_TIMEOUT,
                "the relay at {} does not find the others",
                relay.target
            );
            sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

async fn has_found(relay: &Broker, others: u64) -> Result<bool> {
    let metrics = Metrics::read(relay.admin()?).await?;
    let value = |name| metrics.value(name).context("no metrics of a cluster");
    // The former life of a relay that was killed counts until it is missing.
    let found = value("reveille_cluster_relays")? >= others;
    Ok(found && value("reveille_cluster_degraded")? == 0)
}
