//! Listeners on a queue, with a relay and by polling: measures the latency from put to handler, and
//! the storage transactions.
//!
//! One message at a time: each is put after the former one was handled, so that the listener has no
//! dequeue task then. The relay is a separate process. Publisher and listeners are in this process,
//! and each listener has a separate subscription. Every transaction with the queue is counted.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::Args;
use reveille::{
    Client, ListenerId, Notification, Publisher, duration,
    listener::{Delivery, Listener, ListenerConfig},
    queue::{NewMessage, WorkQueue},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{
    Benchmark,
    broker::Broker,
    latencies::Latencies,
    metered::Metered,
    positive,
    queue::{BenchQueue, QueueTarget},
    report::{Figures, Unit},
    server::Server,
    step,
};

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench job --messages 1000")]
pub(crate) struct JobArgs {
    #[command(flatten)]
    queue: QueueTarget,
    /// Number of measured messages.
    #[arg(long, default_value_t = 2_000, value_parser = positive())]
    messages: u64,
    /// Number of messages before them, which are not measured.
    #[arg(long, default_value_t = 100, value_parser = positive())]
    warm_up: u64,
    /// Pause before each message.
    #[arg(long, default_value = "2ms", value_parser = duration::parse)]
    pause: Duration,
    /// Number of listeners on the queue.
    #[arg(long, default_value_t = 1, value_parser = positive())]
    listeners: u64,
    /// Listeners without a group: a message wakes all of them instead of one.
    #[arg(long)]
    no_group: bool,
    /// Number of messages that the same listeners handle by polling; 0 skips this part.
    #[arg(long, default_value_t = 20)]
    polled: u64,
    /// Duration of the idle phases.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    hold: Duration,
}

/// A queue that counts its transactions.
type MeteredQueue = Arc<Metered<dyn WorkQueue>>;

/// Listeners, and the times at which their handlers ran.
struct Listeners {
    listeners: Vec<Listener>,
    handled: mpsc::Receiver<Instant>,
}

/// Latencies up to the start of the handler.
struct ToHandler {
    /// From the start of the put, and from the start of the notification.
    put: Latencies,
    notified: Latencies,
}

/// Time until new listeners are idle: after their first gets and their CATCH_UPs.
const SETTLE: Duration = Duration::from_secs(4);
/// Time for the empty gets after the last message.
const LAST_GETS: Duration = Duration::from_secs(3);
/// A message that takes longer than this is lost. A polling listener sleeps about a second.
const LOSS_TIMEOUT: Duration = Duration::from_secs(60);
/// Listeners that share a connection.
const PER_CONNECTION: u64 = 100;

impl Benchmark for JobArgs {
    async fn run(&self, _: Server) -> Result<Figures> {
        let target = BenchQueue::of(&self.queue)?;
        // Without the sentinel, so that the transactions are those of the messages.
        let broker = Broker::relay(&["--sentinel=0".to_owned()]).await?;
        let queue: MeteredQueue = Arc::new(Metered::new(target.open().await?));
        let publisher = Client::new(&broker.target)?.publisher("bench");
        let mut figures = Figures::default();
        figures.count("listeners", self.listeners);
        step("pushed listeners settle");
        let mut listeners = Listeners::start(self, &queue, Some(&broker.target)).await?;
        sleep(SETTLE).await;
        step("one message at a time, pushed");
        let one_by_one = |count| (count, &queue, Some(&publisher));
        self.handle(one_by_one(self.warm_up), &mut listeners)
            .await?;
        let (before, woken) = (queue.usage(), listeners.wake_ups());
        let took = self
            .handle(one_by_one(self.messages), &mut listeners)
            .await?;
        sleep(LAST_GETS).await;
        let (used, woken) = (queue.usage().since(&before), listeners.wake_ups() - woken);
        figures.latencies("put to handler", &took.put.quantiles());
        figures.latencies("notify to handler", &took.notified.quantiles());
        let each = |count: u64| count as f64 / self.messages as f64;
        figures.add("wake-ups/message", Unit::Count, each(woken));
        // The puts are transactions of the publisher.
        let of_listeners = each(used.total() - used.puts);
        figures.add("transactions/message", Unit::Count, of_listeners);
        step("idle, pushed");
        let idle = self.idle(&queue).await;
        figures.add("idle transactions/min", Unit::Count, idle);
        listeners.stop().await;
        if self.polled > 0 {
            step("one message at a time, polled");
            let mut listeners = Listeners::start(self, &queue, None).await?;
            sleep(SETTLE).await;
            let took = self.handle((self.polled, &queue, None), &mut listeners);
            figures.latencies("polled", &took.await?.put.quantiles());
            step("idle, polled");
            let idle = self.idle(&queue).await;
            figures.add("polled idle transactions/min", Unit::Count, idle);
            listeners.stop().await;
        }
        figures.add("fdatasync", Unit::Micros, target.fdatasync()?);
        broker.stop().await;
        Ok(figures)
    }
}

impl JobArgs {
    /// Puts one message, notifies, and waits until it is handled, `count` times.
    async fn handle(
        &self,
        (count, queue, publisher): (u64, &MeteredQueue, Option<&Publisher>),
        listeners: &mut Listeners,
    ) -> Result<ToHandler> {
        let mut took = ToHandler {
            put: Latencies::new(),
            notified: Latencies::new(),
        };
        for number in 0..count {
            // For polling, the pause varies the time of the put within the listener's sleep.
            let further = publisher.map_or(number * 137 % 1000, |_| 0);
            sleep(self.pause + Duration::from_millis(further)).await;
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
            let handled = timeout(LOSS_TIMEOUT, listeners.handled.recv()).await;
            let handled = handled.context("a message was lost")?;
            let handled = handled.context("the listeners have ended")?;
            took.put.record(handled.saturating_duration_since(put));
            let since = handled.saturating_duration_since(notified);
            took.notified.record(since);
        }
        Ok(took)
    }

    /// Counts the transactions of an idle minute.
    async fn idle(&self, queue: &MeteredQueue) -> f64 {
        let before = queue.usage();
        sleep(self.hold).await;
        let used = queue.usage().since(&before).total();
        used as f64 * 60.0 / self.hold.as_secs_f64()
    }
}

impl Listeners {
    async fn start(args: &JobArgs, queue: &MeteredQueue, relay: Option<&str>) -> Result<Self> {
        let (sender, handled) = mpsc::channel(16);
        let mut listeners = Vec::new();
        let config = ListenerConfig {
            dequeue_batch_size: 1,
            ..ListenerConfig::default()
        };
        let mut client = None;
        for number in 0..args.listeners {
            let queue: Arc<dyn WorkQueue> = Arc::clone(queue) as _;
            let mut builder = Listener::builder(Arc::clone(&queue)).config(config.clone());
            if let Some(relay) = relay {
                if number % PER_CONNECTION == 0 {
                    client = Some(Client::new(relay)?);
                }
                let id = ListenerId::new(&format!("bench-{number}"))?;
                let mut options = config.subscription(id, &*queue);
                if args.no_group {
                    options.group = None;
                }
                let client = client.as_ref().context("a client")?;
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
