//! What is typed after `reveille bench`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use reveille::duration;

/// Measure what a relay costs and how fast it wakes, beside a nats-server if wanted, a queue, and ids.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  reveille bench burst --runs 5 --peer nats")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(super) work: Work,
}

#[derive(Debug, Subcommand)]
pub(super) enum Work {
    /// Many notifications at once, to subscribers that all must be told of every one.
    Burst(BurstArgs),
    /// One notification at a time to one subscriber: how long until it arrives.
    Wake(WakeArgs),
    /// One notification to a whole fleet: how long until all of it is awake.
    WakeAll(WakeAllArgs),
    /// Subscribers that hear nothing: the memory that they cost.
    Idle(IdleArgs),
    /// A work queue without a relay: messages put in batches, then got, handled and deleted.
    Queue(QueueArgs),
    /// A listener on a queue: how long a message takes to its handler, pushed and polled.
    Listen(ListenArgs),
    /// Very many messages through one listener: how fast, and that its memory does not grow.
    Drain(DrainArgs),
    /// Unique ids from one generator: how fast they come, and how often it writes.
    Ids(IdsArgs),
    /// Sweepers that share a container of expired blobs: how fast, and by how many requests.
    Sweep(SweepArgs),
    /// A parked fleet: how long until the last node is released, told and polled.
    Unleash(UnleashArgs),
    /// A relay for one run.
    #[command(hide = true)]
    Relay(RelayArgs),
    /// A nats-server for one run.
    #[command(hide = true)]
    Nats,
    /// The subscribers of one run.
    #[command(hide = true)]
    Fleet(FleetArgs),
    /// The parked nodes of one run.
    #[command(hide = true)]
    Parked(ParkedArgs),
}

/// How often a work is done, and how it is shown.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Runs {
    /// How often to run it; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: u32,
    /// How to print the result.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    pub(super) output: Output,
}

/// What works that may have a peer have in common.
#[derive(Debug, Clone, Args)]
pub(super) struct Common {
    /// Measure this relay instead of one of the bench's own; its processor time and memory are not
    /// known then. REVEILLE_RELAY is not read: a bench goes nowhere without being told.
    #[arg(long, value_name = "URL")]
    pub(super) relay: Option<String>,
    /// Run the same work through another server, in turn with the relay.
    #[arg(long, value_name = "SERVER")]
    pub(super) peer: Option<Peer>,
    #[command(flatten)]
    pub(super) runs: Runs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench burst --peer nats")]
pub(super) struct BurstArgs {
    /// How many notifications.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    pub(super) notifications: u64,
    /// How many subscribers, each on its own connection.
    #[arg(long, default_value_t = 100, value_parser = positive())]
    pub(super) subscribers: u64,
    /// Notifications of one request.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) batch: u16,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench wake --notifications 1000")]
pub(super) struct WakeArgs {
    /// How many notifications are measured.
    #[arg(long, default_value_t = 5_000, value_parser = positive())]
    pub(super) notifications: u64,
    /// How many come before them and are not measured.
    #[arg(long, default_value_t = 500, value_parser = positive())]
    pub(super) warm_up: u64,
    /// The pause before each; timers round it up to the next millisecond.
    #[arg(long, default_value = "500us", value_parser = duration::parse)]
    pub(super) pause: Duration,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench wake-all --subscribers 1000 --rounds 20")]
pub(super) struct WakeAllArgs {
    /// How many subscribers, each on its own connection.
    #[arg(long, default_value_t = 4_000, value_parser = positive())]
    pub(super) subscribers: u64,
    /// How often all of them are woken.
    #[arg(long, default_value_t = 10, value_parser = positive())]
    pub(super) rounds: u64,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench idle --subscribers 100000 --per-connection 100")]
pub(super) struct IdleArgs {
    /// How many subscribers.
    #[arg(long, default_value_t = 8_000, value_parser = positive())]
    pub(super) subscribers: u64,
    /// How many of them share a connection; a client has 256 streams on one at most.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(super) per_connection: u64,
    /// How long they are held.
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    pub(super) hold: Duration,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench queue --queue 'sqlite:bench.db?queue=bench'")]
pub(super) struct QueueArgs {
    /// Measure this queue, which must be empty [default: a file in the temporary directory, where a
    /// commit costs what it costs there].
    #[arg(long, value_name = "QUEUE_URL")]
    pub(super) queue: Option<String>,
    /// How many messages.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    pub(super) messages: u64,
    /// Messages of one put, and of one get at most.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) batch: u16,
    /// How many tasks put, and how many get and delete, at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) tasks: u16,
    /// Bytes of a message.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=32_768))]
    pub(super) size: u16,
    #[command(flatten)]
    pub(super) runs: Runs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench listen --messages 1000")]
pub(super) struct ListenArgs {
    /// Measure with this queue, which must be empty [default: a SQLite file in the temporary
    /// directory, where a commit costs what it costs there].
    #[arg(long, value_name = "QUEUE_URL")]
    pub(super) queue: Option<String>,
    /// How many messages are measured.
    #[arg(long, default_value_t = 2_000, value_parser = positive())]
    pub(super) messages: u64,
    /// How many come before them and are not measured.
    #[arg(long, default_value_t = 100, value_parser = positive())]
    pub(super) warm_up: u64,
    /// The pause before each.
    #[arg(long, default_value = "2ms", value_parser = duration::parse)]
    pub(super) pause: Duration,
    /// How many listeners there are on the queue.
    #[arg(long, default_value_t = 1, value_parser = positive())]
    pub(super) listeners: u64,
    /// They are members of one group: a message wakes one of them instead of all.
    #[arg(long)]
    pub(super) grouped: bool,
    /// How often the relay has one of them look unasked; 0 turns that off.
    #[arg(long, default_value = "0", value_parser = duration::parse)]
    pub(super) sentinel: Duration,
    /// What Azurite printed so far, for a queue of its: the requests of the idle time are counted
    /// there as well.
    #[arg(long, value_name = "FILE")]
    pub(super) azurite_log: Option<PathBuf>,
    /// How many messages the same listeners handle by polling; 0 leaves that out.
    #[arg(long, default_value_t = 20)]
    pub(super) polled: u64,
    /// How long they are idle, each way.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub(super) hold: Duration,
    #[command(flatten)]
    pub(super) runs: Runs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench drain --messages 1000000")]
pub(super) struct DrainArgs {
    /// Measure with this queue, which must be empty [default: a SQLite file in the temporary
    /// directory, where a commit costs what it costs there].
    #[arg(long, value_name = "QUEUE_URL")]
    pub(super) queue: Option<String>,
    /// How many messages.
    #[arg(long, default_value_t = 1_000_000, value_parser = positive())]
    pub(super) messages: u64,
    /// Bytes of a message.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=32_768))]
    pub(super) size: u16,
    #[command(flatten)]
    pub(super) runs: Runs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench sweep --store az://bench")]
pub(super) struct SweepArgs {
    /// The store whose blobs expire: a container of its own, which must be empty [default: a SQLite
    /// file in the temporary directory].
    #[arg(long, value_name = "URL")]
    pub(super) store: Option<String>,
    /// How many blobs have expired.
    #[arg(long, default_value_t = 10_000, value_parser = positive())]
    pub(super) blobs: u64,
    /// How many instances share them.
    #[arg(long, default_value_t = 2, value_parser = positive())]
    pub(super) instances: u64,
    /// Each names a dead-blob container `graves`, and is moved there instead of being deleted.
    #[arg(long)]
    pub(super) moved: bool,
    /// Azurite's own output, whose requests are counted.
    #[arg(long, value_name = "FILE")]
    pub(super) azurite_log: Option<PathBuf>,
    #[command(flatten)]
    pub(super) runs: Runs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench ids --tasks 8")]
pub(super) struct IdsArgs {
    /// Measure on this store, in a blob of the bench's own: memory:, sqlite:PATH, az://, s3://, gs://.
    #[arg(long, value_name = "URL", default_value = "memory:")]
    pub(super) store: String,
    /// How many ids, each way.
    #[arg(long, default_value_t = 20_000_000, value_parser = positive())]
    pub(super) ids: u64,
    /// How many tasks take them from the one generator at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) tasks: u16,
    /// Ids that are taken from the store at once.
    #[arg(long, default_value_t = 1000, value_parser = positive())]
    pub(super) range_size: u64,
    /// Ids of one call, where they are taken many at a time.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) batch: u32,
    #[command(flatten)]
    pub(super) runs: Runs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench unleash --waiters 4000")]
pub(super) struct UnleashArgs {
    /// How many nodes are parked, each on its own connection.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) waiters: u64,
    /// How often those without a relay read the flag.
    #[arg(long, default_value = "2.5s", value_parser = duration::parse)]
    pub(super) polling: Duration,
    /// How long their readings are counted before they are released.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub(super) hold: Duration,
    #[command(flatten)]
    pub(super) runs: Runs,
}

/// What the parent tells its parked nodes' process.
#[derive(Debug, Clone, Args)]
pub(super) struct ParkedArgs {
    /// The relay that tells them.
    #[arg(long)]
    pub(super) target: Option<String>,
    /// The store that they poll.
    #[arg(long)]
    pub(super) store: Option<String>,
    #[arg(long, default_value = "2.5s", value_parser = duration::parse)]
    pub(super) polling: Duration,
    #[arg(long)]
    pub(super) waiters: u64,
}

/// What the parent tells its relay's process.
#[derive(Debug, Clone, Args)]
pub(super) struct RelayArgs {
    #[arg(long, default_value = "memory:")]
    pub(super) store: String,
    #[arg(long, value_parser = duration::parse)]
    pub(super) sentinel: Option<Duration>,
}

/// What the parent tells its subscribers' process.
#[derive(Debug, Clone, Args)]
pub(super) struct FleetArgs {
    #[arg(long)]
    pub(super) side: Side,
    #[arg(long)]
    pub(super) target: String,
    #[arg(long)]
    pub(super) queue: String,
    #[arg(long)]
    pub(super) subscribers: u64,
    #[arg(long)]
    pub(super) per_connection: u64,
}

/// Who else may do the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    /// nats-server, found on the PATH, with its official client.
    Nats,
    /// nats-server with clients that do the least possible: they parse nothing and count frames.
    #[value(name = "nats-raw")]
    RawNats,
}

/// Who does the work of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Side {
    Reveille,
    Nats,
    #[value(name = "nats-raw")]
    RawNats,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Table,
    Json,
}

fn positive() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..)
}
