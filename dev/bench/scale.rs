//! Very many queues, patterns and subscriptions: measures the memory of each, and the latency of
//! one queue's notifications alone, while consoles watch the relay, while a `*/*` subscriber is caught up
//! on every queue, and while this subscriber is woken; also the first page of each list.
//!
//! The relay and the subscriptions are separate processes. This process has the publishers and the
//! one subscriber whose latencies are measured. All sums must be exact.

mod console;
mod probe;
mod subscriptions;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reveille::{
    Client, ClientConfig, Notification, Publisher, PublisherOptions, QueueAddress, Selector,
    duration,
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

pub(crate) use self::subscriptions::{SubscriptionsArgs, run as run_subscriptions};
use self::{
    console::{Watchers, read_lists},
    probe::Probe,
    subscriptions::{ALL, CaughtUp, EXACT, PATTERNS, SUMS, Sums},
};
use crate::{
    Benchmark,
    broker::Broker,
    child::Child,
    report::{Figures, Unit},
    server::Server,
    step,
    subscriber_process::READY,
};

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench scale --queues 1000000 --runs 1")]
pub(crate) struct ScaleArgs {
    /// Number of queues that the relay has in memory. A tenth of them has an exact subscription, and
    /// there are a hundredth as many subscriptions to patterns; 100 of them share a connection.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=9_000_000))]
    queues: u32,
    /// Duration of the phases `quiet`, `watched` and `woken`.
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    hold: Duration,
    /// Interval of the notifications of the measured queue; timers round it up to the next
    /// millisecond.
    #[arg(long, default_value = "2ms", value_parser = duration::parse)]
    pause: Duration,
}

/// One run.
struct Run<'a> {
    args: &'a ScaleArgs,
    broker: Broker,
    publisher: Publisher,
    subscriptions: Child,
    figures: Figures,
}

/// Events of one request, the maximum, and requests in flight.
const BATCH: usize = 1_024;
const PIPELINE: usize = 16;
/// Queues of one request that wakes the `*/*` subscriber, and the pause between two requests.
const RANDOM: usize = 64;
const PAUSE: Duration = Duration::from_millis(20);
/// Time-out of a request: long, because the answer time of a busy relay is measured.
const TIMEOUT: Duration = Duration::from_secs(600);
/// A notification that was not delivered within this time is lost.
const LOSS_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the sums of the subscriptions are read.
const SUMS_INTERVAL: Duration = Duration::from_millis(50);

impl Benchmark for ScaleArgs {
    async fn run(&self, _: Server) -> Result<Figures> {
        // The measured queue, and room for the growth of tables.
        let max_queues = self.queues + self.queues / 10 + 1_000;
        let args = [format!("--max-queues={max_queues}")];
        let broker = Broker::relay(&args).await?;
        let target = format!("--target={}", broker.target);
        let mut run = Run {
            args: self,
            publisher: publisher(&broker.target)?,
            subscriptions: Child::start("subscriptions", &[target], [])?,
            broker,
            figures: Figures::default(),
        };
        run.figures.count("queues", self.queues.into());
        run.notify_queues().await?;
        let (patterns, exact) = (self.queues / 100, self.queues / 10);
        run.subscribe(PATTERNS, patterns).await?;
        run.subscribe(EXACT, exact).await?;
        run.measure(exact).await?;
        run.subscriptions.stop().await;
        let rss = run.broker.usage().kib();
        run.figures.add("rss", Unit::Kib, rss);
        run.broker.stop().await;
        Ok(run.figures)
    }
}

impl Run<'_> {
    /// Notifies each queue once, so that the relay has all of them in memory.
    async fn notify_queues(&mut self) -> Result<()> {
        let count = self.args.queues;
        step(format_args!("notifying {count} queues"));
        let before = self.broker.usage().kib();
        let publisher = &self.publisher;
        let numbers: Vec<u32> = (0..count).collect();
        let request = async |numbers: &[u32]| {
            let notification = |number: &u32| Ok(Notification::new(queue(*number)?));
            let notifications = numbers.iter().map(notification).collect::<Result<_>>()?;
            publisher.notify_all(notifications).await?;
            anyhow::Ok(())
        };
        stream::iter(numbers.chunks(BATCH))
            .map(request)
            .buffer_unordered(PIPELINE)
            .try_collect::<()>()
            .await?;
        self.add_growth("queue", before, count);
        Ok(())
    }

    /// Opens subscriptions of one kind.
    async fn subscribe(&mut self, kind: &'static str, count: u32) -> Result<()> {
        step(format_args!("opening {count} subscriptions ({kind})"));
        let (before, began) = (self.broker.usage().kib(), Instant::now());
        self.subscriptions.send(&format!("{kind} {count}")).await?;
        self.subscriptions.expect(READY).await?;
        let wall = began.elapsed().as_secs_f64();
        self.figures
            .count(format!("{kind} subscriptions"), count.into());
        self.figures
            .add(format!("{kind} opened"), Unit::Seconds, wall);
        self.add_growth(kind, before, count);
        Ok(())
    }

    /// Adds the growth of the relay's memory for each of `count` items.
    fn add_growth(&mut self, name: &str, before: Option<f64>, count: u32) {
        let after = self.broker.usage().kib();
        let each = after
            .zip(before)
            .map(|(after, before)| (after - before) / f64::from(count));
        self.figures.add(format!("rss/{name}"), Unit::Kib, each);
    }

    async fn measure(&mut self, exact: u32) -> Result<()> {
        let ScaleArgs {
            queues,
            hold,
            pause,
        } = *self.args;
        let mut probe = Probe::start(&self.broker.target, pause).await?;
        step("quiet");
        self.hold("quiet", &mut probe, hold).await?;
        let admin = self.broker.admin().context("a relay has an admin port")?;
        step("the lists");
        read_lists(admin, &mut self.figures).await?;
        step("five consoles");
        let watchers = Watchers::start(admin).await?;
        self.hold("watched", &mut probe, hold).await?;
        self.figures.count("events", watchers.end().await?);

        step("a subscriber of all queues");
        let before = self.broker.usage().kib();
        let order = format!("{ALL} {queues}");
        let subscribed = ask(&mut self.subscriptions, &order);
        let (caught, sample): (CaughtUp, _) = probe.during(subscribed).await?;
        let seconds = caught.seconds;
        self.figures.add("all caught up", Unit::Seconds, seconds);
        self.add_growth("queue of all", before, queues);
        sample.add("catching up", &mut self.figures);

        step("it is woken");
        let random = notify_random(self.args, &self.publisher, exact);
        let (sent, sample) = probe.during(random).await?;
        sample.add("woken", &mut self.figures);
        self.check_sums(sent).await
    }

    /// Measures the probe alone, and the relay's processor time.
    async fn hold(&mut self, phase: &str, probe: &mut Probe, hold: Duration) -> Result<()> {
        let before = self.broker.usage();
        let wait = async {
            sleep(hold).await;
            Ok(())
        };
        let ((), sample) = probe.during(wait).await?;
        let used = self.broker.usage().seconds_since(&before);
        self.figures
            .add(format!("{phase} cpu"), Unit::Seconds, used);
        sample.add(phase, &mut self.figures);
        Ok(())
    }

    /// Waits until the subscriptions have got what was sent, and checks that they got no more.
    async fn check_sums(&mut self, sent: Sums) -> Result<()> {
        let deadline = Instant::now() + LOSS_TIMEOUT;
        loop {
            let got: Sums = ask(&mut self.subscriptions, SUMS).await?;
            let is_complete = got.exact >= sent.exact && got.all >= sent.all;
            if is_complete || Instant::now() > deadline {
                ensure!(
                    got == sent,
                    "the sums are wrong: {sent:?} was sent, and {got:?} was delivered"
                );
                return Ok(());
            }
            sleep(SUMS_INTERVAL).await;
        }
    }
}

/// Sends an order, and returns the answer.
async fn ask<T: DeserializeOwned>(child: &mut Child, order: &str) -> Result<T> {
    child.send(order).await?;
    let line = child.line().await?;
    serde_json::from_str(&line).context(line)
}

/// Notifies random queues for a while. The first `exact` queues have an exact subscription.
async fn notify_random(args: &ScaleArgs, publisher: &Publisher, exact: u32) -> Result<Sums> {
    let ends = Instant::now() + args.hold;
    let mut sent = Sums::default();
    while Instant::now() < ends {
        let mut notifications = Vec::with_capacity(RANDOM);
        for _ in 0..RANDOM {
            let number = fastrand::u32(0..args.queues);
            notifications.push(Notification::new(queue(number)?));
            sent.all += 1;
            sent.exact += u64::from(number < exact);
        }
        publisher.notify_all(notifications).await?;
        sleep(PAUSE).await;
    }
    Ok(sent)
}

/// Returns a client with a long time-out, so that it waits for a busy relay instead of retrying.
fn client(target: &str) -> Result<Client> {
    let config = ClientConfig {
        request_timeout: TIMEOUT,
        ..ClientConfig::default()
    };
    Ok(Client::with_config(target, config)?)
}

/// Returns a publisher that sends the notifications of each call in one request.
fn publisher(target: &str) -> Result<Publisher> {
    Ok(client(target)?.publisher_with(PublisherOptions {
        batch: BATCH,
        pipeline: PIPELINE,
        deadline: TIMEOUT,
        ..PublisherOptions::default()
    }))
}

/// Returns a queue by its number.
fn queue(number: u32) -> Result<QueueAddress> {
    Ok(QueueAddress::new("bench", &format!("q{number:07}"))?)
}

/// Returns the number of a queue; `None` for other names.
fn queue_number(queue: &Selector) -> Option<u32> {
    queue.queue_name().strip_prefix('q')?.parse().ok()
}
