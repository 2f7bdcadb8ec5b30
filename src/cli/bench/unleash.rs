//! A parked fleet, and its release: told by a relay, and by polling the same store.
//!
//! The relay, the parked nodes and who unleashes are three processes; each told node has a
//! connection of its own. A node's time runs from the start of `unleash`, before the flag is
//! written, to its release, by the wall clock of the machine. The pollers begin spread over their
//! interval; all of them share one connection to the store, so that only the waiting is compared.

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
    ParkedArgs, UnleashArgs,
    broker::Broker,
    directory::Directory,
    fleet::READY,
    helper::{self, Helper},
    progress::Progress,
    report::{Figures, Unit},
    subscribers::nanos,
};

/// A flag that counts how often it is read.
#[derive(Debug)]
struct Counted {
    flag: StoreFlag,
    reads: Arc<AtomicU64>,
}

/// When the nodes were released after the start of `unleash`, sorted.
#[derive(Debug)]
struct Released(Vec<Duration>);

/// A node that was released: when, in nanoseconds of the wall clock, and what it keeps open. A fleet
/// that goes to work does not hang up.
type Node = (u64, Option<Release>);

/// The parked nodes' process, seen from its parent.
struct Nodes {
    helper: Helper,
}

const FLAG: &str = "bench-unleash";
/// Nodes that connect at one time: fewer than a server's backlog.
const CONNECTING: usize = 64;
/// The word upon which the child says how often it has read.
const READS: &str = "reads";

/// Does the work once, both ways.
pub(super) async fn once(args: &UnleashArgs, progress: &Progress) -> Result<Figures> {
    let directory = Directory::new()?;
    let url = format!("sqlite:{}", directory.path().join("flags.db").display());
    let broker = Broker::relay_on(&url).await?;
    let client = Client::new(&broker.target)?;

    progress.say(&format!("parking {} nodes on the relay", args.waiters));
    let mut nodes = Nodes::park(&["--target", &broker.target], args).await?;
    let began = SystemTime::now();
    let watchers = unleash(&client).await?;
    let answered = began.elapsed().unwrap_or_default();
    let told = nodes.released(began, args.waiters).await?;
    nodes.helper.stop().await;
    ensure!(
        u64::from(watchers) == args.waiters,
        "{watchers} of {} nodes were told",
        args.waiters
    );
    client.flags().leash(&FlagName::new(FLAG)?).await?;

    let interval = format!("{}ms", args.polling.as_millis());
    progress.say(&format!("parking {} nodes on the store", args.waiters));
    let mut nodes = Nodes::park(&["--store", &url, "--polling", &interval], args).await?;
    let before = nodes.reads().await?;
    tokio::time::sleep(args.hold).await;
    let reads = nodes.reads().await? - before;
    let began = SystemTime::now();
    unleash(&client).await?;
    let polled = nodes.released(began, args.waiters).await?;
    nodes.helper.stop().await;
    client.flags().leash(&FlagName::new(FLAG)?).await?;
    broker.stop().await;
    Ok(figures(args, answered, &told, &polled, reads))
}

/// The parked nodes' process: says `ready` when all wait, and in one line of JSON when each of them
/// was released, in nanoseconds of the wall clock.
pub(super) async fn run(args: &ParkedArgs) -> Result<()> {
    helper::raise_limits();
    let mut orders = helper::orders();
    let (parked, mut arrivals) = mpsc::unbounded_channel();
    let reads = Arc::<AtomicU64>::default();
    let mut nodes = match (&args.target, &args.store) {
        (Some(relay), _) => told(relay, args.waiters, &parked)?,
        (None, Some(url)) => polling(url, args, &reads, &parked).await?,
        (None, None) => anyhow::bail!("nobody says what is waited for"),
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
            order = orders.recv() => match order.as_deref() {
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

/// Parks nodes that a relay tells.
fn told(
    relay: &str,
    waiters: u64,
    parked: &mpsc::UnboundedSender<()>,
) -> Result<JoinSet<Result<Node>>> {
    let gate = Arc::new(Semaphore::new(CONNECTING));
    let mut nodes = JoinSet::new();
    for node in 0..waiters {
        let id = ListenerId::new(&format!("node-{node}"))?;
        let mut watch = Client::new(relay)?.watch_flag(FlagName::new(FLAG)?, id);
        let (gate, parked) = (Arc::clone(&gate), parked.clone());
        nodes.spawn(async move {
            let turn = gate.acquire_owned().await?;
            let first = watch.next().await.context("no first state")??;
            ensure!(!first.set, "flag `{FLAG}` is set already");
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
async fn polling(
    url: &str,
    args: &ParkedArgs,
    reads: &Arc<AtomicU64>,
    parked: &mpsc::UnboundedSender<()>,
) -> Result<JoinSet<Result<Node>>> {
    let flags = StoreFlags::new(store::open(url).await?);
    let interval = args.polling;
    let mut nodes = JoinSet::new();
    for _ in 0..args.waiters {
        let flag = Counted {
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

/// Unleashes the nodes; returns how many were told.
async fn unleash(client: &Client) -> Result<u32> {
    let (flag, options) = (FlagName::new(FLAG)?, UnleashOptions::default());
    let unleashed = client.flags().unleash(&flag, &options).await?;
    Ok(unleashed.watchers)
}

fn figures(
    args: &UnleashArgs,
    answered: Duration,
    told: &Released,
    polled: &Released,
    reads: u64,
) -> Figures {
    let mut figures = Figures::default();
    figures.add("nodes", Unit::Count, Some(args.waiters as f64));
    let micros = |span: Duration| Some(span.as_secs_f64() * 1e6);
    figures.add("unleash returned", Unit::Micros, micros(answered));
    figures.add("told p50", Unit::Micros, micros(told.quantile(0.5)));
    figures.add("told p99", Unit::Micros, micros(told.quantile(0.99)));
    figures.add("told, the last", Unit::Micros, micros(told.quantile(1.0)));
    let seconds = |span: Duration| Some(span.as_secs_f64());
    figures.add("polling interval", Unit::Seconds, seconds(args.polling));
    figures.add("polled p50", Unit::Seconds, seconds(polled.quantile(0.5)));
    figures.add("polled p99", Unit::Seconds, seconds(polled.quantile(0.99)));
    let last = polled.quantile(1.0);
    figures.add("polled, the last", Unit::Seconds, seconds(last));
    let held = Some(args.hold.as_secs_f64()).filter(|held| *held > 0.0);
    let minute = held.map(|held| reads as f64 * 60.0 / held);
    figures.add("polled, reads/min", Unit::Count, minute);
    figures
}

impl Nodes {
    async fn park(args: &[&str], work: &UnleashArgs) -> Result<Self> {
        let waiters = work.waiters.to_string();
        let args = [args, &["--waiters", &waiters]].concat();
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        let mut helper = Helper::start("parked", &args)?;
        let line = helper.line().await?;
        ensure!(line == READY, "the parked nodes' process says {line:?}");
        Ok(Self { helper })
    }

    /// Returns how often the nodes have read the store so far.
    async fn reads(&mut self) -> Result<u64> {
        self.helper.tell(READS).await?;
        Ok(self.helper.line().await?.parse()?)
    }

    /// Waits until all are released.
    async fn released(&mut self, began: SystemTime, waiters: u64) -> Result<Released> {
        let line = self.helper.line().await?;
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
        Ok(Released(times))
    }
}

impl Released {
    /// Returns the time by which this part of the nodes was released.
    fn quantile(&self, part: f64) -> Duration {
        let count = self.0.len();
        let at = (1..=count).find(|at| *at as f64 >= part * count as f64);
        at.map_or(Duration::ZERO, |at| self.0[at - 1])
    }
}

#[async_trait]
impl GlobalFlag for Counted {
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
    fn a_quantile_is_a_time_by_which_that_part_was_released() {
        let second = Duration::from_secs(1);
        let released = Released((1..=100).map(|n| second * n).collect());
        for (part, seconds) in [(0.5, 50), (0.99, 99), (1.0, 100)] {
            assert_eq!(released.quantile(part), second * seconds);
        }
        assert_eq!(Released(vec![second]).quantile(0.5), second);
    }
}
