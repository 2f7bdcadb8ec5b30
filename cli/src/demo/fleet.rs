//! A fleet of the demo: its listeners, the initiator that puts their work, and the controller that adds
//! up their results.
//!
//! Each listener has at most one dequeue task and a connection of its own. The ways differ only in how
//! work is found.

use std::{
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
    Client, FlagName, FlagWatch, FlagWatcher, ListenerId, Notification, Publisher,
    listener::{
        Delivery, HandlerResult, Hooks, Listener, ListenerBuilder, ListenerConfig, ListenerMode,
        ListenerStats, Rejected,
    },
    queue::{Message, NewMessage, SqliteQueue, WorkQueue, json},
    scaling,
};
use tokio::{
    sync::{Barrier, watch},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use super::{
    FLAG, Way,
    billing::{ITEMS, Rated, Totals, WorkItem, sum},
};

pub(super) struct Fleet {
    pub(super) way: Way,
    rating: Arc<Rating>,
    /// The controller is the first one.
    listeners: Vec<Listener>,
    totals: watch::Sender<Totals>,
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

/// Hooks of a polling listener: sleep one second after an empty get.
struct PollEverySecond;

/// Measurements without work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Idle {
    pub(super) tasks: usize,
    pub(super) transactions: u64,
}

/// Measurements of the batch.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The time of each work item from put to handling.
    pub(super) waited: Vec<Duration>,
    /// Time from the last put until no dequeue task is left.
    pub(super) at_zero: Option<Duration>,
    pub(super) transactions: u64,
}

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
    /// Creates the queues, starts the controller, and parks the listeners on the flag. Starts them when
    /// it is set; returns also the time from the unleash to the last release.
    pub(super) async fn start(
        way: Way,
        size: usize,
        relay: &str,
        home: &Path,
        parked: &Barrier,
    ) -> anyhow::Result<(Self, Duration)> {
        let client = Client::new(relay)?;
        let rating = Arc::new(Rating {
            input: create_queue(way, "input", home).await?,
            output: create_queue(way, "output", home).await?,
            puts: AtomicU64::new(0),
            publisher: (way == Way::Woken).then(|| client.publisher(way.name())),
        });
        let totals = watch::Sender::new(Totals::default());
        let added_to = totals.clone();
        let add = move |rated: Rated, _: Delivery| {
            added_to.send_modify(|totals| totals.add(&rated));
            ready(Ok(()))
        };
        let id = ListenerId::new(&format!("{}-controller", way.name()))?;
        let controller = way.listener(&client, id, &rating.output)?;
        let mut listeners = vec![controller.start_json(add).await?];
        let started = (1..=size).map(|number| start_parked(way, number, relay, &rating, parked));
        let mut released_after = Duration::ZERO;
        for (listener, after) in try_join_all(started).await? {
            listeners.push(listener);
            released_after = released_after.max(after);
        }
        let fleet = Self {
            way,
            rating,
            listeners,
            totals,
        };
        Ok((fleet, released_after))
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

    pub(super) async fn idle(&self, span: Duration) -> Idle {
        let before = self.transactions();
        sleep(span).await;
        Idle {
            tasks: self.tasks(),
            transactions: self.transactions() - before,
        }
    }

    /// Puts the batch in parts, and waits until all results have arrived. Their total must be exact.
    pub(super) async fn work(&self, batch: &[WorkItem]) -> anyhow::Result<Outcome> {
        self.totals.send_replace(Totals::default());
        let before = self.transactions();
        let mut last_put = Instant::now();
        let mut ticks = interval(PUT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for items in batch.chunks(ITEMS_PER_PUT) {
            ticks.tick().await;
            self.put(items).await?;
            last_put = Instant::now();
        }
        let mut totals = self.totals.subscribe();
        let complete = totals.wait_for(|totals| totals.items() == ITEMS);
        timeout(TIMEOUT, complete)
            .await
            .context("results are missing")??;
        let at_zero = match self.way {
            Way::Woken => Some(self.wait_idle().await?.duration_since(last_put)),
            Way::Polling => None,
        };
        let totals = self.totals.borrow().clone();
        anyhow::ensure!(totals.cents == sum(batch), "the total is not exact");
        Ok(Outcome {
            waited: totals.waited,
            at_zero,
            transactions: self.transactions() - before,
        })
    }

    /// Puts work items, and notifies.
    async fn put(&self, items: &[WorkItem]) -> anyhow::Result<()> {
        let messages = items
            .iter()
            .map(json::encode)
            .collect::<Result<Vec<_>, _>>()?;
        let notification = Notification {
            payload_size: messages
                .iter()
                .map(|message| message.body.len() as u64)
                .sum(),
            messages: messages.len() as u64,
            ..Notification::new(self.rating.input.address().clone())
        };
        self.rating.put(&self.rating.input, messages).await?;
        if let Some(publisher) = &self.rating.publisher {
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
            Way::Woken => one.state().mode == ListenerMode::Pushed,
        };
        self.listeners.iter().all(is_ready)
            && self.sum(|stats| stats.handled) >= self.rating.puts.load(Relaxed)
            && (self.way == Way::Polling || self.tasks() == 0)
    }

    fn tasks(&self) -> usize {
        let listeners = self.listeners.iter();
        listeners.map(|one| one.state().active_dequeue_tasks).sum()
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

/// Waits for the flag, and starts a listener. Returns also the time since the unleash.
async fn start_parked(
    way: Way,
    number: usize,
    relay: &str,
    rating: &Arc<Rating>,
    parked: &Barrier,
) -> anyhow::Result<(Listener, Duration)> {
    let id = ListenerId::new(&format!("{}-{number}", way.name()))?;
    let client = Client::new(relay)?;
    let mut watch = client.watch_flag(FlagName::new(FLAG)?, id.clone());
    let state = watch.next().await.context("the watch ended")??;
    anyhow::ensure!(!state.set, "the flag is set before the start");
    parked.wait().await;
    let after = released(&mut watch).await?;
    if way == Way::Polling {
        // Polling listeners do not start all at the same moment.
        sleep(SECOND.mul_f64(fastrand::f64())).await;
    }
    let builder = way.listener(&client, id, &rating.input)?;
    let rating = Arc::clone(rating);
    let rate = move |delivery: Delivery| {
        let rating = Arc::clone(&rating);
        async move { rating.rate(&delivery.message).await }
    };
    Ok((builder.start(rate).await?, after))
}

/// Waits until the flag is set. Returns the time since the unleash.
pub(super) async fn released(watch: &mut FlagWatcher) -> anyhow::Result<Duration> {
    loop {
        let state = watch.next().await.context("the watch ended")??;
        if state.set {
            let after = state.set_at.and_then(|at| at.elapsed().ok());
            watch.ack(state.generation).await?;
            return Ok(after.unwrap_or_default());
        }
    }
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
        id: ListenerId,
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
                let options = config.subscription(id, queue);
                builder.wakes(client.subscribe(options)?).config(config)
            }
        })
    }
}

impl Rating {
    async fn put(&self, queue: &SqliteQueue, messages: Vec<NewMessage>) -> reveille::Result<()> {
        let count = messages.len() as u64;
        queue.put(messages).await?;
        self.puts.fetch_add(count, Relaxed);
        Ok(())
    }

    /// Rates a work item, puts the result, and notifies.
    async fn rate(&self, message: &Message) -> HandlerResult {
        let waited = message.inserted_at.elapsed().unwrap_or_default();
        let item: WorkItem = json::decode(&message.body).map_err(Rejected::because)?;
        let rated = json::encode(&item.rate(waited))?;
        self.put(&self.output, vec![rated]).await?;
        if let Some(publisher) = &self.publisher {
            let notification = Notification::new(self.output.address().clone());
            publisher.notify(notification).await?;
        }
        Ok(())
    }
}

impl Hooks for PollEverySecond {
    fn on_queue_empty(&self, _idle_count: u32, _proposed: scaling::Idle) -> scaling::Idle {
        scaling::Idle::Sleep(SECOND)
    }
}
