//! The benchmarks with one queue: `burst`, `wake`, `wake-all` and `idle`.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use reveille::QueueAddress;

use super::{
    args::{BurstArgs, IdleArgs, WakeAllArgs, WakeArgs},
    broker::Broker,
    progress::Progress,
    report::{Figures, Unit, median},
    sender::{Sender, event_size},
    subscriber_process::{Delivered, Latencies, SubscriberProcess, SubscriberSpec},
    usage::Usage,
    wall_nanos::nanos,
};

/// The subscribers and the publisher of one run.
struct Run<'a> {
    broker: &'a Broker,
    subscribers: u64,
    timed: bool,
    /// Size of a notification in bytes.
    payload: usize,
    process: SubscriberProcess,
    sender: Sender,
}

/// Batch and pending limit of a publisher of single notifications.
pub(super) const SINGLE: (u16, u64) = (1, 16);

/// Measures many notifications at once, to subscribers on a connection each.
pub(super) async fn burst(
    args: &BurstArgs,
    broker: &Broker,
    progress: &Progress,
) -> Result<Figures> {
    let limits = (args.batch, args.notifications);
    let mut run = Run::start(broker, progress, args.subscribers, false, limits).await?;
    // Opens the publisher's connection.
    run.round().await?;
    progress.step(&format!("{} notifications", args.notifications));
    run.process.expect(args.notifications).await?;
    let before = broker.usage();
    let began = run.sender.all(args.notifications).await?;
    let delivered = run.process.delivered(args.notifications).await?;
    let counts = (args.notifications, delivered.wakeups);
    run.finish(&before, counts, since(began, &delivered)).await
}

/// Measures one notification at a time, to one subscriber.
pub(super) async fn wake(args: &WakeArgs, broker: &Broker, progress: &Progress) -> Result<Figures> {
    let mut run = Run::start(broker, progress, 1, true, SINGLE).await?;
    progress.step(&format!("{} to warm up", args.warm_up));
    run.singly(args.warm_up, args.pause).await?;
    run.process.latencies().await?;
    progress.step(&format!("{} notifications", args.notifications));
    let (before, began) = (broker.usage(), SystemTime::now());
    let delivered = run.singly(args.notifications, args.pause).await?;
    let counts = (args.notifications, delivered.wakeups);
    run.finish(&before, counts, since(began, &delivered)).await
}

/// Measures one notification to all subscribers, several times.
pub(super) async fn wake_all(
    args: &WakeAllArgs,
    broker: &Broker,
    progress: &Progress,
) -> Result<Figures> {
    let mut run = Run::start(broker, progress, args.subscribers, true, SINGLE).await?;
    run.round().await?;
    run.process.latencies().await?;
    progress.step(&format!("{} rounds", args.rounds));
    let before = broker.usage();
    let (mut walls, mut wakeups) = (Vec::new(), 0);
    for _ in 0..args.rounds {
        let (wall, delivered) = run.round().await?;
        walls.push(wall);
        wakeups += delivered.wakeups;
    }
    let wall = median(&mut walls).unwrap_or_default();
    run.finish(&before, (args.rounds, wakeups), wall).await
}

/// Measures idle subscribers.
pub(super) async fn idle(args: &IdleArgs, broker: &Broker, progress: &Progress) -> Result<Figures> {
    let queues = [queue()?];
    let empty = broker.usage();
    progress.step(&format!("connecting {} subscribers", args.subscribers));
    let began = SystemTime::now();
    let spec = SubscriberSpec {
        per_connection: args.per_connection,
        ..SubscriberSpec::of(&queues, args.subscribers, false)
    };
    let process = SubscriberProcess::start(broker, &spec).await?;
    let connected = began.elapsed().unwrap_or_default();
    progress.step(&format!("holding {} subscribers", args.subscribers));
    let before = broker.usage();
    tokio::time::sleep(args.hold).await;
    let after = broker.usage();
    process.stop().await;
    let mut figures = common(args.subscribers, 0, 0);
    let per_connection = args.per_connection as f64;
    figures.add("per connection", Unit::Count, per_connection);
    figures.add("connecting", Unit::Seconds, connected.as_secs_f64());
    figures.add("rss before", Unit::Kib, empty.kib());
    let each = after.kib().zip(empty.kib());
    let each = each.map(|(after, before)| (after - before) / args.subscribers as f64);
    figures.add("rss/subscription", Unit::Kib, each);
    figures.add("wall", Unit::Seconds, args.hold.as_secs_f64());
    usage(&mut figures, &before, &after);
    Ok(figures)
}

impl<'a> Run<'a> {
    /// Connects the subscribers, then a publisher with this batch and pending limit.
    async fn start(
        broker: &'a Broker,
        progress: &Progress,
        subscribers: u64,
        timed: bool,
        (batch, pending): (u16, u64),
    ) -> Result<Self> {
        let queues = [queue()?];
        progress.step(&format!("connecting {subscribers} subscribers"));
        let spec = SubscriberSpec::of(&queues, subscribers, timed);
        Ok(Self {
            broker,
            subscribers,
            timed,
            payload: event_size(&queues[0]),
            process: SubscriberProcess::start(broker, &spec).await?,
            sender: Sender::open(broker, &queues, batch.into(), pending).await?,
        })
    }

    /// Publishes one notification and waits until all subscribers have it; returns the time in
    /// seconds.
    async fn round(&mut self) -> Result<(f64, Delivered)> {
        self.process.expect(1).await?;
        let began = self.sender.one().await?;
        let delivered = self.process.delivered(1).await?;
        Ok((since(began, &delivered), delivered))
    }

    /// Publishes one notification at a time, with a pause before each.
    async fn singly(&mut self, count: u64, pause: Duration) -> Result<Delivered> {
        self.process.expect(count).await?;
        for _ in 0..count {
            tokio::time::sleep(pause).await;
            self.sender.one().await?;
        }
        self.process.delivered(count).await
    }

    /// Ends the measurements, then the subscribers. The counts are those of notifications and of
    /// wake-ups.
    async fn finish(
        mut self,
        before: &Usage,
        (notifications, wakeups): (u64, u64),
        wall: f64,
    ) -> Result<Figures> {
        let after = self.broker.usage();
        let mut figures = common(self.subscribers, notifications, wakeups);
        figures.add("wall", Unit::Seconds, wall);
        if self.timed {
            latencies(&mut figures, &self.process.latencies().await?);
            let each = after.seconds_since(before);
            let each = each.map(|cpu| cpu * 1e6 / wakeups.max(1) as f64);
            figures.add("cpu/wake-up", Unit::Micros, each);
        }
        usage(&mut figures, before, &after);
        figures.add("payload", Unit::Bytes, self.payload as f64);
        self.process.stop().await;
        Ok(figures)
    }
}

/// Returns the queue of all runs of this process. Its name contains the process id, so that a
/// shared relay's other notifications are not counted. The name has a fixed length.
pub(super) fn queue() -> Result<QueueAddress> {
    Ok(QueueAddress::new(
        "bench",
        &format!("w{:07}", std::process::id() % 10_000_000),
    )?)
}

/// Returns how long it took until the last subscriber had been delivered of all.
pub(super) fn since(began: SystemTime, delivered: &Delivered) -> f64 {
    Duration::from_nanos(delivered.last_at.saturating_sub(nanos(began))).as_secs_f64()
}

fn common(subscribers: u64, notifications: u64, wakeups: u64) -> Figures {
    Figures::of_counts(&[
        ("subscribers", subscribers),
        ("notifications", notifications),
        ("wake-ups", wakeups),
    ])
}

/// Adds the quantiles of the latencies.
pub(super) fn latencies(figures: &mut Figures, latencies: &Latencies) {
    for (name, nanos) in [
        ("p50", latencies.p50),
        ("p99", latencies.p99),
        ("p99.9", latencies.p999),
        ("max", latencies.max),
    ] {
        figures.add(name, Unit::Micros, nanos as f64 / 1e3);
    }
}

fn usage(figures: &mut Figures, before: &Usage, after: &Usage) {
    figures.add("cpu", Unit::Seconds, after.seconds_since(before));
    figures.add("rss", Unit::Kib, after.kib());
}
