//! The process of the pattern and exact subscriptions.
//!
//! On `patterns N` or `exact N` it opens that many, says `at M` each second, and `ready` when each
//! has had its first wake-up. On `told` it says in one line of JSON of how many notifications they
//! were told since then.

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
    super::{CrowdArgs, fleet::READY, helper, subscribers::until},
    AT, TOLD, client, names,
};

/// How many notifications were told, to all subscriptions of a kind together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CrowdTold {
    pub(super) patterns: u64,
    pub(super) exact: u64,
}

/// Subscriptions of one kind.
#[derive(Debug, Default)]
struct Kind {
    ready: watch::Sender<u64>,
    told: AtomicU64,
}

/// The kinds, as they are ordered.
pub(super) const PATTERNS: &str = "patterns";
pub(super) const EXACT: &str = "exact";

/// Subscriptions that are opened at one time.
const OPENING: usize = 64;
/// The longest there is: what a hundred thousand heartbeats cost is not measured here.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// Holds the subscriptions until the parent lets go.
pub(in crate::cli::bench) async fn run(args: &CrowdArgs) -> Result<()> {
    helper::raise_limits();
    let mut orders = helper::orders();
    let mut tasks = JoinSet::new();
    let (patterns, exact) = (Arc::<Kind>::default(), Arc::<Kind>::default());
    while let Some(order) = until(&mut tasks, orders.recv()).await? {
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
            None if order == TOLD => {
                let told = CrowdTold {
                    patterns: patterns.told.load(Ordering::Acquire),
                    exact: exact.told.load(Ordering::Acquire),
                };
                println!("{}", serde_json::to_string(&told)?);
            }
            _ => bail!("the order {order:?} is not known"),
        }
    }
    Ok(())
}

/// Opens subscriptions, and waits until all are ready.
async fn open(
    args: &CrowdArgs,
    count: u32,
    selector: impl Fn(u32) -> Result<Selector>,
    kind: &Arc<Kind>,
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
            ..SubscribeOptions::new(ListenerId::new(&format!("crowd-{at}"))?, [selector(at)?])
        };
        let subscription = client.subscribe(options)?;
        tasks.spawn(listen(subscription, Arc::clone(kind), Arc::clone(&gate)));
        shared = Some(client);
    }
    let mut ready = kind.ready.subscribe();
    let second = Duration::from_secs(1);
    loop {
        let all = ready.wait_for(|ready| *ready == u64::from(count));
        let all = async { timeout(second, all).await.is_ok() };
        if until(tasks, all).await? {
            println!("{READY}");
            return Ok(());
        }
        println!("{AT} {}", *kind.ready.borrow());
    }
}

/// One subscription.
async fn listen(
    mut subscription: Subscription,
    kind: Arc<Kind>,
    gate: Arc<Semaphore>,
) -> Result<()> {
    {
        let _turn = gate.acquire().await?;
        subscription.next().await.context("no first wake-up")??;
    }
    kind.ready.send_modify(|ready| *ready += 1);
    loop {
        let work = subscription.next().await.context("no more wake-ups")??;
        // The relay may ask for a check at any time: that tells of no notification.
        if work.reason == WakeReason::Notified {
            kind.told.fetch_add(work.notifications, Ordering::AcqRel);
        }
    }
}
