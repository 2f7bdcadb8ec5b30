//! The listener on a queue and a relay: how long a message takes from its put to its handler, what
//! that costs in storage transactions, and the same by polling.
//!
//! One message at a time, the next one when the last was handled, so that each finds the listener
//! with no task at all. The relay is a process of its own; publisher and listeners are in this one,
//! each listener on a subscription of its own. Every transaction with the queue is counted.

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
    ListenArgs,
    broker::Broker,
    progress::Progress,
    queue::Place,
    report::{Figures, Unit},
};

/// A queue whose transactions are counted.
type Counted = Arc<Metered<Arc<dyn WorkQueue>>>;

/// Listeners, and what their handlers say.
struct Fleet {
    listeners: Vec<Listener>,
    handled: mpsc::Receiver<Instant>,
}

/// How long the messages took.
struct Latencies {
    /// From the start of the put, and from the start of the notification.
    put: Histogram<u64>,
    notified: Histogram<u64>,
}

/// Listeners that settle: their first look, their CATCH_UPs and what follows are over.
const SETTLED: Duration = Duration::from_secs(4);
/// A poller sleeps about a second; a message that took longer than this was lost.
const LOST: Duration = Duration::from_secs(60);

/// Does the work once.
pub(super) async fn once(args: &ListenArgs, progress: &Progress) -> Result<Figures> {
    let place = Place::of(args.queue.as_deref())?;
    let broker = Broker::relay(args.sentinel).await?;
    let queue: Counted = Arc::new(Metered::new(place.open().await?));
    let client = Client::new(&broker.target)?;
    let publisher = client.publisher("bench");

    let mut figures = Figures::default();
    figures.add("listeners", Unit::Count, Some(args.listeners as f64));
    progress.say("pushed listeners settle");
    let mut fleet = Fleet::start(args, &queue, Some(&broker.target)).await?;
    tokio::time::sleep(SETTLED).await;
    progress.say("one message at a time, pushed");
    one_by_one(args, args.warm_up, &queue, &mut fleet, Some(&publisher)).await?;
    let (before, woken) = (queue.usage(), fleet.wake_ups());
    let took = one_by_one(args, args.messages, &queue, &mut fleet, Some(&publisher)).await?;
    tokio::time::sleep(args.settle()).await;
    let (used, woken) = (queue.usage().since(&before), fleet.wake_ups() - woken);
    pushed(&mut figures, args, &took, &used, woken);
    progress.say("idle, pushed");
    idle(&mut figures, args, &queue, "idle transactions/min").await?;
    fleet.stop().await;
    if args.polled > 0 {
        polled(&mut figures, args, &queue, progress).await?;
    }
    figures.add("fdatasync", Unit::Micros, place.fdatasync()?);
    broker.stop().await;
    Ok(figures)
}

/// The same without a relay.
async fn polled(
    figures: &mut Figures,
    args: &ListenArgs,
    queue: &Counted,
    progress: &Progress,
) -> Result<()> {
    progress.say("one message at a time, polled");
    let mut fleet = Fleet::start(args, queue, None).await?;
    tokio::time::sleep(SETTLED).await;
    let before = queue.usage();
    let took = one_by_one(args, args.polled, queue, &mut fleet, None).await?;
    let used = queue.usage().since(&before);
    spans(figures, ["polled p50", "polled p99"], &took.put);
    let each = used.total() as f64 / args.polled as f64;
    figures.add("polled transactions/message", Unit::Count, Some(each));
    progress.say("idle, polled");
    idle(figures, args, queue, "polled idle transactions/min").await?;
    fleet.stop().await;
    Ok(())
}

/// Counts the transactions of an idle minute.
async fn idle(
    figures: &mut Figures,
    args: &ListenArgs,
    queue: &Counted,
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

/// Returns how many requests Azurite has printed: a line each, as web servers print them.
pub(super) fn requests(log: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(log)
        .with_context(|| format!("--azurite-log {} cannot be read", log.display()))?;
    Ok(text.matches(" HTTP/1.1\" ").count() as u64)
}

/// Puts one message, notifies, and waits until it is handled; again and again.
async fn one_by_one(
    args: &ListenArgs,
    count: u64,
    queue: &Counted,
    fleet: &mut Fleet,
    publisher: Option<&Publisher>,
) -> Result<Latencies> {
    let mut took = Latencies::new()?;
    for number in 0..count {
        // By polling, the pause decides where in the sleep a message falls.
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
        let handled = tokio::time::timeout(LOST, fleet.handled.recv()).await;
        let handled = handled.context("a message was lost")?;
        took.add(put, notified, handled.context("the listeners have ended")?)?;
    }
    Ok(took)
}

impl Fleet {
    async fn start(args: &ListenArgs, queue: &Counted, relay: Option<&str>) -> Result<Self> {
        let (said, handled) = mpsc::channel(16);
        let mut listeners = Vec::new();
        let config = ListenerConfig {
            dequeue_batch_size: 1,
            ..ListenerConfig::default()
        };
        // As many listeners as may share a connection do.
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
            let said = said.clone();
            let started = builder.start(move |_: Delivery| {
                let said = said.clone();
                async move {
                    said.send(Instant::now()).await?;
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

impl Latencies {
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
    /// Returns how long the last message's empty gets may take.
    fn settle(&self) -> Duration {
        Duration::from_secs(if self.listeners > 1 { 3 } else { 1 })
    }
}

fn pushed(
    figures: &mut Figures,
    args: &ListenArgs,
    took: &Latencies,
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
    // The put is its publisher's.
    let theirs = used.total() - used.puts;
    figures.add("transactions/message", Unit::Count, each(theirs));
}

fn spans(figures: &mut Figures, names: [&'static str; 2], took: &Histogram<u64>) {
    for (name, quantile) in names.into_iter().zip([0.5, 0.99]) {
        let micros = took.value_at_quantile(quantile) as f64 / 1e3;
        figures.add(name, Unit::Micros, Some(micros));
    }
}
