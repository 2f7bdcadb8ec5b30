//! The arguments of the bench's child processes (hidden verbs).

use std::{path::PathBuf, time::Duration};

use clap::Args;
use reveille::duration;

use super::Server;

/// The arguments of the parked nodes' process.
#[derive(Debug, Clone, Args)]
pub(crate) struct ParkedArgs {
    /// The relay that releases the nodes.
    #[arg(long)]
    pub(crate) target: Option<String>,
    /// The store that the nodes poll.
    #[arg(long)]
    pub(crate) store: Option<String>,
    #[arg(long, default_value = "2.5s", value_parser = duration::parse)]
    pub(crate) polling: Duration,
    #[arg(long)]
    pub(crate) waiters: u64,
}

/// The arguments of the process that hosts a queue file.
#[derive(Debug, Clone, Args)]
pub(crate) struct QueueHostArgs {
    #[arg(long)]
    pub(crate) path: PathBuf,
}

/// The arguments of the nats-server's process.
#[derive(Debug, Clone, Args)]
pub(crate) struct NatsArgs {
    /// The server's program.
    #[arg(long, default_value = "nats-server")]
    pub(crate) program: PathBuf,
    /// The port; 0 is any free one.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
}

/// The arguments of the relay's process.
#[derive(Debug, Clone, Args)]
pub(crate) struct RelayArgs {
    /// The port of gRPC; 0 is any free one.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// The relay's name.
    #[arg(long)]
    pub(crate) relay_id: Option<String>,
    /// The nats-server of the relay's cluster.
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    #[arg(long, default_value = "memory:")]
    pub(crate) store: String,
    #[arg(long, value_parser = duration::parse)]
    pub(crate) sentinel: Option<Duration>,
    /// The span over which the relay ends its streams before it ends.
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    pub(crate) drain: Duration,
    /// Maximum number of queues in memory.
    #[arg(long)]
    pub(crate) max_queues: Option<usize>,
    /// Measure the polls of the relay's tasks.
    #[arg(long)]
    pub(crate) measure_polls: bool,
    #[arg(long, requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    #[arg(long, requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The rules.
    #[arg(long)]
    pub(crate) auth: Option<PathBuf>,
}

/// The arguments of the subscribers' process.
#[derive(Debug, Clone, Args)]
pub(crate) struct SubscribersArgs {
    #[arg(long)]
    pub(crate) server: Server,
    #[arg(long)]
    pub(crate) target: String,
    /// The queues; each subscriber subscribes to all of them.
    #[arg(long, required = true)]
    pub(crate) queue: Vec<String>,
    #[arg(long)]
    pub(crate) subscribers: u64,
    #[arg(long)]
    pub(crate) per_connection: u64,
    /// Record the latency of each wake-up.
    #[arg(long)]
    pub(crate) timed: bool,
}

/// The arguments of the process of the pattern and exact subscriptions.
#[derive(Debug, Clone, Args)]
pub(crate) struct SubscriptionsArgs {
    #[arg(long)]
    pub(crate) target: String,
    /// Number of queues that the relay has in memory.
    #[arg(long)]
    pub(crate) queues: u32,
    #[arg(long)]
    pub(crate) per_connection: u32,
}

/// The arguments of the process of the `*/*` subscription.
#[derive(Debug, Clone, Args)]
pub(crate) struct WildcardArgs {
    #[arg(long)]
    pub(crate) target: String,
    /// Number of queues that the relay has in memory.
    #[arg(long)]
    pub(crate) queues: u32,
}
