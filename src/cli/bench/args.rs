//! What is typed after `reveille bench`.

mod child;

use std::{fmt, path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use reveille::duration;

pub(super) use self::child::{CrowdArgs, FleetArgs, ParkedArgs, RelayArgs, WildcardArgs};

/// Measure what a relay costs and how fast it wakes, beside nats-server and Redis if wanted, a
/// queue, and ids.
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
    /// One notification for each of many queues at once, to subscribers of all of them.
    Each(EachArgs),
    /// Subscribers that hear nothing: the memory that they cost.
    Idle(IdleArgs),
    /// Many queues, patterns and subscriptions: whether one notification still goes quickly.
    Scale(ScaleArgs),
    /// A work queue without a relay: messages put in batches, then got, handled and deleted.
    Queue(QueueArgs),
    /// A listener on a queue: how long a message takes to its handler, pushed and polled.
    Listen(ListenArgs),
    /// Very many messages through one listener: how fast, and that its memory does not grow.
    Drain(DrainArgs),
    /// Very many queues whose listeners share a budget of tasks: what a message costs.
    Budget(BudgetArgs),
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
    /// A redis-server for one run.
    #[command(hide = true)]
    Redis,
    /// The subscribers of one run.
    #[command(hide = true)]
    Fleet(FleetArgs),
    /// The parked nodes of one run.
    #[command(hide = true)]
    Parked(ParkedArgs),
    /// The pattern and exact subscriptions of `scale`.
    #[command(hide = true)]
    Crowd(CrowdArgs),
    /// The `*/*` subscription of `scale`.
    #[command(hide = true)]
    Wildcard(WildcardArgs),
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
    /// Run the same work through another server, in turn with the relay; may be repeated.
    #[arg(long, value_name = "SERVER")]
    pub(super) peer: Vec<Peer>,
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
#[command(after_help = "Example:\n  reveille bench each --peer nats --peer redis")]
pub(super) struct EachArgs {
    /// How many queues; each request holds one event for each of them.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) queues: u16,
    /// How many subscribers, each on its own connection and subscribed to all queues.
    #[arg(long, default_value_t = 100, value_parser = positive())]
    pub(super) subscribers: u64,
    /// How many events in each of the two modes, rounded up to whole requests.
    #[arg(long, default_value_t = 100_000, value_parser = positive())]
    pub(super) events: u64,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  reveille bench scale --queues 1000000 --patterns 10000 --subscriptions 100000 --runs 1")]
pub(super) struct ScaleArgs {
    /// How many queues the relay knows.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=9_000_000))]
    pub(super) queues: u32,
    /// How many subscriptions to a pattern of their own.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) patterns: u32,
    /// How many subscriptions to one of the queues.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) subscriptions: u32,
    /// How many subscriptions share a connection.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) per_connection: u32,
    /// How long each phase lasts that has no end of its own.
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    pub(super) hold: Duration,
    /// How often the relay has each queue checked unasked; 0 turns that off [default: the relay's
    /// own interval].
    #[arg(long, value_parser = duration::parse)]
    pub(super) sentinel: Option<Duration>,
    /// How often the measured queue is notified; timers round it up to the next millisecond.
    #[arg(long, default_value = "2ms", value_parser = duration::parse)]
    pub(super) pause: Duration,
    #[command(flatten)]
    pub(super) runs: Runs,
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
    /// They share no wake-ups: a message wakes all of them instead of one.
    #[arg(long)]
    pub(super) no_group: bool,
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
#[command(after_help = "\
Example:
  reveille bench drain --messages 1000000
  reveille bench drain --messages 100000 --handling 10ms --slow-percent 1")]
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
    /// How long a message is handled.
    #[arg(long, default_value = "0", value_parser = duration::parse)]
    pub(super) handling: Duration,
    /// How many messages of a hundred are slow, spread evenly.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(super) slow_percent: u8,
    /// How long a slow message is handled.
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    pub(super) slow: Duration,
    #[command(flatten)]
    pub(super) runs: Runs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench budget --queues 4000 --slots 16")]
pub(super) struct BudgetArgs {
    /// How many queues, each with a listener of its own.
    #[arg(long, default_value_t = 4_000, value_parser = positive())]
    pub(super) queues: u64,
    /// How many of them may have a task at one time.
    #[arg(long, default_value_t = 16, value_parser = positive())]
    pub(super) slots: u64,
    /// How many messages of each queue.
    #[arg(long, default_value_t = 25, value_parser = positive())]
    pub(super) messages: u64,
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

/// Another server that may do the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    /// nats-server, found on the PATH, with its official client.
    Nats,
    /// nats-server with clients that do the least possible: they parse nothing and count frames.
    #[value(name = "nats-raw")]
    RawNats,
    /// redis-server, found on the PATH, by PUBLISH and SUBSCRIBE; its clients count frames too.
    Redis,
}

/// The server that does the work of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Side {
    Reveille,
    Nats,
    #[value(name = "nats-raw")]
    RawNats,
    Redis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Table,
    Json,
}

impl Common {
    /// Returns the servers that do the work, the relay first, each once.
    pub(super) fn sides(&self) -> Vec<Side> {
        let mut sides = vec![Side::Reveille];
        for peer in &self.peer {
            let side = Side::from(*peer);
            if !sides.contains(&side) {
                sides.push(side);
            }
        }
        sides
    }
}

impl From<Peer> for Side {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Nats => Self::Nats,
            Peer::RawNats => Self::RawNats,
            Peer::Redis => Self::Redis,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reveille => "reveille",
            Self::Nats => "nats",
            Self::RawNats => "nats-raw",
            Self::Redis => "redis",
        })
    }
}

fn positive() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn each(args: &[&str]) -> EachArgs {
        let typed = ["bench", "each"].iter().chain(args);
        let typed = Typed::try_parse_from(typed).expect("parsed");
        match typed.bench.work {
            Work::Each(args) => args,
            work => panic!("not each: {work:?}"),
        }
    }

    #[test]
    fn peers_may_be_repeated_and_each_server_does_the_work_once() {
        let args = each(&["--peer", "redis", "--peer", "nats-raw", "--peer", "redis"]);
        let sides = [Side::Reveille, Side::Redis, Side::RawNats];
        assert_eq!(args.common.sides(), sides);
        assert_eq!(each(&[]).common.sides(), [Side::Reveille]);
    }

    #[test]
    fn a_side_is_typed_as_it_is_printed() {
        for side in Side::value_variants() {
            let named = side.to_possible_value().expect("none is hidden");
            assert_eq!(named.get_name(), side.to_string());
        }
    }

    #[test]
    fn a_request_holds_at_most_1024_queues() {
        let refused = |value: &str| {
            let typed = ["bench", "each", "--queues", value];
            Typed::try_parse_from(typed).is_err()
        };
        assert!(refused("0") && refused("1025") && !refused("1024"));
    }
}
