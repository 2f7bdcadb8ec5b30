//! The process of the pattern and exact subscriptions.
//!
//! On `patterns N` or `exact N` it opens N subscriptions, prints `at M` each second, and `ready`
//! once each has its first wake-up. On `sums` it prints one line of JSON with the number of
//! notifications since then.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use reveille::{Client, ListenerId, Selector, SubscribeOptions, Subscription, WakeReason};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::timeout,
};

use super::{
    super::{args::SubscriptionsArgs, child, subscriber_process::READY, subscribers::until},
    AT, SUMS, client, names,
};

/// The number of notifications that all subscriptions of a group got together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SubscriptionSums {
    pub(super) patterns: u64,
    pub(super) exact: u64,
}

/// Subscriptions of one group.
#[derive(Debug, Default)]
struct SubscriptionGroup {
    ready: watch::Sender<u64>,
    received: AtomicU64,
}

/// The commands that open subscriptions of a group.
pub(super) const PATTERNS: &str = "patterns";
pub(super) const EXACT: &str = "exact";

/// Maximum number of subscriptions that are opened concurrently.
const OPENING: usize = 64;
/// The maximum: the cost of a hundred thousand heartbeats is not measured here.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// Runs the subscriptions until the parent closes the input.
pub(crate) async fn run(args: &SubscriptionsArgs) -> Result<()> {
    child::raise_limits();
    let mut commands = child::commands();
    let mut tasks = JoinSet::new();
    let (patterns, exact) = (
        Arc::<SubscriptionGroup>::default(),
        Arc::<SubscriptionGroup>::default(),
    );
    while let Some(order) = until(&mut tasks, commands.recv()).await? {
        match order.split_once(' ') {
            Some((PATTERNS, count)) => {
                let count = count.parse().context("patterns N")?;
                open(args, count, names::pattern, &patterns, &mut tasks).await?;
            }
            Some((EXACT, count)) => {
                let count = count.parse().context("exact N")?;
                let queue = |at| Ok(names::subscribed(at, args.queues)?.into());
                open(args, count, queue, &exact, &mut tasks).await?;
            }
            None if order == SUMS => {
                let sums = SubscriptionSums {
                    patterns: patterns.received.load(Ordering::Acquire),
                    exact: exact.received.load(Ordering::Acquire),
                };
                println!("{}", serde_json::to_string(&sums)?);
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
    group: &Arc<SubscriptionGroup>,
    tasks: &mut JoinSet<Result<()>>,
) -> Result<()> {
    let gate = Arc::new(Semaphore::new(OPENING));
    let mut shared: Option<Client> = None;
    for at in 0..count {
        let client = match shared.take() {
            Some(client) if at % args.per_connection != 0 => client,
            _ => client(&args.target)?,
        };
        let options = SubscribeOptions {
            heartbeat: HEARTBEAT,
            ..SubscribeOptions::new(
                ListenerId::new(&format!("subscriptions-{at}"))?,
                [selector(at)?],
            )
        };
        let subscription = client.subscribe(options)?;
        tasks.spawn(listen(subscription, Arc::clone(group), Arc::clone(&gate)));
        shared = Some(client);
    }
    let mut ready = group.ready.subscribe();
    let second = Duration::from_secs(1);
    loop {
        let all = ready.wait_for(|ready| *ready == u64::from(count));
        let all = async { timeout(second, all).await.is_ok() };
        if until(tasks, all).await? {
            println!("{READY}");
            return Ok(());
        }
        println!("{AT} {}", *group.ready.borrow());
    }
}

/// Runs one subscription.
async fn listen(
    mut subscription: Subscription,
    group: Arc<SubscriptionGroup>,
    gate: Arc<Semaphore>,
) -> Result<()> {
    {
        let _turn = gate.acquire().await?;
        subscription.next().await.context("no first wake-up")??;
    }
    group.ready.send_modify(|ready| *ready += 1);
    loop {
        let work = subscription.next().await.context("no more wake-ups")??;
        // The sentinel may send a check at any time, which carries no notification.
        if work.reason == WakeReason::Notified {
            group
                .received
                .fetch_add(work.notifications, Ordering::AcqRel);
        }
    }
}
