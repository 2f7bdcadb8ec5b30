//! The processes of one run: one relay, nats-server alone, or a cluster with its nats-server; their
//! subscribers, and a publisher at the first one.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use reveille::QueueAddress;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{
    broker::Broker,
    report::Figures,
    sender::Sender,
    server::Server,
    step,
    subscriber_process::{SubscriberProcess, SubscriberSpec},
    usage::Usage,
};

/// The running servers.
#[derive(Debug)]
pub(super) struct Deployment {
    /// The servers of the clients: the relays, or the nats-server of a run without relays.
    pub(super) servers: Vec<Broker>,
    /// The nats-server of a cluster.
    broker: Option<Broker>,
    /// The file of the flags.
    _directory: TempDir,
}

/// The subscribers' processes, and a publisher.
pub(super) struct Traffic {
    pub(super) processes: Vec<SubscriberProcess>,
    pub(super) sender: Sender,
}

/// Measurements of one round.
pub(super) struct Round {
    /// Time in seconds until the last subscriber had all.
    pub(super) wall: f64,
    pub(super) wakeups: u64,
}

/// Longest wait until the relays have found each other.
const START_TIMEOUT: Duration = Duration::from_secs(60);

impl Deployment {
    /// Starts the servers, and waits until the relays of a cluster have found each other.
    pub(super) async fn start(server: Server) -> Result<Self> {
        step("starting the servers");
        let directory = TempDir::new()?;
        let mut deployment = Self {
            servers: Vec::new(),
            broker: None,
            _directory: directory,
        };
        let Server::Cluster(relays) = server else {
            deployment.servers.push(Broker::start(server).await?);
            return Ok(deployment);
        };
        let nats = deployment.broker.insert(Broker::start(Server::Nats).await?);
        let store = deployment._directory.path().join("flags.db");
        for number in 1..=relays {
            let args = [
                format!("--cluster=nats://{}", nats.target),
                format!("--store=sqlite:{}", store.display()),
                format!("--relay-id=relay-{number}"),
            ];
            deployment.servers.push(Broker::relay(&args).await?);
        }
        deployment.found_each_other().await?;
        Ok(deployment)
    }

    /// Waits until each relay sees all others, and is not degraded.
    async fn found_each_other(&self) -> Result<()> {
        let (others, began) = (self.servers.len() as u64 - 1, Instant::now());
        for relay in &self.servers {
            loop {
                let metrics = relay.metrics().await?.context("a relay has metrics")?;
                let value = |name| metrics.value(name).context("no metrics of a cluster");
                if value("reveille_cluster_relays")? >= others
                    && value("reveille_cluster_degraded")? == 0
                {
                    break;
                }
                let target = &relay.target;
                ensure!(
                    began.elapsed() < START_TIMEOUT,
                    "the relay at {target} does not find the others"
                );
                sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
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

    /// Returns the usage so far of the servers of clients, and of the cluster's nats-server.
    pub(super) fn usage(&self) -> [Usage; 2] {
        let servers = self.servers.iter().map(Broker::usage);
        let servers = servers.reduce(Usage::plus).unwrap_or_default();
        [
            servers,
            self.broker.as_ref().map(Broker::usage).unwrap_or_default(),
        ]
    }

    /// Adds the usage since `before`, and ends all processes.
    pub(super) async fn stop(self, traffic: Traffic, figures: &mut Figures, before: &[Usage; 2]) {
        let after = self.usage();
        figures.usage("servers'", &before[0], &after[0]);
        figures.usage("broker's", &before[1], &after[1]);
        for process in traffic.processes {
            process.stop().await;
        }
        for server in self.servers.into_iter().chain(self.broker) {
            server.stop().await;
        }
    }
}

impl Traffic {
    /// Connects this number of subscribers to each server, then a publisher to the first one.
    pub(super) async fn start(
        deployment: &Deployment,
        subscribers: &[u64],
        queue: &QueueAddress,
        batch: u16,
        timed: bool,
    ) -> Result<Self> {
        let queues = std::slice::from_ref(queue);
        let mut processes = Vec::new();
        for (server, count) in deployment.servers.iter().zip(subscribers) {
            if *count > 0 {
                let spec = SubscriberSpec::of(queues, *count, timed);
                processes.push(SubscriberProcess::start(server, &spec).await?);
            }
        }
        let sender = Sender::open(&deployment.servers[0], queues, batch.into()).await?;
        Ok(Self { processes, sender })
    }

    /// Makes each subscriber expect `notifications` more, publishes them with `publish`, and waits
    /// until all subscribers have them.
    pub(super) async fn round(
        &mut self,
        notifications: u64,
        publish: impl AsyncFnOnce(&mut Sender) -> Result<SystemTime>,
    ) -> Result<Round> {
        for process in &mut self.processes {
            process.expect(1, notifications).await?;
        }
        let began = publish(&mut self.sender).await?;
        let (mut wall, mut wakeups) = (0_f64, 0);
        for process in &mut self.processes {
            let delivered = process.delivered(notifications).await?;
            wall = wall.max(delivered.seconds_since(began));
            wakeups += delivered.wakeups;
        }
        Ok(Round { wall, wakeups })
    }
}
