//! A fleet of the demo: its listeners, and the initiator that puts their work.
//!
//! Each listener has at most one dequeue task and a connection of its own. The ways differ only in how
//! work is found.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use futures_util::future::{join_all, ready, try_join_all};
use reveille::{
    Client, ListenerId, Notification, Publisher,
    listener::{Delivery, Hooks, Listener, ListenerConfig, ListenerMode, ListenerStats},
    queue::{SqliteQueue, WorkQueue as _, json},
    scaling,
};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use super::Way;

pub(super) struct Fleet {
    pub(super) way: Way,
    queue: SqliteQueue,
    /// Messages put into the queue.
    puts: AtomicU64,
    /// `None` for polling listeners, which need no notification.
    publisher: Option<Publisher>,
    listeners: Vec<Listener>,
    /// The time of each work item of the present batch from put to handling, by its number: a queue may
    /// deliver a message twice.
    waited: Waited,
}

type Waited = watch::Sender<BTreeMap<usize, Duration>>;

/// Transactions that are handled together: one message.
#[derive(Debug, Serialize, Deserialize)]
struct WorkItem {
    number: usize,
    /// The price of each transaction.
    cents: Vec<u64>,
}

/// Hooks of a polling listener: sleep one second after an empty get.
struct PollEverySecond;

/// Measurements of the batch.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The time of each work item from put to handling.
    pub(super) waited: Vec<Duration>,
    /// Time from the last put until no dequeue task is left.
    pub(super) at_zero: Option<Duration>,
    pub(super) transactions: u64,
}

/// Number of transactions of the batch, and of one work item.
pub(super) const TRANSACTIONS: usize = 20_000;
const GROUP: usize = 50;
/// Number of work items of the batch.
pub(super) const ITEMS: usize = TRANSACTIONS / GROUP;

const SECOND: Duration = Duration::from_secs(1);
/// Time-out of each wait, long enough for a slow machine.
const TIMEOUT: Duration = Duration::from_secs(15);
/// A fleet whose state did not change for this long is idle.
const IDLE_AFTER: Duration = Duration::from_millis(500);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// A real batch is read from a file over time, and latency means something only without a backlog.
const ITEMS_PER_PUT: usize = 20;
const PUT_INTERVAL: Duration = Duration::from_millis(200);

impl Fleet {
    /// Creates the queue, and starts the listeners.
    pub(super) async fn start(
        way: Way,
        size: usize,
        relay: &str,
        home: &Path,
    ) -> anyhow::Result<Self> {
        let file = home.join(format!("{}.db", way.name()));
        let queue = SqliteQueue::create(file, "billing/transactions".parse()?).await?;
        let waited = Waited::default();
        let started = (1..=size).map(|number| start_one(way, number, relay, &queue, &waited));
        let listeners = try_join_all(started).await?;
        let client = Client::new(relay)?;
        Ok(Self {
            way,
            queue,
            puts: AtomicU64::new(0),
            publisher: (way == Way::Woken).then(|| client.publisher(way.name())),
            listeners,
            waited,
        })
    }

    /// Waits until all listeners are ready and all messages are deleted. A woken fleet must also have
    /// no dequeue task left. Returns the time at which this state began.
    pub(super) async fn wait_idle(&self) -> anyhow::Result<Instant> {
        let began = Instant::now();
        let mut since = began;
        while began.elapsed() < TIMEOUT {
            if !self.is_idle() {
                since = Instant::now();
            } else if since.elapsed() >= IDLE_AFTER {
                return Ok(since);
            }
            sleep(CHECK_INTERVAL).await;
        }
        bail!("the {} fleet does not become idle", self.way.name());
    }

    /// Returns the number of storage transactions of an idle fleet within this time.
    pub(super) async fn idle(&self, span: Duration) -> u64 {
        let before = self.transactions();
        sleep(span).await;
        self.transactions() - before
    }

    /// Puts the batch in parts, and waits until all of it is handled.
    pub(super) async fn work(&self) -> anyhow::Result<Outcome> {
        self.waited.send_replace(BTreeMap::new());
        let before = self.transactions();
        let mut last_put = Instant::now();
        let mut ticks = interval(PUT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for first in (0..ITEMS).step_by(ITEMS_PER_PUT) {
            ticks.tick().await;
            self.put(first..first + ITEMS_PER_PUT).await?;
            last_put = Instant::now();
        }
        let mut waited = self.waited.subscribe();
        let complete = waited.wait_for(|waited| waited.len() == ITEMS);
        timeout(TIMEOUT, complete)
            .await
            .context("work items are missing")??;
        let at_zero = match self.way {
            Way::Woken => Some(self.wait_idle().await?.duration_since(last_put)),
            Way::Polling => None,
        };
        Ok(Outcome {
            waited: self.waited.borrow().values().copied().collect(),
            at_zero,
            transactions: self.transactions() - before,
        })
    }

    /// Puts the work items of these numbers, and notifies.
    async fn put(&self, numbers: Range<usize>) -> reveille::Result<()> {
        let count = numbers.len() as u64;
        let message = |number| {
            json::encode(&WorkItem {
                number,
                cents: (1..).take(GROUP).collect(),
            })
        };
        let messages: reveille::Result<Vec<_>> = numbers.map(message).collect();
        self.queue.put(messages?).await?;
        self.puts.fetch_add(count, Relaxed);
        if let Some(publisher) = &self.publisher {
            let notification = Notification {
                messages: count,
                ..Notification::new(self.queue.address().clone())
            };
            publisher.notify(notification).await?;
        }
        Ok(())
    }

    pub(super) async fn stop(self) {
        join_all(self.listeners.into_iter().map(Listener::shutdown)).await;
    }

    /// Whether all listeners have finished their start and all messages are deleted.
    fn is_idle(&self) -> bool {
        let is_ready = |one: &Listener| match self.way {
            Way::Polling => one.state().stats.gets > 0,
            // A group member without work is not woken, so it may have made no get.
            Way::Woken => {
                one.state().mode == ListenerMode::Pushed && one.state().active_dequeue_tasks == 0
            }
        };
        self.listeners.iter().all(is_ready)
            && self.sum(|stats| stats.handled) >= self.puts.load(Relaxed)
    }

    /// The number of puts, gets and deletes so far. A listener with one task and short handlings
    /// makes hardly any other transaction.
    fn transactions(&self) -> u64 {
        self.puts.load(Relaxed) + self.sum(|stats| stats.gets + stats.handled)
    }

    fn sum(&self, figure: impl Fn(ListenerStats) -> u64) -> u64 {
        let listeners = self.listeners.iter();
        listeners.map(|one| figure(one.state().stats)).sum()
    }
}

/// Starts a listener, with a connection of its own.
async fn start_one(
    way: Way,
    number: usize,
    relay: &str,
    queue: &SqliteQueue,
    waited: &Waited,
) -> anyhow::Result<Listener> {
    let config = ListenerConfig {
        max_tasks: 1,
        grace: SECOND,
        ..ListenerConfig::default()
    };
    let builder = Listener::builder(Arc::new(queue.clone()));
    let builder = match way {
        Way::Polling => {
            // They do not start all at the same moment.
            sleep(SECOND.mul_f64(fastrand::f64())).await;
            builder.hooks(PollEverySecond)
        }
        Way::Woken => {
            let id = ListenerId::new(&format!("{}-{number}", way.name()))?;
            let options = config.subscription(id, queue);
            builder.wakes(Client::new(relay)?.subscribe(options)?)
        }
    };
    let waited = waited.clone();
    let handle = move |item: WorkItem, delivery: Delivery| {
        let inserted_at = delivery.message.inserted_at;
        let after = inserted_at.elapsed().unwrap_or_default();
        waited.send_modify(|waited| _ = waited.insert(item.number, after));
        ready(Ok(()))
    };
    Ok(builder.config(config).start_json(handle).await?)
}

impl Hooks for PollEverySecond {
    fn on_queue_empty(&self, _idle_count: u32, _proposed: scaling::Idle) -> scaling::Idle {
        scaling::Idle::Sleep(SECOND)
    }
}
