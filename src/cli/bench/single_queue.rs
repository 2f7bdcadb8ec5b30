//! The benchmarks with one queue: `burst`, `wake`, `wake-all` and `idle`.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use reveille::QueueAddress;

use super::{
    BurstArgs, IdleArgs, WakeAllArgs, WakeArgs,
    broker::Broker,
    progress::Progress,
    report::{Figures, Unit},
    sender::{Sender, event_size},
    subscriber_process::{Delivered, Latencies, SubscriberProcess, SubscriberSpec},
    subscribers::nanos,
    usage::Usage,
};

/// Batch and pending limit of a publisher of single notifications.
const SINGLE: (usize, u64) = (1, 16);

/// Measures many notifications at once, to subscribers on a connection each.
pub(super) async fn burst(
    args: &BurstArgs,
    broker: &Broker,
    progress: &Progress,
) -> Result<Figures> {
    let queues = [queue()?];
    progress.step(&format!("connecting {} subscribers", args.subscribers));
    let mut process =
        SubscriberProcess::start(broker, &spec(&queues, args.subscribers, false)).await?;
    let pending = args.notifications;
    let mut sender = Sender::open(broker, &queues, args.batch.into(), pending).await?;
    // Opens the publisher's connection.
    round(&mut process, &mut sender).await?;
    progress.step(&format!("{} notifications", args.notifications));
    process.expect(args.notifications).await?;
    let before = broker.usage();
    let began = sender.all(args.notifications).await?;
    let delivered = process.delivered(args.notifications).await?;
    let after = broker.usage();
    process.stop().await;
    let mut figures = common(args.subscribers, args.notifications, delivered.wakeups);
    figures.add("wall", Unit::Seconds, Some(since(began, &delivered)));
    usage(&mut figures, &before, &after);
    figures.add("payload", Unit::Bytes, Some(event_size(&queues[0]) as f64));
    Ok(figures)
}

/// Measures one notification at a time, to one subscriber.
pub(super) async fn wake(args: &WakeArgs, broker: &Broker, progress: &Progress) -> Result<Figures> {
    let queues = [queue()?];
    let mut process = SubscriberProcess::start(broker, &spec(&queues, 1, true)).await?;
    let mut sender = Sender::open(broker, &queues, SINGLE.0, SINGLE.1).await?;
    progress.step(&format!("{} to warm up", args.warm_up));
    singly(&mut process, &mut sender, args.warm_up, args.pause).await?;
    process.latencies().await?;
    progress.step(&format!("{} notifications", args.notifications));
    let (before, began) = (broker.usage(), SystemTime::now());
    let delivered = singly(&mut process, &mut sender, args.notifications, args.pause).await?;
    let after = broker.usage();
    let measured = process.latencies().await?;
    process.stop().await;
    let mut figures = common(1, args.notifications, delivered.wakeups);
    figures.add("wall", Unit::Seconds, Some(since(began, &delivered)));
    latencies(&mut figures, &measured);
    usage(&mut figures, &before, &after);
    figures.add("payload", Unit::Bytes, Some(event_size(&queues[0]) as f64));
    Ok(figures)
}

/// Measures one notification to all subscribers, several times.
pub(super) async fn wake_all(
    args: &WakeAllArgs,
    broker: &Broker,
    progress: &Progress,
) -> Result<Figures> {
    let queues = [queue()?];
    progress.step(&format!("connecting {} subscribers", args.subscribers));
    let mut process =
        SubscriberProcess::start(broker, &spec(&queues, args.subscribers, true)).await?;
    let mut sender = Sender::open(broker, &queues, SINGLE.0, SINGLE.1).await?;
    round(&mut process, &mut sender).await?;
    process.latencies().await?;
    progress.step(&format!("{} rounds", args.rounds));
    let before = broker.usage();
    let (mut walls, mut wakeups) = (Vec::new(), 0);
    for _ in 0..args.rounds {
        let (wall, delivered) = round(&mut process, &mut sender).await?;
        walls.push(wall);
        wakeups += delivered.wakeups;
    }
    let after = broker.usage();
    let measured = process.latencies().await?;
    process.stop().await;
    let mut figures = common(args.subscribers, args.rounds, wakeups);
    figures.add("wall", Unit::Seconds, super::report::median(&mut walls));
    latencies(&mut figures, &measured);
    let cpu = after.cpu_since(&before);
    let each = cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / wakeups.max(1) as f64);
    figures.add("cpu/wake-up", Unit::Micros, each);
    usage(&mut figures, &before, &after);
    figures.add("payload", Unit::Bytes, Some(event_size(&queues[0]) as f64));
    Ok(figures)
}

/// Measures idle subscribers.
pub(super) async fn idle(args: &IdleArgs, broker: &Broker, progress: &Progress) -> Result<Figures> {
    let queues = [queue()?];
    let empty = broker.usage();
    progress.step(&format!("connecting {} subscribers", args.subscribers));
    let began = SystemTime::now();
    let spec = SubscriberSpec {
        per_connection: args.per_connection,
        ..spec(&queues, args.subscribers, false)
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
    figures.add("per connection", Unit::Count, Some(per_connection));
    figures.add("connecting", Unit::Seconds, Some(connected.as_secs_f64()));
    let kib = |usage: &Usage| usage.rss_kib.map(|kib| kib as f64);
    figures.add("rss before", Unit::Kib, kib(&empty));
    let each = kib(&after).zip(kib(&empty));
    let each = each.map(|(after, before)| (after - before) / args.subscribers as f64);
    figures.add("rss/subscription", Unit::Kib, each);
    figures.add("wall", Unit::Seconds, Some(args.hold.as_secs_f64()));
    usage(&mut figures, &before, &after);
    Ok(figures)
}

/// Returns subscribers on a connection each.
fn spec(queues: &[QueueAddress], subscribers: u64, timed: bool) -> SubscriberSpec<'_> {
    SubscriberSpec {
        queues,
        subscribers,
        per_connection: 1,
        timed,
    }
}

/// Publishes one notification and waits until all subscribers have it; returns the time in seconds.
async fn round(process: &mut SubscriberProcess, sender: &mut Sender) -> Result<(f64, Delivered)> {
    process.expect(1).await?;
    let began = sender.one().await?;
    let delivered = process.delivered(1).await?;
    Ok((since(began, &delivered), delivered))
}

/// Publishes one notification at a time, with a pause before each.
async fn singly(
    process: &mut SubscriberProcess,
    sender: &mut Sender,
    count: u64,
    pause: Duration,
) -> Result<Delivered> {
    process.expect(count).await?;
    for _ in 0..count {
        tokio::time::sleep(pause).await;
        sender.one().await?;
    }
    process.delivered(count).await
}

/// Returns the queue of all runs of this process. Its name contains the process id, so that a
/// shared relay's other notifications are not counted. The name has a fixed length.
fn queue() -> Result<QueueAddress> {
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
    let mut figures = Figures::default();
    for (name, count) in [
        ("subscribers", subscribers),
        ("notifications", notifications),
        ("wake-ups", wakeups),
    ] {
        figures.add(name, Unit::Count, Some(count as f64));
    }
    figures
}

fn latencies(figures: &mut Figures, latencies: &Latencies) {
    for (name, nanos) in [
        ("p50", latencies.p50),
        ("p99", latencies.p99),
        ("p99.9", latencies.p999),
        ("max", latencies.max),
    ] {
        figures.add(name, Unit::Micros, Some(nanos as f64 / 1e3));
    }
}

fn usage(figures: &mut Figures, before: &Usage, after: &Usage) {
    let cpu = after.cpu_since(before).map(|cpu| cpu.as_secs_f64());
    figures.add("cpu", Unit::Seconds, cpu);
    let rss = after.rss_kib.map(|kib| kib as f64);
    figures.add("rss", Unit::Kib, rss);
}
