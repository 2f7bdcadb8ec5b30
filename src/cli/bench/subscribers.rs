//! The process that holds the subscribers of one run.
//!
//! Says `ready` when every subscription has been welcomed and has taken its first `CATCH_UP`. Then
//! it is told `expect N`, answers `armed`, and says in one line of JSON how it went when each
//! subscriber has been told of N more notifications.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use reveille::{Client, ListenerId, QueueAddress, SubscribeOptions, Subscription};
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinSet,
};
use tokio_stream::StreamExt;

use super::{
    FleetArgs, Side,
    fleet::{ARMED, EXPECT, LATENCIES, Latencies, READY, Told},
    helper, nats, raw_nats,
    sender::{event_size, subject},
};

/// What all subscribers of this process have been told.
struct Tally {
    /// Notifications that each was told of since it was ready.
    told: Vec<AtomicU64>,
    /// What `told` is to come to.
    goal: AtomicU64,
    /// How many have come to it.
    there: AtomicU64,
    wakeups: AtomicU64,
    last_at: AtomicU64,
    ready: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
    /// Rung when all are ready, and when all have come to the goal.
    bell: Notify,
}

/// The subscribers of one connection to a nats-server.
struct NatsGroup {
    target: String,
    queue: QueueAddress,
    /// The number of the first of them, and how many there are.
    first: u64,
    count: u64,
    tally: Arc<Tally>,
    /// Lets so many connect at one time.
    gate: Arc<Semaphore>,
}

/// The longest latency told apart, in nanoseconds: a minute.
const LONGEST: u64 = 60_000_000_000;
/// Attempts to connect at one time: fewer than a server's backlog.
const CONNECTING: usize = 64;
/// A subscriber that was told of everything is listened to for this long: there must be no more.
const SETTLE: Duration = Duration::from_millis(50);
/// For a nats-server, which sends each message to each subscriber by itself.
const WIDE: usize = 128 * 1024;

/// Holds the subscribers until the parent lets go.
pub(super) async fn run(args: &FleetArgs) -> Result<()> {
    helper::raise_limits();
    let mut orders = helper::orders();
    let tally = Arc::new(Tally::new(args.subscribers)?);
    let mut tasks = start(args, &tally)?;
    until(&mut tasks, tally.rung(|tally| tally.all_ready())).await?;
    println!("{READY}");
    let mut expected = 0;
    while let Some(order) = until(&mut tasks, orders.recv()).await? {
        match order.split_once(' ') {
            Some((EXPECT, count)) => {
                let count: u64 = count.parse().context("expect N")?;
                tally.arm(expected + count);
                println!("{ARMED}");
                until(&mut tasks, tally.rung(|tally| tally.all_there())).await?;
                until(&mut tasks, tokio::time::sleep(SETTLE)).await?;
                println!("{}", serde_json::to_string(&tally.result(expected))?);
                expected += count;
            }
            None if order == LATENCIES => {
                println!("{}", serde_json::to_string(&tally.take_latencies())?);
            }
            _ => bail!("the order {order:?} is not known"),
        }
    }
    Ok(())
}

/// Starts a task for each subscriber; each ends with an error only.
fn start(args: &FleetArgs, tally: &Arc<Tally>) -> Result<JoinSet<Result<()>>> {
    let gate = Arc::new(Semaphore::new(CONNECTING));
    let queue: QueueAddress = args.queue.parse()?;
    let mut tasks = JoinSet::new();
    let mut first = 0;
    while first < args.subscribers {
        let count = args.per_connection.min(args.subscribers - first);
        match args.side {
            Side::Reveille => {
                let client = Client::new(&args.target)?;
                for index in first..first + count {
                    let id = ListenerId::new(&format!("bench-{index}"))?;
                    let options = SubscribeOptions::new(id, [queue.clone()]);
                    let subscription = client.subscribe(options)?;
                    let (tally, gate) = (Arc::clone(tally), Arc::clone(&gate));
                    tasks.spawn(listen(subscription, index, tally, gate));
                }
            }
            Side::Nats | Side::RawNats => {
                let group = NatsGroup {
                    target: args.target.clone(),
                    queue: queue.clone(),
                    first,
                    count,
                    tally: Arc::clone(tally),
                    gate: Arc::clone(&gate),
                };
                match args.side {
                    Side::RawNats => tasks.spawn(group.count_frames()),
                    _ => tasks.spawn(group.listen()),
                };
            }
        }
        first += count;
    }
    Ok(tasks)
}

/// One subscriber of a relay.
async fn listen(
    mut subscription: Subscription,
    index: u64,
    tally: Arc<Tally>,
    gate: Arc<Semaphore>,
) -> Result<()> {
    {
        let _turn = gate.acquire().await?;
        // It is not certain what a newcomer has seen: it is asked to look once.
        subscription.next().await.context("no first wake-up")??;
    }
    tally.ready(1);
    loop {
        let work = subscription.next().await.context("no more wake-ups")??;
        let published_at = work.published_at.map_or(0, nanos);
        tally.take(index, work.notifications, published_at);
    }
}

impl NatsGroup {
    /// Listens with the official client.
    async fn listen(self) -> Result<()> {
        let (client, subscribers) = {
            let _turn = self.gate.acquire().await?;
            let client = nats::connect(&self.target).await?;
            let subject = subject(&self.queue);
            let subscribers = nats::subscribe(&client, &subject, self.count).await?;
            (client, subscribers)
        };
        let mut tasks = JoinSet::new();
        for (index, mut subscriber) in (self.first..).zip(subscribers) {
            let tally = Arc::clone(&self.tally);
            tasks.spawn(async move {
                while let Some(message) = subscriber.next().await {
                    let time = message.payload.first_chunk().copied();
                    tally.take(index, 1, time.map_or(0, u64::from_le_bytes));
                }
            });
        }
        self.tally.ready(self.count);
        tasks.join_next().await;
        drop(client);
        bail!("nats-server closed the connection")
    }

    /// Listens by counting what comes.
    async fn count_frames(self) -> Result<()> {
        let mut connection = {
            let _turn = self.gate.acquire().await?;
            let mut connection = raw_nats::Connection::open(&self.target).await?;
            let (subject, payload) = (subject(&self.queue), event_size(&self.queue));
            connection.subscribe(&subject, self.count, payload).await?;
            connection
        };
        if self.tally.told.len() <= 1_000 {
            connection.widen(WIDE);
        }
        self.tally.ready(self.count);
        // Messages of one read: each has its time, or, in a burst, none.
        let (mut dated, mut undated) = (Vec::new(), 0);
        loop {
            connection
                .messages(|payload| match payload.first_chunk().copied() {
                    Some(time) if time != [0; 8] => dated.push(u64::from_le_bytes(time)),
                    _ => undated += 1,
                })
                .await?;
            for published_at in dated.drain(..) {
                self.tally.take(self.first, 1, published_at);
            }
            let messages = std::mem::take(&mut undated);
            if messages > 0 {
                self.tally
                    .wakeups
                    .fetch_add(messages - 1, Ordering::Relaxed);
                self.tally.take(self.first, messages, 0);
            }
        }
    }
}

/// Waits for `future`, unless a subscriber fails before.
async fn until<T>(tasks: &mut JoinSet<Result<()>>, future: impl Future<Output = T>) -> Result<T> {
    tokio::select! {
        biased;
        Some(ended) = tasks.join_next() => {
            ended??;
            bail!("a subscriber ended");
        }
        output = future => Ok(output),
    }
}

impl Tally {
    fn new(subscribers: u64) -> Result<Self> {
        Ok(Self {
            told: (0..subscribers).map(|_| AtomicU64::new(0)).collect(),
            goal: AtomicU64::new(0),
            there: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            last_at: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            latencies: Mutex::new(Histogram::new_with_bounds(1, LONGEST, 3)?),
            bell: Notify::new(),
        })
    }

    fn ready(&self, count: u64) {
        self.ready.fetch_add(count, Ordering::AcqRel);
        self.bell.notify_one();
    }

    fn all_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) == self.told.len() as u64
    }

    fn all_there(&self) -> bool {
        self.there.load(Ordering::Acquire) == self.told.len() as u64
    }

    /// Waits until `done`, which is looked at whenever the bell rings.
    async fn rung(&self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            self.bell.notified().await;
        }
    }

    /// Has each subscriber be told of `goal` notifications since it was ready. Nothing is published
    /// until this was answered.
    fn arm(&self, goal: u64) {
        self.there.store(0, Ordering::Release);
        self.wakeups.store(0, Ordering::Release);
        self.goal.store(goal, Ordering::Release);
    }

    /// Takes what a subscriber was told.
    fn take(&self, index: u64, notifications: u64, published_at: u64) {
        let now = nanos(SystemTime::now());
        self.wakeups.fetch_add(1, Ordering::Relaxed);
        if published_at > 0 {
            let mut latencies = self.latencies.lock().expect("nobody panics with it");
            // The clock may have been set back in between: nothing is faster than 1 ns.
            latencies.saturating_record(now.saturating_sub(published_at).max(1));
        }
        let told = &self.told[usize::try_from(index).expect("an index of it")];
        let before = told.fetch_add(notifications, Ordering::AcqRel);
        let goal = self.goal.load(Ordering::Acquire);
        if before < goal && goal <= before + notifications {
            self.last_at.fetch_max(now, Ordering::AcqRel);
            let there = self.there.fetch_add(1, Ordering::AcqRel) + 1;
            if there == self.told.len() as u64 {
                self.bell.notify_one();
            }
        }
    }

    /// Returns what was told beyond `before` notifications each.
    fn result(&self, before: u64) -> Told {
        let told = || self.told.iter().map(|told| told.load(Ordering::Acquire));
        Told {
            least: told().min().unwrap_or_default().saturating_sub(before),
            most: told().max().unwrap_or_default().saturating_sub(before),
            wakeups: self.wakeups.load(Ordering::Acquire),
            last_at: self.last_at.load(Ordering::Acquire),
        }
    }

    fn take_latencies(&self) -> Latencies {
        let mut latencies = self.latencies.lock().expect("nobody panics with it");
        let taken = Latencies {
            p50: latencies.value_at_quantile(0.5),
            p99: latencies.value_at_quantile(0.99),
            p999: latencies.value_at_quantile(0.999),
            max: latencies.max(),
        };
        latencies.reset();
        taken
    }
}

/// Returns a point in time as nanoseconds of the wall clock.
pub(super) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
