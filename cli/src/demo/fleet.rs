//! A fleet of the demo: its listeners, the initiator that puts their work, and the controller that takes
//! their results.
//!
//! Each listener has at most one dequeue task and a connection of its own. The ways differ only in how
//! work is found.

use std::{
    collections::BTreeMap,
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
    listener::{
        Delivery, HandlerResult, Hooks, Listener, ListenerBuilder, ListenerConfig, ListenerMode,
        ListenerStats, Rejected,
    },
    queue::{Message, NewMessage, SqliteQueue, WorkQueue, json},
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
    rating: Arc<Rating>,
    /// The controller is the first one.
    listeners: Vec<Listener>,
    /// The results of the present batch, by the number of the work item: a queue may deliver a message
    /// twice.
    results: watch::Sender<BTreeMap<usize, Rated>>,
}

/// Takes work items from one queue, and puts their prices into the other one.
struct Rating {
    input: SqliteQueue,
    output: SqliteQueue,
    /// Messages put into both queues.
    puts: AtomicU64,
    /// `None` for polling listeners, which need no notification.
    publisher: Option<Publisher>,
}

/// Transactions that are rated together: one message of the input queue.
#[derive(Debug, Serialize, Deserialize)]
struct WorkItem {
    number: usize,
    /// The units of each transaction.
    units: Vec<u64>,
}

/// The result of a work item: one message of the output queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Rated {
    number: usize,
    cents: u64,
    /// Time from put to handling.
    waited: Duration,
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
/// The price of a unit.
const CENTS: u64 = 2;

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
    /// Creates the queues, and starts the listeners.
    pub(super) async fn start(
        way: Way,
        size: usize,
        relay: &str,
        home: &Path,
    ) -> anyhow::Result<Self> {
        let client = Client::new(relay)?;
        let rating = Arc::new(Rating {
            input: create_queue(way, "input", home).await?,
            output: create_queue(way, "output", home).await?,
            puts: AtomicU64::new(0),
            publisher: (way == Way::Woken).then(|| client.publisher(way.name())),
        });
        let results = watch::Sender::new(BTreeMap::new());
        let added_to = results.clone();
        let add = move |rated: Rated, _: Delivery| {
            added_to.send_modify(|results| _ = results.insert(rated.number, rated));
            ready(Ok(()))
        };
        let controller = way.listener(&client, "controller", &rating.output)?;
        let mut listeners = vec![controller.start_json(add).await?];
        let started = (1..=size).map(|number| start_one(way, number, relay, &rating));
        listeners.extend(try_join_all(started).await?);
        Ok(Self {
            way,
            rating,
            listeners,
            results,
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

    /// Puts the batch in parts, and waits until all results have arrived. Their total must be exact.
    pub(super) async fn work(&self) -> anyhow::Result<Outcome> {
        self.results.send_replace(BTreeMap::new());
        let before = self.transactions();
        let mut last_put = Instant::now();
        let mut ticks = interval(PUT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let units: Vec<u64> = (1..).take(GROUP).collect();
        for first in (0..ITEMS).step_by(ITEMS_PER_PUT) {
            ticks.tick().await;
            let item = |number| WorkItem {
                number,
                units: units.clone(),
            };
            let items: Vec<_> = (first..first + ITEMS_PER_PUT).map(item).collect();
            self.rating.put(&self.rating.input, &items).await?;
            last_put = Instant::now();
        }
        let mut results = self.results.subscribe();
        let complete = results.wait_for(|results| results.len() == ITEMS);
        timeout(TIMEOUT, complete)
            .await
            .context("results are missing")??;
        let at_zero = match self.way {
            Way::Woken => Some(self.wait_idle().await?.duration_since(last_put)),
            Way::Polling => None,
        };
        let results = self.results.borrow().clone();
        let cents = results.values().map(|rated| rated.cents).sum::<u64>();
        let expected = CENTS * units.iter().sum::<u64>() * ITEMS as u64;
        anyhow::ensure!(cents == expected, "the total is not exact");
        Ok(Outcome {
            waited: results.values().map(|rated| rated.waited).collect(),
            at_zero,
            transactions: self.transactions() - before,
        })
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
            && self.sum(|stats| stats.handled) >= self.rating.puts.load(Relaxed)
    }

    /// The number of puts, gets and deletes so far. A listener with one task and short handlings
    /// makes hardly any other transaction.
    fn transactions(&self) -> u64 {
        self.rating.puts.load(Relaxed) + self.sum(|stats| stats.gets + stats.handled)
    }

    fn sum(&self, figure: impl Fn(ListenerStats) -> u64) -> u64 {
        let listeners = self.listeners.iter();
        listeners.map(|one| figure(one.state().stats)).sum()
    }
}

/// Starts a listener that rates work items.
async fn start_one(
    way: Way,
    number: usize,
    relay: &str,
    rating: &Arc<Rating>,
) -> anyhow::Result<Listener> {
    if way == Way::Polling {
        // Polling listeners do not start all at the same moment.
        sleep(SECOND.mul_f64(fastrand::f64())).await;
    }
    let builder = way.listener(&Client::new(relay)?, &number.to_string(), &rating.input)?;
    let rating = Arc::clone(rating);
    let rate = move |delivery: Delivery| {
        let rating = Arc::clone(&rating);
        async move { rating.rate(&delivery.message).await }
    };
    Ok(builder.start(rate).await?)
}

async fn create_queue(way: Way, name: &str, home: &Path) -> anyhow::Result<SqliteQueue> {
    let file = home.join(format!("{}-{name}.db", way.name()));
    let address = format!("billing/{name}").parse()?;
    Ok(SqliteQueue::create(file, address).await?)
}

impl Way {
    fn listener(
        self,
        client: &Client,
        name: &str,
        queue: &SqliteQueue,
    ) -> anyhow::Result<ListenerBuilder> {
        let config = ListenerConfig {
            max_tasks: 1,
            grace: SECOND,
            ..ListenerConfig::default()
        };
        let builder = Listener::builder(Arc::new(queue.clone()));
        Ok(match self {
            Self::Polling => builder.hooks(PollEverySecond).config(config),
            Self::Woken => {
                let id = ListenerId::new(&format!("{}-{name}", self.name()))?;
                let options = config.subscription(id, queue);
                builder.wakes(client.subscribe(options)?).config(config)
            }
        })
    }
}

impl Rating {
    /// Puts messages, and notifies.
    async fn put<T: Serialize + Sync>(
        &self,
        queue: &SqliteQueue,
        items: &[T],
    ) -> reveille::Result<()> {
        let encoded = items.iter().map(json::encode);
        let messages: Vec<NewMessage> = encoded.collect::<Result<_, _>>()?;
        let count = messages.len() as u64;
        queue.put(messages).await?;
        self.puts.fetch_add(count, Relaxed);
        if let Some(publisher) = &self.publisher {
            let notification = Notification {
                messages: count,
                ..Notification::new(queue.address().clone())
            };
            publisher.notify(notification).await?;
        }
        Ok(())
    }

    /// Rates a work item, and puts the result.
    async fn rate(&self, message: &Message) -> HandlerResult {
        let waited = message.inserted_at.elapsed().unwrap_or_default();
        let item: WorkItem = json::decode(&message.body).map_err(Rejected::because)?;
        let rated = Rated {
            number: item.number,
            cents: CENTS * item.units.iter().sum::<u64>(),
            waited,
        };
        self.put(&self.output, &[rated]).await?;
        Ok(())
    }
}

impl Hooks for PollEverySecond {
    fn on_queue_empty(&self, _idle_count: u32, _proposed: scaling::Idle) -> scaling::Idle {
        scaling::Idle::Sleep(SECOND)
    }
}
