//! The process of the subscribers of one run.
//!
//! It prints `ready` once every subscription has got the first `CATCH_UP` of each queue. On `expect
//! STEPS N` it prints `armed`, then `step` each time all subscribers have got N more notifications.
//! Instead of the last `step` it prints one line of JSON with the result.

use std::{collections::HashSet, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use futures_util::StreamExt as _;
use reveille::{Client, ClientConfig, ListenerId, QueueAddress, SubscribeOptions, Subscription};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    child,
    delivery_counter::DeliveryCounter,
    peers::{connect_nats, nats_barrier, redis_client},
    sender::subject,
    server::{Protection, Server},
    subscriber_process::{ARMED, EXPECT, LATENCIES, READY, STEP, wall_nanos},
};

/// The arguments of the subscribers' process.
#[derive(Debug, Clone, Args)]
pub(crate) struct SubscribersArgs {
    #[arg(long, value_parser = server)]
    server: Server,
    #[arg(long)]
    target: String,
    /// The queues; each subscriber subscribes to all of them.
    #[arg(long, required = true)]
    queue: Vec<QueueAddress>,
    #[arg(long)]
    subscribers: u64,
    #[arg(long)]
    per_connection: u64,
    /// Record the latency of each wake-up.
    #[arg(long)]
    timed: bool,
}

/// The subscribers of one connection to a peer.
struct PeerGroup {
    target: String,
    subjects: Vec<String>,
    /// The index of the first subscriber, and the number of subscribers.
    first: u64,
    count: u64,
    counter: Arc<DeliveryCounter>,
    /// Limits the number of concurrent connection attempts.
    gate: Arc<Semaphore>,
}

/// Maximum number of concurrent connection attempts: fewer than a server's backlog.
const CONNECTING: usize = 64;
/// After the last expected notification the subscribers run for this long, and must get no more.
const SETTLE: Duration = Duration::from_millis(50);

fn server(name: &str) -> Result<Server, String> {
    use clap::ValueEnum as _;
    match name == Server::RELAY.to_string() {
        true => Ok(Server::Relay(Protection::None)),
        false => Server::from_str(name, false),
    }
}

/// Runs the subscribers until the parent closes the input.
pub(crate) async fn run(args: &SubscribersArgs) -> Result<()> {
    child::raise_limits();
    let mut commands = child::commands();
    let counter = Arc::new(DeliveryCounter::new(args.subscribers, args.timed));
    let mut tasks = start(args, &counter)?;
    until(&mut tasks, counter.all_ready()).await?;
    println!("{READY}");
    let mut expected = 0;
    while let Some(order) = until(&mut tasks, commands.recv()).await? {
        match order.split(' ').collect::<Vec<_>>()[..] {
            [EXPECT, count, each] => {
                let (count, each): (u64, u64) = (count.parse()?, each.parse()?);
                steps(&mut tasks, &counter, expected, (count, each)).await?;
                expected += count * each;
            }
            [LATENCIES] => println!("{}", serde_json::to_string(&counter.take_latencies())?),
            _ => bail!("the order {order:?} is not known"),
        }
    }
    Ok(())
}

/// Waits `steps` times until each subscriber has got `count` more notifications, and prints the
/// result.
async fn steps(
    tasks: &mut JoinSet<Result<()>>,
    counter: &DeliveryCounter,
    before: u64,
    (steps, count): (u64, u64),
) -> Result<()> {
    counter.restart();
    counter.expect(before + count);
    println!("{ARMED}");
    for step in 1..=steps {
        until(tasks, counter.all_finished()).await?;
        if step < steps {
            // Before the line to the parent, which publishes the next notifications then.
            counter.expect(before + (step + 1) * count);
            println!("{STEP}");
        }
    }
    until(tasks, tokio::time::sleep(SETTLE)).await?;
    println!("{}", serde_json::to_string(&counter.delivered(before))?);
    Ok(())
}

/// Starts a task for each connection of a peer, or for each subscription. A task ends only with an
/// error.
fn start(args: &SubscribersArgs, counter: &Arc<DeliveryCounter>) -> Result<JoinSet<Result<()>>> {
    let gate = Arc::new(Semaphore::new(CONNECTING));
    let mut tasks = JoinSet::new();
    let mut first = 0;
    while first < args.subscribers {
        let count = args.per_connection.min(args.subscribers - first);
        let group = || PeerGroup {
            target: args.target.clone(),
            subjects: args.queue.iter().map(subject).collect(),
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
                    let options = SubscribeOptions::new(id, args.queue.iter().cloned());
                    let subscription = client.subscribe(options)?;
                    let (counter, gate) = (Arc::clone(counter), Arc::clone(&gate));
                    tasks.spawn(listen(subscription, args.queue.len(), index, counter, gate));
                }
            }
            Server::Nats => drop(tasks.spawn(group().listen_to_nats())),
            Server::Redis => drop(tasks.spawn(group().listen_to_redis())),
            Server::Cluster(_) => bail!("a cluster takes no clients"),
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
    let turn = gate.acquire().await?;
    // A new subscriber gets a CATCH_UP of each queue. The sentinel may add further checks.
    let mut named = HashSet::new();
    while named.len() < queues {
        let work = subscription.next().await.context("no first wake-up")??;
        named.insert(work.queue);
    }
    drop(turn);
    counter.add_ready(1);
    loop {
        let work = subscription.next().await.context("no more wake-ups")??;
        let published_at = work.last_event.published_at.map_or(0, wall_nanos);
        counter.record(index, work.notifications, 1, published_at);
    }
}

impl PeerGroup {
    async fn listen_to_nats(self) -> Result<()> {
        let turn = self.gate.acquire().await?;
        let client = connect_nats(&self.target).await?;
        let mut tasks = JoinSet::new();
        for index in self.first..self.first + self.count {
            for subject in &self.subjects {
                let mut messages = client.subscribe(subject.clone()).await?;
                let counter = Arc::clone(&self.counter);
                tasks.spawn(async move {
                    while let Some(message) = messages.next().await {
                        record(&counter, index, &message.payload);
                    }
                });
            }
        }
        nats_barrier(&client).await?;
        drop(turn);
        self.counter.add_ready(self.count);
        tasks.join_next().await;
        bail!("nats-server closed the connection")
    }

    async fn listen_to_redis(self) -> Result<()> {
        ensure!(self.count == 1, "a connection to Redis is one subscriber");
        let turn = self.gate.acquire().await?;
        let mut connection = redis_client(&self.target)?.get_async_pubsub().await?;
        connection.subscribe(&self.subjects).await?;
        drop(turn);
        self.counter.add_ready(1);
        let mut messages = connection.into_on_message();
        while let Some(message) = messages.next().await {
            record(&self.counter, self.first, message.get_payload_bytes());
        }
        bail!("redis-server closed the connection")
    }
}

/// Records a peer's message, which begins with the time of publishing, or with 0 in a burst.
fn record(counter: &DeliveryCounter, index: u64, payload: &[u8]) {
    let time = payload.first_chunk().copied();
    counter.record(index, 1, 1, time.map_or(0, u64::from_le_bytes));
}

/// Waits for `future`, or for the failure of a subscriber.
pub(crate) async fn until<T>(
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
