//! The arguments of the bench's child processes (hidden verbs).

use std::time::Duration;

use clap::Args;
use reveille::duration;

use super::Server;

/// The arguments of the parked nodes' process.
#[derive(Debug, Clone, Args)]
pub(in crate::cli::bench) struct ParkedArgs {
    /// The relay that releases the nodes.
    #[arg(long)]
    pub(in crate::cli::bench) target: Option<String>,
    /// The store that the nodes poll.
    #[arg(long)]
    pub(in crate::cli::bench) store: Option<String>,
    #[arg(long, default_value = "2.5s", value_parser = duration::parse)]
    pub(in crate::cli::bench) polling: Duration,
    #[arg(long)]
    pub(in crate::cli::bench) waiters: u64,
}

/// The arguments of the relay's process.
#[derive(Debug, Clone, Args)]
pub(in crate::cli::bench) struct RelayArgs {
    #[arg(long, default_value = "memory:")]
    pub(in crate::cli::bench) store: String,
    #[arg(long, value_parser = duration::parse)]
    pub(in crate::cli::bench) sentinel: Option<Duration>,
    /// Maximum number of queues in memory.
    #[arg(long)]
    pub(in crate::cli::bench) max_queues: Option<usize>,
    /// Measure the polls of the relay's tasks.
    #[arg(long)]
    pub(in crate::cli::bench) measure_polls: bool,
}

/// The arguments of the subscribers' process.
#[derive(Debug, Clone, Args)]
pub(in crate::cli::bench) struct SubscribersArgs {
    #[arg(long)]
    pub(in crate::cli::bench) server: Server,
    #[arg(long)]
    pub(in crate::cli::bench) target: String,
    /// The queues; each subscriber subscribes to all of them.
    #[arg(long, required = true)]
    pub(in crate::cli::bench) queue: Vec<String>,
    #[arg(long)]
    pub(in crate::cli::bench) subscribers: u64,
    #[arg(long)]
    pub(in crate::cli::bench) per_connection: u64,
    /// Record the latency of each wake-up.
    #[arg(long)]
    pub(in crate::cli::bench) timed: bool,
}

/// The arguments of the process of the pattern and exact subscriptions.
#[derive(Debug, Clone, Args)]
pub(in crate::cli::bench) struct SubscriptionsArgs {
    #[arg(long)]
    pub(in crate::cli::bench) target: String,
    /// Number of queues that the relay has in memory.
    #[arg(long)]
    pub(in crate::cli::bench) queues: u32,
    #[arg(long)]
    pub(in crate::cli::bench) per_connection: u32,
}

/// The arguments of the process of the `*/*` subscription.
#[derive(Debug, Clone, Args)]
pub(in crate::cli::bench) struct WildcardArgs {
    #[arg(long)]
    pub(in crate::cli::bench) target: String,
    /// Number of queues that the relay has in memory.
    #[arg(long)]
    pub(in crate::cli::bench) queues: u32,
}
