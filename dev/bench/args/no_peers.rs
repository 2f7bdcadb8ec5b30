//! The arguments of benchmarks without peers.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use reveille::duration;

use super::positive;

/// The queue of a benchmark.
#[derive(Debug, Clone, Args)]
pub(crate) struct QueueTarget {
    /// Measure this queue, which must be empty [default: a SQLite file in the temporary directory,
    /// whose disk decides the cost of a commit].
    #[arg(long = "queue", value_name = "QUEUE_URL")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench queue --queue 'sqlite:bench.db?queue=bench'")]
pub(crate) struct QueueArgs {
    #[command(flatten)]
    pub(crate) queue: QueueTarget,
    /// Number of messages.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    pub(crate) messages: u64,
    /// Number of messages of one put, and maximum of one get.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) batch: u16,
    /// Number of concurrent tasks that put, and later of tasks that get and delete.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) tasks: u16,
    /// Size of a message in bytes.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=32_768))]
    pub(crate) size: u16,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench listen --messages 1000")]
pub(crate) struct ListenArgs {
    #[command(flatten)]
    pub(crate) queue: QueueTarget,
    /// Number of measured messages.
    #[arg(long, default_value_t = 2_000, value_parser = positive())]
    pub(crate) messages: u64,
    /// Number of messages before them, which are not measured.
    #[arg(long, default_value_t = 100, value_parser = positive())]
    pub(crate) warm_up: u64,
    /// Pause before each message.
    #[arg(long, default_value = "2ms", value_parser = duration::parse)]
    pub(crate) pause: Duration,
    /// Number of listeners on the queue.
    #[arg(long, default_value_t = 1, value_parser = positive())]
    pub(crate) listeners: u64,
    /// Listeners without a group: a message wakes all of them instead of one.
    #[arg(long)]
    pub(crate) no_group: bool,
    /// The relay's --sentinel; 0 turns it off.
    #[arg(long, default_value = "0", value_parser = duration::parse)]
    pub(crate) sentinel: Duration,
    /// The output of Azurite, for a queue in it: counts the requests of the idle time as well.
    #[arg(long, value_name = "FILE")]
    pub(crate) azurite_log: Option<PathBuf>,
    /// Number of messages that the same listeners handle by polling; 0 skips this part.
    #[arg(long, default_value_t = 20)]
    pub(crate) polled: u64,
    /// Duration of the idle phases.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub(crate) hold: Duration,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  reveille-bench drain --messages 1000000
  reveille-bench drain --messages 100000 --handling 10ms --slow-percent 1")]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    pub(crate) queue: QueueTarget,
    /// Number of messages.
    #[arg(long, default_value_t = 1_000_000, value_parser = positive())]
    pub(crate) messages: u64,
    /// Size of a message in bytes.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=32_768))]
    pub(crate) size: u16,
    /// Handling time of a message.
    #[arg(long, default_value = "0", value_parser = duration::parse)]
    pub(crate) handling: Duration,
    /// Percentage of slow messages, spread evenly.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) slow_percent: u8,
    /// Handling time of a slow message.
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    pub(crate) slow: Duration,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench budget --queues 4000 --slots 16")]
pub(crate) struct BudgetArgs {
    /// Number of queues, each with one listener.
    #[arg(long, default_value_t = 4_000, value_parser = positive())]
    pub(crate) queues: u64,
    /// Number of slots: queues that may have a task at the same time.
    #[arg(long, default_value_t = 16, value_parser = positive())]
    pub(crate) slots: u64,
    /// Number of messages of each queue.
    #[arg(long, default_value_t = 25, value_parser = positive())]
    pub(crate) messages: u64,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench sweep --store az://bench")]
pub(crate) struct SweepArgs {
    /// The container of the expired blobs, which must be empty [default: a SQLite file in the
    /// temporary directory].
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Number of expired blobs.
    #[arg(long, default_value_t = 10_000, value_parser = positive())]
    pub(crate) blobs: u64,
    /// Number of sweepers.
    #[arg(long, default_value_t = 2, value_parser = positive())]
    pub(crate) instances: u64,
    /// Move the blobs to the dead-blob container `graves` instead of deleting them.
    #[arg(long)]
    pub(crate) moved: bool,
    /// The output of Azurite, in which requests are counted.
    #[arg(long, value_name = "FILE")]
    pub(crate) azurite_log: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench ids --tasks 8")]
pub(crate) struct IdsArgs {
    /// The store, in which the bench uses one new blob: memory:, sqlite:PATH, az://, s3://, gs://.
    #[arg(long, value_name = "URL", default_value = "memory:")]
    pub(crate) store: String,
    /// Number of ids, one by one and again in batches.
    #[arg(long, default_value_t = 20_000_000, value_parser = positive())]
    pub(crate) ids: u64,
    /// Number of concurrent tasks that share the generator.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) tasks: u16,
    /// Number of ids that one write to the store reserves.
    #[arg(long, default_value_t = 1000, value_parser = positive())]
    pub(crate) range_size: u64,
    /// Number of ids of one batched call.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: u32,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench unleash --waiters 4000")]
pub(crate) struct UnleashArgs {
    /// Number of parked nodes, each on a separate connection.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) waiters: u64,
    /// Interval at which nodes without a relay read the flag.
    #[arg(long, default_value = "2.5s", value_parser = duration::parse)]
    pub(crate) polling: Duration,
    /// How long reads of the flag are counted before the release.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub(crate) hold: Duration,
}
