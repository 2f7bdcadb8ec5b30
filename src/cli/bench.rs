//! `reveille bench burst|wake|wake-all|idle|queue|listen|drain|ids|sweep|unleash`: what a relay
//! costs and how fast it wakes, what a queue takes, what becomes of both in a listener, how fast ids
//! come, what sweeping costs, and how soon a parked fleet is released.
//!
//! The relay, its subscribers and the publisher are three processes, so that each is charged for
//! its own work only. With `--peer nats` the same work goes through a nats-server as well, run by
//! run in turn. Every figure is of one run; medians of the runs come last. Knows the library's
//! public API only.

mod broker;
mod directory;
mod drain;
mod fleet;
mod helper;
mod ids;
mod listen;
mod nats;
mod progress;
mod queue;
mod raw_nats;
mod report;
mod sender;
mod subscribers;
mod sweep;
mod unleash;
mod usage;
mod work;

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use reveille::duration;

use self::{
    broker::Broker,
    progress::Progress,
    report::{Figures, Report},
};

/// Measure what a relay costs and how fast it wakes, beside a nats-server if wanted, a queue, and ids.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  reveille bench burst --runs 5 --peer nats")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    work: Work,
}

#[derive(Debug, Subcommand)]
enum Work {
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

/// What all works have in common.
#[derive(Debug, Clone, Args)]
struct Common {
    /// Measure this relay instead of one of the bench's own; its processor time and memory are not
    /// known then. REVEILLE_RELAY is not read: a bench goes nowhere without being told.
    #[arg(long, value_name = "URL")]
    relay: Option<String>,
    /// Run the same work through another server, in turn with the relay.
    #[arg(long, value_name = "SERVER")]
    peer: Option<Peer>,
    /// How often to run it; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How to print the result.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench burst --peer nats")]
struct BurstArgs {
    /// How many notifications.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    notifications: u64,
    /// How many subscribers, each on its own connection.
    #[arg(long, default_value_t = 100, value_parser = positive())]
    subscribers: u64,
    /// Notifications of one request.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench wake --notifications 1000")]
struct WakeArgs {
    /// How many notifications are measured.
    #[arg(long, default_value_t = 5_000, value_parser = positive())]
    notifications: u64,
    /// How many come before them and are not measured.
    #[arg(long, default_value_t = 500, value_parser = positive())]
    warm_up: u64,
    /// The pause before each; timers round it up to the next millisecond.
    #[arg(long, default_value = "500us", value_parser = duration::parse)]
    pause: Duration,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench wake-all --subscribers 1000 --rounds 20")]
struct WakeAllArgs {
    /// How many subscribers, each on its own connection.
    #[arg(long, default_value_t = 4_000, value_parser = positive())]
    subscribers: u64,
    /// How often all of them are woken.
    #[arg(long, default_value_t = 10, value_parser = positive())]
    rounds: u64,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench idle --subscribers 100000 --per-connection 100")]
struct IdleArgs {
    /// How many subscribers.
    #[arg(long, default_value_t = 8_000, value_parser = positive())]
    subscribers: u64,
    /// How many of them share a connection.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    per_connection: u64,
    /// How long they are held.
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    hold: Duration,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench queue --queue 'sqlite:bench.db?queue=bench'")]
struct QueueArgs {
    /// Measure this queue, which must be empty [default: a file in the temporary directory, where a
    /// commit costs what it costs there].
    #[arg(long, value_name = "QUEUE_URL")]
    queue: Option<String>,
    /// How many messages.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    messages: u64,
    /// Messages of one put, and of one get at most.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// How many tasks put, and how many get and delete, at the same time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    tasks: u16,
    /// Bytes of a message.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=32_768))]
    size: u16,
    /// How often to run it; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How to print the result.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench listen --messages 1000")]
struct ListenArgs {
    /// Measure with this queue, which must be empty [default: a SQLite file in the temporary
    /// directory, where a commit costs what it costs there].
    #[arg(long, value_name = "QUEUE_URL")]
    queue: Option<String>,
    /// How many messages are measured.
    #[arg(long, default_value_t = 2_000, value_parser = positive())]
    messages: u64,
    /// How many come before them and are not measured.
    #[arg(long, default_value_t = 100, value_parser = positive())]
    warm_up: u64,
    /// The pause before each.
    #[arg(long, default_value = "2ms", value_parser = duration::parse)]
    pause: Duration,
    /// How many listeners there are on the queue.
    #[arg(long, default_value_t = 1, value_parser = positive())]
    listeners: u64,
    /// They are members of one group: a message wakes one of them instead of all.
    #[arg(long)]
    grouped: bool,
    /// How often the relay has one of them look unasked; 0 turns that off.
    #[arg(long, default_value = "0", value_parser = duration::parse)]
    sentinel: Duration,
    /// What Azurite printed so far, for a queue of its: the requests of the idle time are counted
    /// there as well.
    #[arg(long, value_name = "FILE")]
    azurite_log: Option<PathBuf>,
    /// How many messages the same listeners handle by polling; 0 leaves that out.
    #[arg(long, default_value_t = 20)]
    polled: u64,
    /// How long they are idle, each way.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    hold: Duration,
    /// How often to run it; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How to print the result.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench drain --messages 1000000")]
struct DrainArgs {
    /// Measure with this queue, which must be empty [default: a SQLite file in the temporary
    /// directory, where a commit costs what it costs there].
    #[arg(long, value_name = "QUEUE_URL")]
    queue: Option<String>,
    /// How many messages.
    #[arg(long, default_value_t = 1_000_000, value_parser = positive())]
    messages: u64,
    /// Bytes of a message.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=32_768))]
    size: u16,
    /// How often to run it; medians are reported.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How to print the result.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench sweep --store az://bench")]
struct SweepArgs {
    /// The store whose blobs expire: a container of its own, which must be empty [default: a SQLite
    /// file in the temporary directory].
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// How many blobs have expired.
    #[arg(long, default_value_t = 10_000, value_parser = positive())]
    blobs: u64,
    /// How many instances share them.
    #[arg(long, default_value_t = 2, value_parser = positive())]
    instances: u64,
    /// Each names a dead-blob container `graves`, and is moved there instead of being deleted.
    #[arg(long)]
    moved: bool,
    /// Azurite's own output, whose requests are counted.
    #[arg(long, value_name = "FILE")]
    azurite_log: Option<PathBuf>,
    /// How often to run it; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How to print the result.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench ids --tasks 8")]
struct IdsArgs {
    /// Measure on this store, in a blob of the bench's own: memory:, sqlite:PATH, az://, s3://, gs://.
    #[arg(long, value_name = "URL", default_value = "memory:")]
    store: String,
    /// How many ids, each way.
    #[arg(long, default_value_t = 20_000_000, value_parser = positive())]
    ids: u64,
    /// How many tasks take them from the one generator at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    tasks: u16,
    /// Ids that are taken from the store at once.
    #[arg(long, default_value_t = 1000, value_parser = positive())]
    range_size: u64,
    /// Ids of one call, where they are taken many at a time.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// How often to run it; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How to print the result.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille bench unleash --waiters 4000")]
struct UnleashArgs {
    /// How many nodes are parked, each on its own connection.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    waiters: u64,
    /// How often those without a relay read the flag.
    #[arg(long, default_value = "2.5s", value_parser = duration::parse)]
    polling: Duration,
    /// How long their readings are counted before they are released.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    hold: Duration,
    /// How often to run it; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How to print the result.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// What the parent tells its parked nodes' process.
#[derive(Debug, Clone, Args)]
struct ParkedArgs {
    /// The relay that tells them.
    #[arg(long)]
    target: Option<String>,
    /// The store that they poll.
    #[arg(long)]
    store: Option<String>,
    #[arg(long, default_value = "2.5s", value_parser = duration::parse)]
    polling: Duration,
    #[arg(long)]
    waiters: u64,
}

/// What the parent tells its relay's process.
#[derive(Debug, Clone, Args)]
struct RelayArgs {
    #[arg(long, default_value = "memory:")]
    store: String,
    #[arg(long, value_parser = duration::parse)]
    sentinel: Option<Duration>,
}

/// What the parent tells its subscribers' process.
#[derive(Debug, Clone, Args)]
struct FleetArgs {
    #[arg(long)]
    side: Side,
    #[arg(long)]
    target: String,
    #[arg(long)]
    queue: String,
    #[arg(long)]
    subscribers: u64,
    #[arg(long)]
    per_connection: u64,
}

/// Who else may do the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// nats-server, found on the PATH, with its official client.
    Nats,
    /// nats-server with clients that do the least possible: they parse nothing and count frames.
    #[value(name = "nats-raw")]
    RawNats,
}

/// Who does the work of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Side {
    Reveille,
    Nats,
    #[value(name = "nats-raw")]
    RawNats,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Runs the verb.
///
/// # Errors
/// A work that could not be done, or that came to a wrong sum.
pub(crate) async fn run(args: BenchArgs) -> Result<()> {
    match &args.work {
        // On one of the runtime's own threads, as below.
        Work::Queue(_)
        | Work::Listen(_)
        | Work::Drain(_)
        | Work::Ids(_)
        | Work::Sweep(_)
        | Work::Unleash(_) => {
            tokio::spawn(async move { measure_queue(&args.work).await }).await??;
        }
        Work::Relay(args) => broker::serve_relay(args).await?,
        Work::Nats => broker::serve_nats().await?,
        Work::Fleet(args) => subscribers::run(args).await?,
        Work::Parked(args) => unleash::run(args).await?,
        // On one of the runtime's own threads, where publishers usually are: from another thread,
        // each notification would have to wake one first.
        Work::Burst(_) | Work::Wake(_) | Work::WakeAll(_) | Work::Idle(_) => {
            tokio::spawn(async move { measure(&args.work).await }).await??;
        }
    }
    Ok(())
}

/// Does a work that has no peer as often as asked for, and prints what it came to.
async fn measure_queue(work: &Work) -> Result<()> {
    let (name, runs, output) = match work {
        Work::Queue(args) => ("queue", args.runs, args.output),
        Work::Listen(args) => ("listen", args.runs, args.output),
        Work::Drain(args) => ("drain", args.runs, args.output),
        Work::Ids(args) => ("ids", args.runs, args.output),
        Work::Sweep(args) => ("sweep", args.runs, args.output),
        Work::Unleash(args) => ("unleash", args.runs, args.output),
        _ => bail!("this work may have a peer"),
    };
    let progress = Progress::new(name, runs as usize);
    let mut report = Report::new(name);
    for run in 1..=runs {
        progress.begin(&format!("run {run} of {runs}"));
        let figures = match work {
            Work::Queue(args) => queue::once(args, &progress).await?,
            Work::Listen(args) => listen::once(args, &progress).await?,
            Work::Drain(args) => drain::once(args, &progress).await?,
            Work::Ids(args) => ids::once(args, &progress).await?,
            Work::Sweep(args) => sweep::once(args, &progress).await?,
            Work::Unleash(args) => unleash::once(args, &progress).await?,
            _ => bail!("this work may have a peer"),
        };
        report.add(Side::Reveille, figures);
        progress.done();
    }
    progress.finish();
    report.print(output)
}

/// Does one work as often as asked for, each side in turn, and prints what it came to.
async fn measure(work: &Work) -> Result<()> {
    let (name, common) = work.common()?;
    ensure!(
        common.relay.is_none() || common.peer.is_none(),
        "--peer measures servers of this machine: leave --relay out"
    );
    let sides: &[Side] = match common.peer {
        None => &[Side::Reveille],
        Some(Peer::Nats) => &[Side::Reveille, Side::Nats],
        Some(Peer::RawNats) => &[Side::Reveille, Side::RawNats],
    };
    let progress = Progress::new(name, common.runs as usize * sides.len());
    let mut report = Report::new(name);
    for run in 1..=common.runs {
        for side in sides {
            progress.begin(&format!("run {run} of {}, {side}", common.runs));
            let broker = Broker::start(*side, common.relay.as_deref()).await?;
            report.add(*side, work.run(&broker, &progress).await?);
            broker.stop().await;
            progress.done();
        }
    }
    progress.finish();
    report.print(common.output)
}

impl Work {
    /// Returns its name and what it has in common with the others.
    fn common(&self) -> Result<(&'static str, &Common)> {
        Ok(match self {
            Self::Burst(args) => ("burst", &args.common),
            Self::Wake(args) => ("wake", &args.common),
            Self::WakeAll(args) => ("wake-all", &args.common),
            Self::Idle(args) => ("idle", &args.common),
            _ => {
                bail!("this is no work by itself")
            }
        })
    }

    async fn run(&self, broker: &Broker, progress: &Progress) -> Result<Figures> {
        match self {
            Self::Burst(args) => work::burst(args, broker, progress).await,
            Self::Wake(args) => work::wake(args, broker, progress).await,
            Self::WakeAll(args) => work::wake_all(args, broker, progress).await,
            Self::Idle(args) => work::idle(args, broker, progress).await,
            _ => {
                bail!("this is no work by itself")
            }
        }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Reveille => "reveille",
            Self::Nats => "nats",
            Self::RawNats => "nats-raw",
        })
    }
}

fn positive() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..)
}
