//! Three relays and their nats-server on this machine, next to one relay and to nats-server alone.
//!
//! Each relay, each relay's subscribers and the nats-server are separate processes; the publisher is
//! in this process. All sides of a part have the same figures, and alternate.

mod burst;
mod deployment;
mod notify;
mod wake;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::{Benchmark, report::Figures, server::Server};

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench cluster wake --runs 5")]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    part: ClusterPart,
}

/// The parts of the benchmark.
#[derive(Debug, Clone, Subcommand)]
enum ClusterPart {
    /// Latency of one notification at a time, to a subscriber of another relay.
    Wake(wake::WakeArgs),
    /// Latency of acknowledgements, and throughput of a stream of notifications.
    Notify(notify::NotifyArgs),
    /// Throughput of many notifications at once, to subscribers of all relays.
    Burst(burst::BurstArgs),
}

/// The cluster that is measured.
const CLUSTER: Server = Server::Cluster(3);

impl Benchmark for ClusterArgs {
    fn servers(&self) -> Vec<Server> {
        match self.part {
            ClusterPart::Wake(_) => {
                vec![Server::RELAY, Server::Cluster(1), CLUSTER, Server::Nats]
            }
            ClusterPart::Notify(_) => vec![Server::RELAY, CLUSTER],
            ClusterPart::Burst(_) => vec![Server::RELAY, CLUSTER, Server::Nats],
        }
    }

    async fn run(&self, server: Server) -> Result<Figures> {
        match &self.part {
            ClusterPart::Wake(args) => wake::once(args, server).await,
            ClusterPart::Notify(args) => notify::once(args, server).await,
            ClusterPart::Burst(args) => burst::once(args, server).await,
        }
    }
}
