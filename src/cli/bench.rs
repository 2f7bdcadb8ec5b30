//! `reveille bench WORK`: what a relay costs and how fast it wakes, also with very many queues and
//! subscriptions, what a queue takes, what becomes of both in a listener, how fast ids come, what
//! sweeping costs, and how soon a parked fleet is released.
//!
//! The relay, its subscribers and the publisher are three processes, so that each is charged for
//! its own work only. With `--peer` the same work goes through a nats-server or a redis-server as
//! well, run by run in turn. Every figure is of one run; medians of the runs come last. Knows the
//! library's public API only, and the protocol where that has no call for one page of a list.

mod args;
mod broker;
mod budget;
mod directory;
mod drain;
mod each;
mod fleet;
mod helper;
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
mod subscribers;
mod sweep;
mod tally;
mod unleash;
mod usage;
mod work;

use anyhow::{Result, bail, ensure};

pub(crate) use self::args::BenchArgs;
use self::{
    args::{
        BudgetArgs, BurstArgs, Common, CrowdArgs, DrainArgs, EachArgs, FleetArgs, IdleArgs,
        IdsArgs, ListenArgs, Output, ParkedArgs, QueueArgs, RelayArgs, Runs, ScaleArgs, Side,
        SweepArgs, UnleashArgs, WakeAllArgs, WakeArgs, WildcardArgs, Work,
    },
    broker::Broker,
    progress::Progress,
    report::{Figures, Report},
};

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
        | Work::Budget(_)
        | Work::Ids(_)
        | Work::Scale(_)
        | Work::Sweep(_)
        | Work::Unleash(_) => {
            tokio::spawn(async move { measure_alone(&args.work).await }).await??;
        }
        Work::Relay(args) => broker::serve_relay(args).await?,
        Work::Nats => peers::serve_nats().await?,
        Work::Redis => peers::serve_redis().await?,
        Work::Fleet(args) => subscribers::run(args).await?,
        Work::Parked(args) => unleash::run(args).await?,
        Work::Crowd(args) => scale::crowd::run(args).await?,
        Work::Wildcard(args) => scale::wildcard::run(args).await?,
        // On one of the runtime's own threads, where publishers usually are: from another thread,
        // each notification would have to wake one first.
        Work::Burst(_) | Work::Wake(_) | Work::WakeAll(_) | Work::Each(_) | Work::Idle(_) => {
            tokio::spawn(async move { measure(&args.work).await }).await??;
        }
    }
    Ok(())
}

/// Does a work that has no peer as often as asked for, and prints what it came to.
async fn measure_alone(work: &Work) -> Result<()> {
    let (name, Runs { runs, output }) = match work {
        Work::Queue(args) => ("queue", args.runs),
        Work::Listen(args) => ("listen", args.runs),
        Work::Drain(args) => ("drain", args.runs),
        Work::Budget(args) => ("budget", args.runs),
        Work::Ids(args) => ("ids", args.runs),
        Work::Scale(args) => ("scale", args.runs),
        Work::Sweep(args) => ("sweep", args.runs),
        Work::Unleash(args) => ("unleash", args.runs),
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
            Work::Budget(args) => budget::once(args, &progress).await?,
            Work::Ids(args) => ids::once(args, &progress).await?,
            Work::Scale(args) => scale::once(args, &progress).await?,
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
    let sides = common.sides();
    ensure!(
        common.relay.is_none() || sides.len() == 1,
        "--peer measures servers of this machine: leave --relay out"
    );
    for side in &sides {
        broker::check_installed(*side)?;
    }
    let Runs { runs, output } = common.runs;
    let progress = Progress::new(name, runs as usize * sides.len());
    let mut report = Report::new(name);
    for run in 1..=runs {
        for side in &sides {
            progress.begin(&format!("run {run} of {runs}, {side}"));
            let broker = Broker::start(*side, common.relay.as_deref()).await?;
            report.add(*side, work.run(&broker, &progress).await?);
            broker.stop().await;
            progress.done();
        }
    }
    progress.finish();
    report.print(output)
}

impl Work {
    /// Returns its name and what it has in common with the others.
    fn common(&self) -> Result<(&'static str, &Common)> {
        Ok(match self {
            Self::Burst(args) => ("burst", &args.common),
            Self::Wake(args) => ("wake", &args.common),
            Self::WakeAll(args) => ("wake-all", &args.common),
            Self::Each(args) => ("each", &args.common),
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
            Self::Each(args) => each::each(args, broker, progress).await,
            Self::Idle(args) => work::idle(args, broker, progress).await,
            _ => {
                bail!("this is no work by itself")
            }
        }
    }
}
