//! What the parent tells the processes of its own: the arguments of the hidden verbs.

use std::time::Duration;

use clap::Args;
use reveille::duration;

use super::Side;

/// What the parent tells its parked nodes' process.
#[derive(Debug, Clone, Args)]
pub(in crate::cli::bench) struct ParkedArgs {
    /// The relay that tells them.
    #[arg(long)]
    pub(in crate::cli::bench) target: Option<String>,
    /// The store that they poll.
    #[arg(long)]
    pub(in crate::cli::bench) store: Option<String>,
    #[arg(long, default_value = "2.5s", value_parser = duration::parse)]
    pub(in crate::cli::bench) polling: Duration,
    #[arg(long)]
    pub(in crate::cli::bench) waiters: u64,
}

/// What the parent tells its relay's process.
#[derive(Debug, Clone, Args)]
pub(in crate::cli::bench) struct RelayArgs {
    #[arg(long, default_value = "memory:")]
    pub(in crate::cli::bench) store: String,
    #[arg(long, value_parser = duration::parse)]
    pub(in crate::cli::bench) sentinel: Option<Duration>,
    /// Queues that it remembers at most.
    #[arg(long)]
    pub(in crate::cli::bench) max_queues: Option<usize>,
    /// Measures its tasks' polls.
    #[arg(long)]
    pub(in crate::cli::bench) measure_polls: bool,
}

/// What the parent tells its subscribers' process.
#[derive(Debug, Clone, Args)]
pub(in crate::cli::bench) struct FleetArgs {
    #[arg(long)]
    pub(in crate::cli::bench) side: Side,
    #[arg(long)]
    pub(in crate::cli::bench) target: String,
    /// Each subscriber subscribes to all of them.
    #[arg(long, required = true)]
    pub(in crate::cli::bench) queue: Vec<String>,
    #[arg(long)]
    pub(in crate::cli::bench) subscribers: u64,
    #[arg(long)]
    pub(in crate::cli::bench) per_connection: u64,
    /// Record how long each wake-up took.
    #[arg(long)]
    pub(in crate::cli::bench) timed: bool,
}

/// What the parent tells the process of the pattern and exact subscriptions.
#[derive(Debug, Clone, Args)]
pub(in crate::cli::bench) struct CrowdArgs {
    #[arg(long)]
    pub(in crate::cli::bench) target: String,
    /// The queues that the relay knows.
    #[arg(long)]
    pub(in crate::cli::bench) queues: u32,
    #[arg(long)]
    pub(in crate::cli::bench) per_connection: u32,
}

/// What the parent tells the process of the `*/*` subscription.
#[derive(Debug, Clone, Args)]
pub(in crate::cli::bench) struct WildcardArgs {
    #[arg(long)]
    pub(in crate::cli::bench) target: String,
    /// The queues that the relay knows.
    #[arg(long)]
    pub(in crate::cli::bench) queues: u32,
}
