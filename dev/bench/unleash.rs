//! The release of a parked fleet: through a relay, and by polling the same store.
//!
//! The relay, the parked nodes and the caller of `unleash` are three processes. Each node of the
//! relay has a separate connection. A node's time runs from the start of `unleash`, before the flag
//! is written, to its release, by the wall clock of the machine. The start of polling nodes is
//! spread over their interval. All of them share one connection to the store, so that only the
//! waiting is compared.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use reveille::{
    Client, FlagName, FlagWatch, GlobalFlag, ListenerId, UnleashOptions,
    flag::{StoreFlag, StoreFlags},
    release::{PollingRelease, Release},
    store,
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use super::{
    args::ParkedArgs,
    args::UnleashArgs,
    broker::Broker,
    child,
    directory::Directory,
    progress::Progress,
    report::{Figures, Unit},
    subscriber_process::READY,
    subscribers::CONNECTING,
    wall_nanos::nanos,
};
use crate::child::Child;

/// A flag that counts its reads.
#[derive(Debug)]
struct CountingFlag {
    flag: StoreFlag,
    reads: Arc<AtomicU64>,
}

/// The times from the start of `unleash` to the release of each node, sorted.
#[derive(Debug)]
struct ReleaseTimes(Vec<Duration>);

/// A released node: its time in nanoseconds of the wall clock, and its open watch. The watch stays
/// open because a real node also keeps it.
type ReleasedNode = (u64, Option<Release>);

/// The parent's handle of the parked nodes' process.
struct ParkedProcess {
    process: Child,
}

const FLAG: &str = "bench-unleash";
/// The released shares of the nodes in the report.
const QUANTILES: [(&str, f64); 3] = [(" p50", 0.5), (" p99", 0.99), (", the last", 1.0)];
/// The command on which the child prints its number of reads.
const READS: &str = "reads";

/// Runs the benchmark once, through a relay and by polling.
pub(super) async fn once(args: &UnleashArgs, progress: &Progress) -> Result<Figures> {
    let directory = Directory::new()?;
    let url = format!("sqlite:{}", directory.path().join("flags.db").display());
    let broker = Broker::relay(&[format!("--store={url}")]).await?;
    let client = Client::new(&broker.target)?;

    progress.step(&format!("parking {} nodes on the relay", args.waiters));
    let mut nodes = ParkedProcess::park(format!("--target={}", broker.target), args).await?;
    let began = SystemTime::now();
    let watchers = unleash(&client).await?;
    let answered = began.elapsed().unwrap_or_default();
    let watched = nodes.released(began, args.waiters).await?;
    nodes.process.stop().await;
    ensure!(
        u64::from(watchers) == args.waiters,
        "the relay released {watchers} of {} nodes",
        args.waiters
    );
    client.flags().leash(&FlagName::new(FLAG)?).await?;

    progress.step(&format!("parking {} nodes on the store", args.waiters));
    let mut nodes = ParkedProcess::park(format!("--store={url}"), args).await?;
    let before = nodes.reads().await?;
    tokio::time::sleep(args.hold).await;
    let reads = nodes.reads().await? - before;
    let began = SystemTime::now();
    unleash(&client).await?;
    let polled = nodes.released(began, args.waiters).await?;
    nodes.process.stop().await;
    client.flags().leash(&FlagName::new(FLAG)?).await?;
    broker.stop().await;
    Ok(figures(args, answered, &watched, &polled, reads))
}

/// The parked nodes' process. Prints `ready` once all nodes wait, and later one line of JSON with
/// the release times in nanoseconds of the wall clock.
pub(super) async fn run(args: &ParkedArgs) -> Result<()> {
    child::raise_limits();
    let mut commands = child::commands();
    let (parked, mut arrivals) = mpsc::unbounded_channel();
    let reads = Arc::<AtomicU64>::default();
    let mut nodes = match (&args.target, &args.store) {
        (Some(relay), _) => park_on_relay(relay, args.waiters, &parked)?,
        (None, Some(url)) => park_on_store(url, args, &reads, &parked).await?,
        (None, None) => anyhow::bail!("neither --target nor --store is given"),
    };
    drop(parked);
    for _ in 0..args.waiters {
        if arrivals.recv().await.is_none() {
            break;
        }
    }
    println!("{READY}");
    let (mut times, mut open) = (Vec::new(), Vec::new());
    loop {
        tokio::select! {
            order = commands.recv() => match order.as_deref() {
                Some(READS) => println!("{}", reads.load(Ordering::Relaxed)),
                _ => return Ok(()),
            },
            Some(released) = nodes.join_next() => {
                let (at, release) = released??;
                times.push(at);
                open.push(release);
                if nodes.is_empty() {
                    println!("{}", serde_json::to_string(&times)?);
                }
            }
        }
    }
}

/// Parks nodes that watch the flag at a relay.
fn park_on_relay(
    relay: &str,
    waiters: u64,
    parked: &mpsc::UnboundedSender<()>,
) -> Result<JoinSet<Result<ReleasedNode>>> {
    let gate = Arc::new(Semaphore::new(CONNECTING));
    let mut nodes = JoinSet::new();
    for node in 0..waiters {
        let id = ListenerId::new(&format!("node-{node}"))?;
        let mut watch = Client::new(relay)?.watch_flag(FlagName::new(FLAG)?, id);
        let (gate, parked) = (Arc::clone(&gate), parked.clone());
        nodes.spawn(async move {
            let turn = gate.acquire_owned().await?;
            let first = watch.next().await.context("no first state")??;
            ensure!(!first.set, "flag `{FLAG}` is already set");
            drop(turn);
            parked.send(())?;
            let mut release = Release::new(watch);
            release.wait().await?;
            Ok((nanos(SystemTime::now()), Some(release)))
        });
    }
    Ok(nodes)
}

/// Parks nodes that poll the store.
async fn park_on_store(
    url: &str,
    args: &ParkedArgs,
    reads: &Arc<AtomicU64>,
    parked: &mpsc::UnboundedSender<()>,
) -> Result<JoinSet<Result<ReleasedNode>>> {
    let flags = StoreFlags::new(store::open(url).await?);
    let interval = args.polling;
    let mut nodes = JoinSet::new();
    for _ in 0..args.waiters {
        let flag = CountingFlag {
            flag: flags.global(FlagName::new(FLAG)?),
            reads: Arc::clone(reads),
        };
        let parked = parked.clone();
        nodes.spawn(async move {
            tokio::time::sleep(interval.mul_f64(fastrand::f64())).await;
            parked.send(())?;
            PollingRelease::new(flag, interval).wait().await?;
            Ok((nanos(SystemTime::now()), None))
        });
    }
    Ok(nodes)
}

/// Unleashes the nodes; returns the number of watchers at the relay.
async fn unleash(client: &Client) -> Result<u32> {
    let (flag, options) = (FlagName::new(FLAG)?, UnleashOptions::default());
    let unleashed = client.flags().unleash(&flag, &options).await?;
    Ok(unleashed.watchers)
}

fn figures(
    args: &UnleashArgs,
    answered: Duration,
    watched: &ReleaseTimes,
    polled: &ReleaseTimes,
    reads: u64,
) -> Figures {
    let mut figures = Figures::of_counts(&[("nodes", args.waiters)]);
    let seconds = |span: Duration| span.as_secs_f64();
    figures.add("unleash returned", Unit::Micros, seconds(answered) * 1e6);
    for (name, part) in QUANTILES {
        let micros = seconds(watched.quantile(part)) * 1e6;
        figures.add(format!("told{name}"), Unit::Micros, micros);
    }
    figures.add("polling interval", Unit::Seconds, seconds(args.polling));
    for (name, part) in QUANTILES {
        let span = seconds(polled.quantile(part));
        figures.add(format!("polled{name}"), Unit::Seconds, span);
    }
    let held = Some(args.hold.as_secs_f64()).filter(|held| *held > 0.0);
    let minute = held.map(|held| reads as f64 * 60.0 / held);
    figures.add("polled, reads/min", Unit::Count, minute);
    figures
}

impl ParkedProcess {
    async fn park(place: String, work: &UnleashArgs) -> Result<Self> {
        let polling = format!("--polling={}ms", work.polling.as_millis());
        let waiters = format!("--waiters={}", work.waiters);
        let mut process = Child::start("parked", &[place, polling, waiters])?;
        process.expect(READY).await?;
        Ok(Self { process })
    }

    /// Returns the number of reads of the flag so far.
    async fn reads(&mut self) -> Result<u64> {
        self.process.send(READS).await?;
        Ok(self.process.line().await?.parse()?)
    }

    /// Waits until all nodes are released.
    async fn released(&mut self, began: SystemTime, waiters: u64) -> Result<ReleaseTimes> {
        let line = self.process.line().await?;
        let times: Vec<u64> = serde_json::from_str(&line).context(line)?;
        let began = nanos(began);
        let early = times.iter().filter(|at| **at < began).count();
        ensure!(
            times.len() as u64 == waiters && early == 0,
            "{} of {waiters} nodes were released, {early} of them too early",
            times.len()
        );
        let after = |at: u64| Duration::from_nanos(at - began);
        let mut times: Vec<_> = times.into_iter().map(after).collect();
        times.sort_unstable();
        Ok(ReleaseTimes(times))
    }
}

impl ReleaseTimes {
    /// Returns the time by which this share of the nodes was released.
    fn quantile(&self, part: f64) -> Duration {
        let count = self.0.len();
        let at = (1..=count).find(|at| *at as f64 >= part * count as f64);
        at.map_or(Duration::ZERO, |at| self.0[at - 1])
    }
}

#[async_trait]
impl GlobalFlag for CountingFlag {
    async fn is_set(&self) -> reveille::Result<bool> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.flag.is_set().await
    }

    async fn set(&self, set: bool) -> reveille::Result<()> {
        self.flag.set(set).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_time_by_which_that_share_was_released() {
        let second = Duration::from_secs(1);
        let released = ReleaseTimes((1..=100).map(|n| second * n).collect());
        for (part, seconds) in [(0.5, 50), (0.99, 99), (1.0, 100)] {
            assert_eq!(released.quantile(part), second * seconds);
        }
        assert_eq!(ReleaseTimes(vec![second]).quantile(0.5), second);
    }
}
