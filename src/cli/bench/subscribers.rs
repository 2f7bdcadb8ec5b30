//! The process that holds the subscribers of one run.
//!
//! Says `ready` when every subscription has been welcomed and has taken the first `CATCH_UP` of each
//! queue. Then it is told `expect N`, answers `armed`, and says in one line of JSON how it went when
//! each subscriber has been told of N more notifications. On `steps COUNT N` it says `step` as well
//! each time that all subscribers have been told of N more.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use reveille::{Client, ListenerId, QueueAddress, SubscribeOptions, Subscription};
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_stream::StreamExt;

use super::{
    FleetArgs, Side,
    fleet::{ARMED, EXPECT, LATENCIES, READY, STEP, STEPS},
    helper, nats,
    raw::{Connection, Protocol},
    sender::{event_size, subjects},
    tally::Tally,
};

/// The subscribers of one connection to a peer.
struct PeerGroup {
    target: String,
    subjects: Vec<String>,
    /// Bytes of each message's payload.
    payload: usize,
    /// The number of the first of them, and how many there are.
    first: u64,
    count: u64,
    tally: Arc<Tally>,
    /// Lets so many connect at one time.
    gate: Arc<Semaphore>,
}

/// Attempts to connect at one time: fewer than a server's backlog.
const CONNECTING: usize = 64;
/// A subscriber that was told of everything is listened to for this long: there must be no more.
const SETTLE: Duration = Duration::from_millis(50);
/// For a peer, which sends each message to each subscriber by itself.
const WIDE: usize = 128 * 1024;

/// Holds the subscribers until the parent lets go.
pub(super) async fn run(args: &FleetArgs) -> Result<()> {
    helper::raise_limits();
    let mut orders = helper::orders();
    let tally = Arc::new(Tally::new(args.subscribers, args.timed)?);
    let mut tasks = start(args, &tally)?;
    until(&mut tasks, tally.all_ready()).await?;
    println!("{READY}");
    let mut expected = 0;
    while let Some(order) = until(&mut tasks, orders.recv()).await? {
        let words: Vec<&str> = order.split(' ').collect();
        match words[..] {
            [EXPECT, count] => {
                let count = count.parse().context("expect N")?;
                expected += steps(&mut tasks, &tally, expected, (1, count), || {}).await?;
            }
            [STEPS, count, each] => {
                let number = |word: &str| word.parse::<u64>().context("steps COUNT N");
                let plan = (number(count)?, number(each)?);
                let say = || println!("{STEP}");
                expected += steps(&mut tasks, &tally, expected, plan, say).await?;
            }
            [LATENCIES] => println!("{}", serde_json::to_string(&tally.take_latencies())?),
            _ => bail!("the order {order:?} is not known"),
        }
    }
    Ok(())
}

/// Waits until each subscriber was told of so many notifications more, so many times, and says how
/// it went. Returns how many were expected of each.
async fn steps(
    tasks: &mut JoinSet<Result<()>>,
    tally: &Tally,
    before: u64,
    (steps, count): (u64, u64),
    say: impl Fn(),
) -> Result<u64> {
    tally.restart();
    tally.expect(before + count);
    println!("{ARMED}");
    for step in 1..=steps {
        until(tasks, tally.all_told()).await?;
        if step < steps {
            // Before the parent is told: it publishes the next then.
            tally.expect(before + (step + 1) * count);
        }
        say();
    }
    until(tasks, tokio::time::sleep(SETTLE)).await?;
    println!("{}", serde_json::to_string(&tally.told(before))?);
    Ok(steps * count)
}

/// Starts a task for each connection of a peer, or for each subscription; each ends with an error
/// only.
fn start(args: &FleetArgs, tally: &Arc<Tally>) -> Result<JoinSet<Result<()>>> {
    let gate = Arc::new(Semaphore::new(CONNECTING));
    let queues: Vec<QueueAddress> = args
        .queue
        .iter()
        .map(|queue| queue.parse())
        .collect::<Result<_, _>>()?;
    let mut tasks = JoinSet::new();
    let mut first = 0;
    while first < args.subscribers {
        let count = args.per_connection.min(args.subscribers - first);
        let group = || PeerGroup {
            target: args.target.clone(),
            subjects: subjects(&queues),
            payload: event_size(&queues[0]),
            first,
            count,
            tally: Arc::clone(tally),
            gate: Arc::clone(&gate),
        };
        match args.side {
            Side::Reveille => {
                let client = Client::new(&args.target)?;
                for index in first..first + count {
                    let id = ListenerId::new(&format!("bench-{index}"))?;
                    let subscription =
                        client.subscribe(SubscribeOptions::new(id, queues.iter().cloned()))?;
                    let (tally, gate) = (Arc::clone(tally), Arc::clone(&gate));
                    tasks.spawn(listen(subscription, queues.len(), index, tally, gate));
                }
            }
            Side::Nats => drop(tasks.spawn(group().listen())),
            Side::RawNats => drop(tasks.spawn(group().count_frames(Protocol::Nats))),
            Side::Redis => drop(tasks.spawn(group().count_frames(Protocol::Redis))),
        }
        first += count;
    }
    Ok(tasks)
}

/// One subscriber of a relay.
async fn listen(
    mut subscription: Subscription,
    queues: usize,
    index: u64,
    tally: Arc<Tally>,
    gate: Arc<Semaphore>,
) -> Result<()> {
    {
        let _turn = gate.acquire().await?;
        // It is not certain what a newcomer has seen: it is told to check each queue once. The
        // relay may ask for a check of one of them again meanwhile.
        let mut named = HashSet::new();
        while named.len() < queues {
            let work = subscription.next().await.context("no first wake-up")??;
            named.insert(work.queue);
        }
    }
    tally.ready(1);
    loop {
        let work = subscription.next().await.context("no more wake-ups")??;
        let published_at = work.published_at.map_or(0, nanos);
        tally.take(index, work.notifications, 1, published_at);
    }
}

impl PeerGroup {
    /// Listens with the official client of NATS.
    async fn listen(self) -> Result<()> {
        let turn = self.gate.acquire().await?;
        let client = nats::connect(&self.target).await?;
        let subscribers = nats::subscribe(&client, &self.subjects, self.count).await?;
        drop(turn);
        let mut tasks = JoinSet::new();
        for (at, mut subscriber) in subscribers.into_iter().enumerate() {
            // Each of them has a subscription to each subject.
            let index = self.first + (at / self.subjects.len()) as u64;
            let tally = Arc::clone(&self.tally);
            tasks.spawn(async move {
                while let Some(message) = subscriber.next().await {
                    let time = message.payload.first_chunk().copied();
                    tally.take(index, 1, 1, time.map_or(0, u64::from_le_bytes));
                }
            });
        }
        self.tally.ready(self.count);
        tasks.join_next().await;
        drop(client);
        bail!("nats-server closed the connection")
    }

    /// Listens by counting what comes.
    async fn count_frames(self, protocol: Protocol) -> Result<()> {
        let turn = self.gate.acquire().await?;
        let mut connection = Connection::open(protocol, &self.target).await?;
        connection
            .subscribe(&self.subjects, self.count, self.payload)
            .await?;
        drop(turn);
        if self.tally.subscribers() <= 1_000 {
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
                self.tally.take(self.first, 1, 1, published_at);
            }
            let messages = std::mem::take(&mut undated);
            if messages > 0 {
                self.tally.take(self.first, messages, messages, 0);
            }
        }
    }
}

/// Waits for `future`, unless a subscriber fails before.
pub(super) async fn until<T>(
    tasks: &mut JoinSet<Result<()>>,
    future: impl Future<Output = T>,
) -> Result<T> {
    tokio::select! {
        biased;
        Some(ended) = tasks.join_next() => {
            ended??;
            bail!("a subscriber ended");
        }
        output = future => Ok(output),
    }
}

/// Returns a point in time as nanoseconds of the wall clock.
pub(super) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
