//! The works on one queue.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use reveille::QueueAddress;

use super::{
    BurstArgs, IdleArgs, WakeAllArgs, WakeArgs,
    broker::Broker,
    fleet::{Crew, Fleet, Latencies, Told},
    progress::Progress,
    report::{Figures, Unit},
    sender::{Sender, event_size},
    subscribers::nanos,
    usage::Usage,
};

/// What a single notification's publisher needs.
const SINGLE: (usize, u64) = (1, 16);

/// Many notifications at once, to subscribers on a connection each.
pub(super) async fn burst(
    args: &BurstArgs,
    broker: &Broker,
    progress: &Progress,
) -> Result<Figures> {
    let queues = [queue()?];
    progress.say(&format!("connecting {} subscribers", args.subscribers));
    let mut fleet = Fleet::start(broker, &crew(&queues, args.subscribers, false)).await?;
    let pending = args.notifications;
    let mut sender = Sender::open(broker, &queues, args.batch.into(), pending).await?;
    // So that the publisher's connection is open as well.
    round(&mut fleet, &mut sender).await?;
    progress.say(&format!("{} notifications", args.notifications));
    fleet.expect(args.notifications).await?;
    let before = broker.usage();
    let began = sender.all(args.notifications).await?;
    let told = fleet.told(args.notifications).await?;
    let after = broker.usage();
    fleet.stop().await;
    let mut figures = common(args.subscribers, args.notifications, told.wakeups);
    figures.add("wall", Unit::Seconds, Some(since(began, &told)));
    usage(&mut figures, &before, &after);
    figures.add("payload", Unit::Bytes, Some(event_size(&queues[0]) as f64));
    Ok(figures)
}

/// One notification at a time, to one subscriber.
pub(super) async fn wake(args: &WakeArgs, broker: &Broker, progress: &Progress) -> Result<Figures> {
    let queues = [queue()?];
    let mut fleet = Fleet::start(broker, &crew(&queues, 1, true)).await?;
    let mut sender = Sender::open(broker, &queues, SINGLE.0, SINGLE.1).await?;
    progress.say(&format!("{} to warm up", args.warm_up));
    singly(&mut fleet, &mut sender, args.warm_up, args.pause).await?;
    fleet.latencies().await?;
    progress.say(&format!("{} notifications", args.notifications));
    let (before, began) = (broker.usage(), SystemTime::now());
    let told = singly(&mut fleet, &mut sender, args.notifications, args.pause).await?;
    let after = broker.usage();
    let measured = fleet.latencies().await?;
    fleet.stop().await;
    let mut figures = common(1, args.notifications, told.wakeups);
    figures.add("wall", Unit::Seconds, Some(since(began, &told)));
    latencies(&mut figures, &measured);
    usage(&mut figures, &before, &after);
    figures.add("payload", Unit::Bytes, Some(event_size(&queues[0]) as f64));
    Ok(figures)
}

/// One notification to all, several times.
pub(super) async fn wake_all(
    args: &WakeAllArgs,
    broker: &Broker,
    progress: &Progress,
) -> Result<Figures> {
    let queues = [queue()?];
    progress.say(&format!("connecting {} subscribers", args.subscribers));
    let mut fleet = Fleet::start(broker, &crew(&queues, args.subscribers, true)).await?;
    let mut sender = Sender::open(broker, &queues, SINGLE.0, SINGLE.1).await?;
    round(&mut fleet, &mut sender).await?;
    fleet.latencies().await?;
    progress.say(&format!("{} rounds", args.rounds));
    let before = broker.usage();
    let (mut walls, mut wakeups) = (Vec::new(), 0);
    for _ in 0..args.rounds {
        let (wall, told) = round(&mut fleet, &mut sender).await?;
        walls.push(wall);
        wakeups += told.wakeups;
    }
    let after = broker.usage();
    let measured = fleet.latencies().await?;
    fleet.stop().await;
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

/// Subscribers that hear nothing.
pub(super) async fn idle(args: &IdleArgs, broker: &Broker, progress: &Progress) -> Result<Figures> {
    let queues = [queue()?];
    let empty = broker.usage();
    progress.say(&format!("connecting {} subscribers", args.subscribers));
    let began = SystemTime::now();
    let crew = Crew {
        per_connection: args.per_connection,
        ..crew(&queues, args.subscribers, false)
    };
    let fleet = Fleet::start(broker, &crew).await?;
    let connected = began.elapsed().unwrap_or_default();
    progress.say(&format!("holding {} subscribers", args.subscribers));
    let before = broker.usage();
    tokio::time::sleep(args.hold).await;
    let after = broker.usage();
    fleet.stop().await;
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
fn crew(queues: &[QueueAddress], subscribers: u64, timed: bool) -> Crew<'_> {
    Crew {
        queues,
        subscribers,
        per_connection: 1,
        timed,
    }
}

/// Publishes one notification and waits until all have been told; returns how long it took.
async fn round(fleet: &mut Fleet, sender: &mut Sender) -> Result<(f64, Told)> {
    fleet.expect(1).await?;
    let began = sender.one().await?;
    let told = fleet.told(1).await?;
    Ok((since(began, &told), told))
}

/// Publishes one notification at a time, with a pause before each.
async fn singly(
    fleet: &mut Fleet,
    sender: &mut Sender,
    count: u64,
    pause: Duration,
) -> Result<Told> {
    fleet.expect(count).await?;
    for _ in 0..count {
        tokio::time::sleep(pause).await;
        sender.one().await?;
    }
    fleet.told(count).await
}

/// Returns the queue that all runs of this process use: its own, so that nobody else's
/// notifications are counted where the relay is shared. Its name's length is always the same.
fn queue() -> Result<QueueAddress> {
    Ok(QueueAddress::new(
        "bench",
        &format!("w{:07}", std::process::id() % 10_000_000),
    )?)
}

/// Returns how long it took until the last subscriber had been told of all.
pub(super) fn since(began: SystemTime, told: &Told) -> f64 {
    Duration::from_nanos(told.last_at.saturating_sub(nanos(began))).as_secs_f64()
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
