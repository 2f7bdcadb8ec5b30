//! Listeners on a queue, with a relay and by polling: measures the latency from put to handler, and
//! the storage transactions.
//!
//! One message at a time: each is put after the former one was handled, so that the listener has no
//! dequeue task then. The relay is a separate process. Publisher and listeners are in this process,
//! and each listener has a separate subscription. Every transaction with the queue is counted.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use reveille::{
    Client, ListenerId, Notification, Publisher,
    listener::{Delivery, Listener, ListenerConfig},
    queue::{Metered, NewMessage, QueueUsage, WorkQueue},
};
use tokio::sync::mpsc;

use super::{
    args::ListenArgs,
    broker::{Broker, sentinel},
    progress::Progress,
    queue::BenchQueue,
    report::{Figures, Unit},
};

/// A queue that counts its transactions.
type MeteredQueue = Arc<Metered<Arc<dyn WorkQueue>>>;

/// Listeners, and the times at which their handlers ran.
struct Listeners {
    listeners: Vec<Listener>,
    handled: mpsc::Receiver<Instant>,
}

/// MessageLatencies of the messages.
struct MessageLatencies {
    /// From the start of the put, and from the start of the notification.
    put: Histogram<u64>,
    notified: Histogram<u64>,
}

/// Time until new listeners are idle: after their first gets and their CATCH_UPs.
const SETTLE: Duration = Duration::from_secs(4);
/// A message that takes longer than this is lost. A polling listener sleeps about a second.
const LOSS_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the benchmark once.
pub(super) async fn once(args: &ListenArgs, progress: &Progress) -> Result<Figures> {
    let target = BenchQueue::of(&args.queue)?;
    let broker = Broker::relay(&[sentinel(args.sentinel)]).await?;
    let queue: MeteredQueue = Arc::new(Metered::new(target.open().await?));
    let client = Client::new(&broker.target)?;
    let publisher = client.publisher("bench");

    let mut figures = Figures::default();
    figures.add("listeners", Unit::Count, args.listeners as f64);
    progress.step("pushed listeners settle");
    let mut listeners = Listeners::start(args, &queue, Some(&broker.target)).await?;
    tokio::time::sleep(SETTLE).await;
    progress.step("one message at a time, pushed");
    one_by_one(args, args.warm_up, &queue, &mut listeners, Some(&publisher)).await?;
    let (before, woken) = (queue.usage(), listeners.wake_ups());
    let took = one_by_one(
        args,
        args.messages,
        &queue,
        &mut listeners,
        Some(&publisher),
    )
    .await?;
    tokio::time::sleep(args.settle()).await;
    let (used, woken) = (queue.usage().since(&before), listeners.wake_ups() - woken);
    pushed(&mut figures, args, &took, &used, woken);
    progress.step("idle, pushed");
    idle(&mut figures, args, &queue, "idle transactions/min").await?;
    listeners.stop().await;
    if args.polled > 0 {
        polled(&mut figures, args, &queue, progress).await?;
    }
    figures.add("fdatasync", Unit::Micros, target.fdatasync()?);
    broker.stop().await;
    Ok(figures)
}

/// Measures the same without a relay.
async fn polled(
    figures: &mut Figures,
    args: &ListenArgs,
    queue: &MeteredQueue,
    progress: &Progress,
) -> Result<()> {
    progress.step("one message at a time, polled");
    let mut listeners = Listeners::start(args, queue, None).await?;
    tokio::time::sleep(SETTLE).await;
    let before = queue.usage();
    let took = one_by_one(args, args.polled, queue, &mut listeners, None).await?;
    let used = queue.usage().since(&before);
    spans(figures, ["polled p50", "polled p99"], &took.put);
    let each = used.total() as f64 / args.polled as f64;
    figures.add("polled transactions/message", Unit::Count, each);
    progress.step("idle, polled");
    idle(figures, args, queue, "polled idle transactions/min").await?;
    listeners.stop().await;
    Ok(())
}

/// Counts the transactions of an idle minute.
async fn idle(
    figures: &mut Figures,
    args: &ListenArgs,
    queue: &MeteredQueue,
    name: &'static str,
) -> Result<()> {
    let log = || args.azurite_log.as_deref().map(requests).transpose();
    let (before, logged) = (queue.usage(), log()?);
    tokio::time::sleep(args.hold).await;
    let used = queue.usage().since(&before).total();
    let minute = |count: u64| Some(count as f64 * 60.0 / args.hold.as_secs_f64());
    figures.add(name, Unit::Count, minute(used));
    if let Some((logged, before)) = log()?.zip(logged) {
        figures.add(
            "the same by Azurite's log",
            Unit::Count,
            minute(logged - before),
        );
    }
    Ok(())
}

/// Returns the number of requests in Azurite's output, which has one line for each.
pub(super) fn requests(log: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(log)
        .with_context(|| format!("--azurite-log {} cannot be read", log.display()))?;
    Ok(text.matches(" HTTP/1.1\" ").count() as u64)
}

/// Puts one message, notifies, and waits until it is handled, `count` times.
async fn one_by_one(
    args: &ListenArgs,
    count: u64,
    queue: &MeteredQueue,
    listeners: &mut Listeners,
    publisher: Option<&Publisher>,
) -> Result<MessageLatencies> {
    let mut took = MessageLatencies::new()?;
    for number in 0..count {
        // For polling, the pause varies the time of the put within the listener's sleep.
        let pause = match publisher {
            Some(_) => args.pause,
            None => args.pause + Duration::from_millis(number * 137 % 1000),
        };
        tokio::time::sleep(pause).await;
        let put = Instant::now();
        queue.put(vec![NewMessage::new(number.to_string())]).await?;
        let notified = Instant::now();
        if let Some(publisher) = publisher {
            let notification = Notification {
                messages: 1,
                ..Notification::new(queue.address().clone())
            };
            publisher.notify(notification).await?;
        }
        let handled = tokio::time::timeout(LOSS_TIMEOUT, listeners.handled.recv()).await;
        let handled = handled.context("a message was lost")?;
        took.add(put, notified, handled.context("the listeners have ended")?)?;
    }
    Ok(took)
}

impl Listeners {
    async fn start(args: &ListenArgs, queue: &MeteredQueue, relay: Option<&str>) -> Result<Self> {
        let (sender, handled) = mpsc::channel(16);
        let mut listeners = Vec::new();
        let config = ListenerConfig {
            dequeue_batch_size: 1,
            ..ListenerConfig::default()
        };
        // 100 listeners share a connection.
        let clients = relay.map(|relay| -> Result<Vec<Client>> {
            let connect = |_| Ok(Client::new(relay)?);
            (0..args.listeners.div_ceil(100)).map(connect).collect()
        });
        let clients = clients.transpose()?;
        for number in 0..args.listeners {
            let queue: Arc<dyn WorkQueue> = Arc::clone(queue) as _;
            let mut builder = Listener::builder(Arc::clone(&queue)).config(config.clone());
            if let Some(clients) = &clients {
                let id = ListenerId::new(&format!("bench-{number}"))?;
                let mut options = config.subscription(id, &*queue);
                if args.no_group {
                    options.group = None;
                }
                let client = &clients[usize::try_from(number / 100)?];
                builder = builder.wakes(client.subscribe(options)?);
            }
            let sender = sender.clone();
            let started = builder.start(move |_: Delivery| {
                let sender = sender.clone();
                async move {
                    sender.send(Instant::now()).await?;
                    Ok(())
                }
            });
            listeners.push(started.await?);
        }
        Ok(Self { listeners, handled })
    }

    fn wake_ups(&self) -> u64 {
        let states = self.listeners.iter().map(Listener::state);
        states.map(|state| state.stats.wake_ups).sum()
    }

    async fn stop(self) {
        for listener in self.listeners {
            listener.shutdown().await;
        }
    }
}

impl MessageLatencies {
    fn new() -> Result<Self> {
        Ok(Self {
            put: Histogram::new(3)?,
            notified: Histogram::new(3)?,
        })
    }

    fn add(&mut self, put: Instant, notified: Instant, handled: Instant) -> Result<()> {
        let nanos = |from| u64::try_from(handled.saturating_duration_since(from).as_nanos());
        self.put.record(nanos(put)?)?;
        self.notified.record(nanos(notified)?)?;
        Ok(())
    }
}

impl ListenArgs {
    /// Returns the time for the empty gets after the last message.
    fn settle(&self) -> Duration {
        Duration::from_secs(if self.listeners > 1 { 3 } else { 1 })
    }
}

fn pushed(
    figures: &mut Figures,
    args: &ListenArgs,
    took: &MessageLatencies,
    used: &QueueUsage,
    woken: u64,
) {
    let each = |count: u64| Some(count as f64 / args.messages as f64);
    spans(
        figures,
        ["put to handler p50", "put to handler p99"],
        &took.put,
    );
    spans(
        figures,
        ["notify to handler p50", "notify to handler p99"],
        &took.notified,
    );
    figures.add("wake-ups/message", Unit::Count, each(woken));
    // The puts are transactions of the publisher.
    let listeners = used.total() - used.puts;
    figures.add("transactions/message", Unit::Count, each(listeners));
}

fn spans(figures: &mut Figures, names: [&'static str; 2], took: &Histogram<u64>) {
    for (name, quantile) in names.into_iter().zip([0.5, 0.99]) {
        let micros = took.value_at_quantile(quantile) as f64 / 1e3;
        figures.add(name, Unit::Micros, micros);
    }
}
