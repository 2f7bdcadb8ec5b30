//! The process of the subscribers of one run.
//!
//! It prints `ready` once every subscription has got the first `CATCH_UP` of each queue. On `expect
//! N` it prints `armed`, and one line of JSON with the result once each subscriber has got N more
//! notifications. On `steps COUNT N` it also prints `step` each time all subscribers have got N
//! more.

use std::{collections::HashSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use reveille::{Client, ClientConfig, ListenerId, QueueAddress, SubscribeOptions, Subscription};
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_stream::StreamExt;

use super::{
    Server,
    args::SubscribersArgs,
    child,
    delivery_counter::DeliveryCounter,
    nats,
    raw::{Connection, Protocol},
    sender::{event_size, subjects},
    subscriber_process::{ARMED, EXPECT, LATENCIES, READY, STEP, STEPS},
    wall_nanos::nanos,
};

/// The subscribers of one connection to a peer.
struct PeerGroup {
    target: String,
    subjects: Vec<String>,
    /// Bytes of each message's payload.
    payload: usize,
    /// The index of the first subscriber, and the number of subscribers.
    first: u64,
    count: u64,
    counter: Arc<DeliveryCounter>,
    /// Limits the number of concurrent connection attempts.
    gate: Arc<Semaphore>,
}

/// Maximum number of concurrent connection attempts: fewer than a server's backlog.
pub(super) const CONNECTING: usize = 64;
/// After the last expected notification the subscribers run for this long, and must get no more.
const SETTLE: Duration = Duration::from_millis(50);
/// Read buffer for a peer, which sends one message for each subscriber and notification.
const READ_BUFFER: usize = 128 * 1024;

/// Runs the subscribers until the parent closes the input.
pub(super) async fn run(args: &SubscribersArgs) -> Result<()> {
    child::raise_limits();
    let mut commands = child::commands();
    let counter = Arc::new(DeliveryCounter::new(args.subscribers, args.timed)?);
    let mut tasks = start(args, &counter)?;
    until(&mut tasks, counter.all_ready()).await?;
    println!("{READY}");
    let mut expected = 0;
    while let Some(order) = until(&mut tasks, commands.recv()).await? {
        let words: Vec<&str> = order.split(' ').collect();
        match words[..] {
            [EXPECT, count] => {
                let count = count.parse().context("expect N")?;
                expected += steps(&mut tasks, &counter, expected, (1, count), || {}).await?;
            }
            [STEPS, count, each] => {
                let number = |word: &str| word.parse::<u64>().context("steps COUNT N");
                let plan = (number(count)?, number(each)?);
                let on_step = || println!("{STEP}");
                expected += steps(&mut tasks, &counter, expected, plan, on_step).await?;
            }
            [LATENCIES] => println!("{}", serde_json::to_string(&counter.take_latencies())?),
            _ => bail!("the order {order:?} is not known"),
        }
    }
    Ok(())
}

/// Waits `steps` times until each subscriber has got `count` more notifications, and prints the
/// result. Returns the number of notifications expected by each subscriber.
async fn steps(
    tasks: &mut JoinSet<Result<()>>,
    counter: &DeliveryCounter,
    before: u64,
    (steps, count): (u64, u64),
    on_step: impl Fn(),
) -> Result<u64> {
    counter.restart();
    counter.expect(before + count);
    println!("{ARMED}");
    for step in 1..=steps {
        until(tasks, counter.all_finished()).await?;
        if step < steps {
            // Before the line to the parent, which publishes the next notifications then.
            counter.expect(before + (step + 1) * count);
        }
        on_step();
    }
    until(tasks, tokio::time::sleep(SETTLE)).await?;
    println!("{}", serde_json::to_string(&counter.delivered(before))?);
    Ok(steps * count)
}

/// Starts a task for each connection of a peer, or for each subscription. A task ends only with an
/// error.
fn start(args: &SubscribersArgs, counter: &Arc<DeliveryCounter>) -> Result<JoinSet<Result<()>>> {
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
            counter: Arc::clone(counter),
            gate: Arc::clone(&gate),
        };
        match args.server {
            Server::Relay(_) => {
                let config = ClientConfig::from_environment()?;
                let client = Client::with_config(&args.target, config)?;
                for index in first..first + count {
                    let id = ListenerId::new(&format!("bench-{index}"))?;
                    let subscription =
                        client.subscribe(SubscribeOptions::new(id, queues.iter().cloned()))?;
                    let (counter, gate) = (Arc::clone(counter), Arc::clone(&gate));
                    tasks.spawn(listen(subscription, queues.len(), index, counter, gate));
                }
            }
            Server::Nats => drop(tasks.spawn(group().listen())),
            Server::RawNats => drop(tasks.spawn(group().count_frames(Protocol::Nats))),
            Server::Redis => drop(tasks.spawn(group().count_frames(Protocol::Redis))),
            Server::Rabbitmq | Server::Cluster | Server::FarCluster | Server::ClusterOfOne => {
                bail!("{} takes no clients", args.server)
            }
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
    counter: Arc<DeliveryCounter>,
    gate: Arc<Semaphore>,
) -> Result<()> {
    {
        let _turn = gate.acquire().await?;
        // A new subscriber gets a CATCH_UP of each queue. The sentinel may add further checks.
        let mut named = HashSet::new();
        while named.len() < queues {
            let work = subscription.next().await.context("no first wake-up")??;
            named.insert(work.queue);
        }
    }
    counter.add_ready(1);
    loop {
        let work = subscription.next().await.context("no more wake-ups")??;
        let published_at = work.published_at.map_or(0, nanos);
        counter.record(index, work.notifications, 1, published_at);
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
            // Each subscriber has a subscription to each subject.
            let index = self.first + (at / self.subjects.len()) as u64;
            let counter = Arc::clone(&self.counter);
            tasks.spawn(async move {
                while let Some(message) = subscriber.next().await {
                    let time = message.payload.first_chunk().copied();
                    counter.record(index, 1, 1, time.map_or(0, u64::from_le_bytes));
                }
            });
        }
        self.counter.add_ready(self.count);
        tasks.join_next().await;
        drop(client);
        bail!("nats-server closed the connection")
    }

    /// Listens by counting frames.
    async fn count_frames(self, protocol: Protocol) -> Result<()> {
        let turn = self.gate.acquire().await?;
        let mut connection = Connection::open(protocol, &self.target).await?;
        connection
            .subscribe(&self.subjects, self.count, self.payload)
            .await?;
        drop(turn);
        if self.counter.subscribers() <= 1_000 {
            connection.set_buffer(READ_BUFFER);
        }
        self.counter.add_ready(self.count);
        // Messages of one read. Each has its time; messages of a burst have none.
        let (mut dated, mut undated) = (Vec::new(), 0);
        loop {
            connection
                .messages(|payload| match payload.first_chunk().copied() {
                    Some(time) if time != [0; 8] => dated.push(u64::from_le_bytes(time)),
                    _ => undated += 1,
                })
                .await?;
            for published_at in dated.drain(..) {
                self.counter.record(self.first, 1, 1, published_at);
            }
            let messages = std::mem::take(&mut undated);
            if messages > 0 {
                self.counter.record(self.first, messages, messages, 0);
            }
        }
    }
}

/// Waits for `future`, or for the failure of a subscriber.
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
