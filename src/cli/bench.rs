//! `reveille bench BENCHMARK`: measures the cost and latency of a relay (also with very many queues
//! and subscriptions), of queues, listeners, ids, sweeping, and the release of a parked fleet.
//!
//! The relay, its subscribers and the publisher are three processes, so that processor time is
//! measured for each. With `--peer` the same benchmark runs on a nats-server or a redis-server as
//! well, in alternating runs. The report has the figures of each run, then the medians. The bench
//! uses the library's public API only. The exception is one page of a list, for which it uses the
//! protocol.

mod args;
mod broker;
mod budget;
mod child;
mod delivery_counter;
mod directory;
mod drain;
mod each;
mod ids;
mod listen;
mod metrics;
mod nats;
mod peers;
mod progress;
mod queue;
mod raw;
mod raw_nats;
mod raw_redis;
mod report;
mod scale;
mod sender;
mod single_queue;
mod subscriber_process;
mod subscribers;
mod sweep;
mod unleash;
mod usage;

use anyhow::{Result, bail, ensure};

pub(crate) use self::args::BenchArgs;
use self::{
    args::{
        Benchmark, BudgetArgs, BurstArgs, Common, DrainArgs, EachArgs, IdleArgs, IdsArgs,
        ListenArgs, Output, ParkedArgs, QueueArgs, RelayArgs, Runs, ScaleArgs, Server,
        SubscribersArgs, SubscriptionsArgs, SweepArgs, UnleashArgs, WakeAllArgs, WakeArgs,
        WildcardArgs,
    },
    broker::Broker,
    progress::Progress,
    report::{Figures, Report},
};

/// Runs the verb.
///
/// # Errors
/// The benchmark failed, or its sums are wrong.
pub(crate) async fn run(args: BenchArgs) -> Result<()> {
    match &args.benchmark {
        // On a worker thread of the runtime, as below.
        Benchmark::Queue(_)
        | Benchmark::Listen(_)
        | Benchmark::Drain(_)
        | Benchmark::Budget(_)
        | Benchmark::Ids(_)
        | Benchmark::Scale(_)
        | Benchmark::Sweep(_)
        | Benchmark::Unleash(_) => {
            tokio::spawn(async move { measure_alone(&args.benchmark).await }).await??;
        }
        Benchmark::Relay(args) => broker::serve_relay(args).await?,
        Benchmark::Nats => peers::serve_nats().await?,
        Benchmark::Redis => peers::serve_redis().await?,
        Benchmark::Subscribers(args) => subscribers::run(args).await?,
        Benchmark::Parked(args) => unleash::run(args).await?,
        Benchmark::Subscriptions(args) => scale::subscriptions::run(args).await?,
        Benchmark::Wildcard(args) => scale::wildcard::run(args).await?,
        // On a worker thread of the runtime, as publishers usually are: from another thread, each
        // notification would first have to wake a worker thread.
        Benchmark::Burst(_)
        | Benchmark::Wake(_)
        | Benchmark::WakeAll(_)
        | Benchmark::Each(_)
        | Benchmark::Idle(_) => {
            tokio::spawn(async move { measure(&args.benchmark).await }).await??;
        }
    }
    Ok(())
}

/// Runs a benchmark without peers `--runs` times, and prints the report.
async fn measure_alone(benchmark: &Benchmark) -> Result<()> {
    let (name, Runs { runs, output }) = match benchmark {
        Benchmark::Queue(args) => ("queue", args.runs),
        Benchmark::Listen(args) => ("listen", args.runs),
        Benchmark::Drain(args) => ("drain", args.runs),
        Benchmark::Budget(args) => ("budget", args.runs),
        Benchmark::Ids(args) => ("ids", args.runs),
        Benchmark::Scale(args) => ("scale", args.runs),
        Benchmark::Sweep(args) => ("sweep", args.runs),
        Benchmark::Unleash(args) => ("unleash", args.runs),
        _ => bail!("this benchmark may have peers"),
    };
    let progress = Progress::new(name, runs as usize);
    let mut report = Report::new(name);
    for run in 1..=runs {
        progress.begin(&format!("run {run} of {runs}"));
        let figures = match benchmark {
            Benchmark::Queue(args) => queue::once(args, &progress).await?,
            Benchmark::Listen(args) => listen::once(args, &progress).await?,
            Benchmark::Drain(args) => drain::once(args, &progress).await?,
            Benchmark::Budget(args) => budget::once(args, &progress).await?,
            Benchmark::Ids(args) => ids::once(args, &progress).await?,
            Benchmark::Scale(args) => scale::once(args, &progress).await?,
            Benchmark::Sweep(args) => sweep::once(args, &progress).await?,
            Benchmark::Unleash(args) => unleash::once(args, &progress).await?,
            _ => bail!("this benchmark may have peers"),
        };
        report.add(Server::Reveille, figures);
        progress.done();
    }
    progress.finish();
    report.print(output)
}

/// Runs a benchmark `--runs` times on each server in turn, and prints the report.
async fn measure(benchmark: &Benchmark) -> Result<()> {
    let (name, common) = benchmark.common()?;
    let servers = common.servers();
    ensure!(
        common.relay.is_none() || servers.len() == 1,
        "--peer measures servers of this machine: omit --relay"
    );
    for server in &servers {
        broker::check_installed(*server)?;
    }
    let Runs { runs, output } = common.runs;
    let progress = Progress::new(name, runs as usize * servers.len());
    let mut report = Report::new(name);
    for run in 1..=runs {
        for server in &servers {
            progress.begin(&format!("run {run} of {runs}, {server}"));
            let broker = Broker::start(*server, common.relay.as_deref()).await?;
            report.add(*server, benchmark.run(&broker, &progress).await?);
            broker.stop().await;
            progress.done();
        }
    }
    progress.finish();
    report.print(output)
}

impl Benchmark {
    /// Returns the name and the common arguments of a benchmark with peers.
    fn common(&self) -> Result<(&'static str, &Common)> {
        Ok(match self {
            Self::Burst(args) => ("burst", &args.common),
            Self::Wake(args) => ("wake", &args.common),
            Self::WakeAll(args) => ("wake-all", &args.common),
            Self::Each(args) => ("each", &args.common),
            Self::Idle(args) => ("idle", &args.common),
            _ => {
                bail!("this is not a benchmark with peers")
            }
        })
    }

    async fn run(&self, broker: &Broker, progress: &Progress) -> Result<Figures> {
        match self {
            Self::Burst(args) => single_queue::burst(args, broker, progress).await,
            Self::Wake(args) => single_queue::wake(args, broker, progress).await,
            Self::WakeAll(args) => single_queue::wake_all(args, broker, progress).await,
            Self::Each(args) => each::each(args, broker, progress).await,
            Self::Idle(args) => single_queue::idle(args, broker, progress).await,
            _ => {
                bail!("this is not a benchmark with peers")
            }
        }
    }
}
