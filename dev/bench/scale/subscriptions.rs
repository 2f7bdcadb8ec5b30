//! The process of the pattern and exact subscriptions, and of that to all queues.
//!
//! On `pattern N` or `exact N` it opens N subscriptions, and prints `ready` once each has its first
//! wake-up. On `all N` it subscribes to `*/*`, and prints one line of JSON when it was caught up on
//! N queues. On `sums` it prints the number of notifications so far.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use reveille::{Client, ListenerId, Selector, SubscribeOptions, Subscription};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use super::{client, queue, queue_number};
use crate::{child, subscriber_process::READY, subscribers::until};

/// The arguments of the subscriptions' process.
#[derive(Debug, Clone, Args)]
pub(crate) struct SubscriptionsArgs {
    #[arg(long)]
    target: String,
}

/// The number of notifications that the subscriptions of each kind got together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sums {
    pub(super) exact: u64,
    pub(super) all: u64,
}

/// The catch-up of the subscription to all queues.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct CaughtUp {
    /// Time from the call until it was told of all.
    pub(super) seconds: f64,
}

/// Counts the notifications of numbered queues, which all subscriptions of a kind got.
type Received = Arc<AtomicU64>;

/// The orders.
pub(super) const PATTERNS: &str = "pattern";
pub(super) const EXACT: &str = "exact";
pub(super) const ALL: &str = "all";
pub(super) const SUMS: &str = "sums";

/// Maximum number of subscriptions that are opened concurrently.
const OPENING: usize = 64;
/// The maximum: the cost of very many heartbeats is not measured here.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// Number of known queues that a new subscription to a pattern is told of by name; with more of them, it
/// is told under the pattern's own name as well.
const NAMED: usize = 1024;
/// Number of subscriptions on one connection.
const PER_CONNECTION: u32 = 100;

/// Runs the subscriptions until the parent closes the input.
pub(crate) async fn run(args: &SubscriptionsArgs) -> Result<()> {
    child::raise_limits();
    let mut commands = child::commands();
    let mut tasks = JoinSet::new();
    let (exact, all) = (Received::default(), Received::default());
    while let Some(order) = until(&mut tasks, commands.recv()).await? {
        match order.split_once(' ') {
            Some((PATTERNS, count)) => {
                let selector = |number| Ok(Selector::new("a", &format!("p{number:07}*"))?);
                open(
                    args,
                    count.parse()?,
                    selector,
                    &Received::default(),
                    &mut tasks,
                )
                .await?;
                println!("{READY}");
            }
            Some((EXACT, count)) => {
                let selector = |number| Ok(queue(number)?.into());
                open(args, count.parse()?, selector, &exact, &mut tasks).await?;
                println!("{READY}");
            }
            Some((ALL, queues)) => {
                let seconds = open_all(args, queues.parse()?, &all, &mut tasks).await?;
                println!("{}", serde_json::to_string(&CaughtUp { seconds })?);
            }
            None if order == SUMS => {
                let [exact, all] = [&exact, &all].map(|of| of.load(Ordering::Acquire));
                println!("{}", serde_json::to_string(&Sums { exact, all })?);
            }
            _ => bail!("the order {order:?} is not known"),
        }
    }
    Ok(())
}

/// Opens subscriptions, and waits until all are ready.
async fn open(
    args: &SubscriptionsArgs,
    count: u32,
    selector: impl Fn(u32) -> Result<Selector>,
    received: &Received,
    tasks: &mut JoinSet<Result<()>>,
) -> Result<()> {
    let gate = Arc::new(Semaphore::new(OPENING));
    let (ready, mut all_ready) = mpsc::unbounded_channel();
    let mut shared = client(&args.target)?;
    for number in 0..count {
        if number % PER_CONNECTION == 0 {
            shared = client(&args.target)?;
        }
        let subscription = subscribe(&shared, &format!("s{number}"), selector(number)?)?;
        let (received, ready, gate) = (Arc::clone(received), ready.clone(), Arc::clone(&gate));
        tasks.spawn(async move {
            let mut subscription = subscription;
            let turn = gate.acquire().await?;
            subscription.next().await.context("no first wake-up")??;
            drop((turn, ready));
            count_notifications(subscription, received).await
        });
    }
    drop(ready);
    // Nothing is sent: the channel ends when all tasks have dropped their sender.
    let _: Option<()> = until(tasks, all_ready.recv()).await?;
    Ok(())
}

/// Subscribes to all queues; returns the seconds until it was told of all.
async fn open_all(
    args: &SubscriptionsArgs,
    queues: usize,
    received: &Received,
    tasks: &mut JoinSet<Result<()>>,
) -> Result<f64> {
    let began = Instant::now();
    let mut subscription = subscribe(&client(&args.target)?, "all", Selector::new("*", "*")?)?;
    let caught_up = async {
        // The probe's queue may be one of the named ones.
        let (mut named, mut is_told_of_all) = (HashSet::new(), queues <= NAMED);
        while named.len() < queues.min(NAMED - 1) || !is_told_of_all {
            let work = subscription.next().await.context("no more wake-ups")??;
            named.extend(queue_number(&work.queue));
            is_told_of_all |= work.queue.as_address().is_none();
        }
        anyhow::Ok(began.elapsed().as_secs_f64())
    };
    let seconds = until(tasks, caught_up).await??;
    tasks.spawn(count_notifications(subscription, Arc::clone(received)));
    Ok(seconds)
}

fn subscribe(client: &Client, id: &str, selector: Selector) -> Result<Subscription> {
    let options = SubscribeOptions {
        heartbeat: HEARTBEAT,
        ..SubscribeOptions::new(ListenerId::new(id)?, [selector])
    };
    Ok(client.subscribe(options)?)
}

async fn count_notifications(mut subscription: Subscription, received: Received) -> Result<()> {
    loop {
        let work = subscription.next().await.context("no more wake-ups")??;
        // A check carries no notification, and the probe's queue has no number.
        if queue_number(&work.queue).is_some() {
            received.fetch_add(work.notifications, Ordering::AcqRel);
        }
    }
}
