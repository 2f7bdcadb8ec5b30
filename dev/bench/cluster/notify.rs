//! Acknowledged notifications: one at a time, then pipelined on a stream, then at a fixed rate.
//!
//! A relay of a cluster acknowledges when the broker has returned its frame. With a far broker one
//! frame is in flight for two delays, and the notifications of that time share the next frame.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hdrhistogram::Histogram;
use reveille::{Notification, Publisher, PublisherOptions, QueueAddress};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use super::{
    super::{
        Server,
        args::ClusterNotifyArgs,
        broker::Broker,
        progress::Progress,
        report::{Figures, Unit},
        sender::Sender,
        single_queue::{SINGLE, queue},
        usage::Usage,
    },
    deployment::{Deployment, Options},
    traffic::{self, Traffic},
};

/// Latencies in nanoseconds, which many tasks record.
type SharedHistogram = Arc<Mutex<Histogram<u64>>>;

/// Notifications before those that are measured.
const WARM_UP: u64 = 100;

/// Runs the benchmark once on one side.
pub(super) async fn once(
    args: &ClusterNotifyArgs,
    server: Server,
    options: Options,
    progress: &Progress,
) -> Result<Figures> {
    progress.step("starting the servers");
    let options = Options {
        delay: args.delay,
        ..options
    };
    let deployment = Deployment::start(server, &options).await?;
    let subscribers: Vec<_> = deployment.servers.iter().map(|relay| (relay, 1)).collect();
    let mut traffic = Traffic::start(&deployment, &subscribers, &queue()?, SINGLE, false).await?;
    one_by_one(&mut traffic, WARM_UP).await?;
    let publisher = deployment
        .first()
        .client()?
        .publisher_with(PublisherOptions {
            conflate: false,
            batch: 1,
            pipeline: args.in_flight.into(),
            ..PublisherOptions::default()
        });
    let before = deployment.usage();
    let mut figures = Figures::of_counts(&[("in flight", args.in_flight.into())]);
    progress.step(&format!("{} notifications, one by one", args.notifications));
    let took = one_by_one(&mut traffic, args.notifications).await?;
    quantiles(&mut figures, "one by one", &took);
    progress.step(&format!("{} notifications, streamed", args.streamed));
    let rate = streamed(&mut traffic, &publisher, args).await?;
    figures.add("streamed", Unit::PerSecond, rate);
    progress.step(&format!("{} notifications a second", args.rate));
    at_a_rate(&mut figures, args, &deployment, &publisher).await?;
    traffic::usage(&mut figures, &deployment, &before);
    traffic.stop().await;
    deployment.stop().await;
    Ok(figures)
}

/// Publishes one notification after the acknowledgement of the former one.
async fn one_by_one(traffic: &mut Traffic, count: u64) -> Result<Histogram<u64>> {
    let mut took = Histogram::new(3)?;
    let publish = async |sender: &mut Sender| {
        let began = SystemTime::now();
        for _ in 0..count {
            let sent = Instant::now();
            sender.one().await?;
            took.record(nanos(sent.elapsed()))?;
        }
        Ok(began)
    };
    traffic.round(count, publish).await?;
    Ok(took)
}

/// Publishes as fast as the notifications are acknowledged; returns their number in a second.
async fn streamed(
    traffic: &mut Traffic,
    publisher: &Publisher,
    args: &ClusterNotifyArgs,
) -> Result<f64> {
    let (count, queue) = (args.streamed, queue()?);
    let mut wall = Duration::ZERO;
    let publish = async |_: &mut Sender| {
        let (began, sent) = (SystemTime::now(), Instant::now());
        // Twice as many callers as requests in flight, so that a next request always waits.
        stream::iter(0..count)
            .map(|_| publisher.notify(Notification::new(queue.clone())))
            .buffer_unordered(2 * usize::from(args.in_flight))
            .try_for_each(async |_| Ok(()))
            .await?;
        wall = sent.elapsed();
        Ok(began)
    };
    traffic.round(count, publish).await?;
    Ok(count as f64 / wall.as_secs_f64())
}

/// Publishes at a fixed rate, without waiting for acknowledgements.
async fn at_a_rate(
    figures: &mut Figures,
    args: &ClusterNotifyArgs,
    deployment: &Deployment,
    publisher: &Publisher,
) -> Result<()> {
    let address = |queue| QueueAddress::new("bench", &format!("r{queue:04}"));
    let queues: Vec<_> = (0..args.queues).map(address).collect::<Result<_, _>>()?;
    let warm_up = Notification::new(queues[0].clone());
    publisher.notify(warm_up).await?;
    let sent = "reveille_cluster_frames_sent_total";
    let frames = deployment.sum(sent).await?;
    let receivers = Receivers::now(deployment).await?;
    let took = SharedHistogram::new(Mutex::new(Histogram::new(3)?));
    let began = Instant::now();
    let mut waiting = JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut turn = queues.iter().cycle();
    let mut count = 0;
    while began.elapsed() < args.hold {
        ticks.tick().await;
        let due = began.elapsed().as_secs_f64() * args.rate as f64;
        while (count as f64) < due {
            let queue = turn.next().context("a queue")?.clone();
            waiting.spawn(acknowledged(publisher.clone(), queue, Arc::clone(&took)));
            count += 1;
        }
        while waiting.try_join_next().transpose()?.transpose()?.is_some() {}
    }
    while let Some(done) = waiting.join_next().await {
        done??;
    }
    let wall = began.elapsed().as_secs_f64();
    receivers.add_costs(figures, deployment).await?;
    let frames = deployment.sum(sent).await?.zip(frames);
    let frames = frames.map(|(after, before)| (after - before) as f64 / wall);
    figures.add("offered", Unit::PerSecond, args.rate as f64);
    figures.add("acknowledged", Unit::PerSecond, f64::from(count) / wall);
    quantiles(
        figures,
        "at this rate",
        &took.lock().expect("no panic under it"),
    );
    figures.add("frames", Unit::PerSecond, frames);
    Ok(())
}

/// What the relays without the publisher have received and used. They count heartbeats in their
/// processor time.
struct Receivers {
    frames: Option<u64>,
    entries: Option<u64>,
    usage: Usage,
}

impl Receivers {
    async fn now(deployment: &Deployment) -> Result<Self> {
        let usage = deployment.servers[1..].iter().map(Broker::usage);
        Ok(Self {
            frames: deployment
                .sum("reveille_cluster_frames_received_total")
                .await?,
            entries: deployment
                .sum("reveille_cluster_entries_received_total")
                .await?,
            usage: usage.reduce(Usage::plus).unwrap_or_default(),
        })
    }

    /// Adds the costs of a frame since then.
    async fn add_costs(&self, figures: &mut Figures, deployment: &Deployment) -> Result<()> {
        let after = Self::now(deployment).await?;
        let since = |after: Option<u64>, before| Some((after? - before?) as f64);
        let frames = since(after.frames, self.frames).filter(|count| *count > 0.0);
        let entries = since(after.entries, self.entries);
        let of_frame = |total: Option<f64>| Some(total? / frames?);
        figures.add("queues in a frame", Unit::Count, of_frame(entries));
        let cpu = after.usage.seconds_since(&self.usage);
        let cpu = of_frame(cpu.map(|seconds| seconds * 1e6));
        figures.add("receiver's cpu for a frame", Unit::Micros, cpu);
        Ok(())
    }
}

/// Publishes one notification, and records the time until it was acknowledged.
async fn acknowledged(
    publisher: Publisher,
    queue: QueueAddress,
    took: SharedHistogram,
) -> Result<()> {
    let sent = Instant::now();
    publisher.notify(Notification::new(queue)).await?;
    let elapsed = nanos(sent.elapsed());
    took.lock().expect("no panic under it").record(elapsed)?;
    Ok(())
}

fn quantiles(figures: &mut Figures, name: &str, took: &Histogram<u64>) {
    for (quantile, part) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        let micros = took.value_at_quantile(part) as f64 / 1e3;
        figures.add(format!("{name} {quantile}"), Unit::Micros, micros);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
