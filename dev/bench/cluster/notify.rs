//! Acknowledged notifications: one at a time, then pipelined on a stream, then at a fixed rate.
//!
//! A relay of a cluster acknowledges when the broker has returned its frame.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use clap::Args;
use reveille::{Notification, Publisher, PublisherOptions, QueueAddress, duration};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use super::deployment::{Deployment, Traffic};
use crate::{
    broker::Broker,
    latencies::Latencies,
    positive,
    raw::{NotifyRequest, RawPublisher},
    report::{Figures, Unit},
    sender::Sender,
    server::Server,
    single_queue::queue,
    step,
    usage::Usage,
};

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench cluster notify --runs 5")]
pub(super) struct NotifyArgs {
    /// Number of notifications that are acknowledged one at a time.
    #[arg(long, default_value_t = 2_000, value_parser = positive())]
    notifications: u64,
    /// Number of notifications on the stream, sent as fast as they are acknowledged.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    streamed: u64,
    /// Number of requests in flight on the stream, each with one notification. A relay of a cluster
    /// lets 2,048 answers wait.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: u16,
    /// Number of notifications a second that are sent without waiting for acknowledgements.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// How long they are sent.
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    hold: Duration,
    /// Number of queues that they are for, in turn.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=1024))]
    queues: u16,
}

/// Notifications before those that are measured.
const WARM_UP: u64 = 100;

/// Runs the benchmark once on one side.
pub(super) async fn once(args: &NotifyArgs, server: Server) -> Result<Figures> {
    let deployment = Deployment::start(server).await?;
    let at = vec![1; deployment.servers.len()];
    let mut traffic = Traffic::start(&deployment, &at, &queue()?, 1, false).await?;
    one_by_one(&mut traffic, WARM_UP).await?;
    let options = PublisherOptions {
        batch: 1,
        pipeline: args.in_flight.into(),
        ..PublisherOptions::default()
    };
    let publisher = deployment.servers[0].client()?.publisher_with(options);
    let before = deployment.usage();
    let mut figures = Figures::default();
    figures.count("in flight", args.in_flight.into());
    step(format_args!(
        "{} notifications, one by one",
        args.notifications
    ));
    let took = one_by_one(&mut traffic, args.notifications).await?;
    figures.latencies("one by one", &took.quantiles());
    step(format_args!("{} notifications, streamed", args.streamed));
    let rate = streamed(&mut traffic, &deployment.servers[0], args).await?;
    figures.add("streamed", Unit::PerSecond, rate);
    step(format_args!("{} notifications a second", args.rate));
    let receivers = Receivers::now(&deployment).await?;
    at_a_rate(&mut figures, args, &publisher).await?;
    receivers.add_costs(&mut figures, &deployment).await?;
    deployment.stop(traffic, &mut figures, &before).await;
    Ok(figures)
}

/// Publishes one notification after the acknowledgement of the former one.
async fn one_by_one(traffic: &mut Traffic, count: u64) -> Result<Latencies> {
    let mut took = Latencies::new();
    let publish = async |sender: &mut Sender| {
        let began = SystemTime::now();
        for _ in 0..count {
            let sent = Instant::now();
            sender.one().await?;
            took.record(sent.elapsed());
        }
        Ok(began)
    };
    traffic.round(count, publish).await?;
    Ok(took)
}

/// Publishes as fast as the notifications are acknowledged; returns their number in a second.
async fn streamed(traffic: &mut Traffic, relay: &Broker, args: &NotifyArgs) -> Result<f64> {
    let (count, request) = (args.streamed, NotifyRequest::new([&queue()?]));
    let relay = RawPublisher::open(&relay.target, relay.credential()).await?;
    let mut stream = relay.stream(args.in_flight.into()).await?;
    let mut wall = Duration::ZERO;
    let publish = async |_: &mut Sender| {
        let (began, sent) = (SystemTime::now(), Instant::now());
        stream.send(&request, count).await?;
        wall = sent.elapsed();
        Ok(began)
    };
    traffic.round(count, publish).await?;
    Ok(count as f64 / wall.as_secs_f64())
}

/// Publishes at a fixed rate, without waiting for acknowledgements.
async fn at_a_rate(figures: &mut Figures, args: &NotifyArgs, publisher: &Publisher) -> Result<()> {
    let address = |queue| QueueAddress::new("bench", &format!("r{queue:04}"));
    let queues: Vec<_> = (0..args.queues).map(address).collect::<Result<_, _>>()?;
    publisher
        .notify(Notification::new(queues[0].clone()))
        .await?;
    let began = Instant::now();
    let mut waiting = JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut turn = queues.iter().cycle();
    let mut took = Latencies::new();
    let mut count = 0;
    while began.elapsed() < args.hold {
        ticks.tick().await;
        let due = began.elapsed().as_secs_f64() * f64::from(args.rate);
        while f64::from(count) < due {
            let queue = turn.next().context("a queue")?.clone();
            waiting.spawn(acknowledged(publisher.clone(), queue));
            count += 1;
        }
        while let Some(elapsed) = waiting.try_join_next() {
            took.record(elapsed??);
        }
    }
    while let Some(elapsed) = waiting.join_next().await {
        took.record(elapsed??);
    }
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    figures.add("offered", Unit::PerSecond, f64::from(args.rate));
    figures.add("acknowledged", Unit::PerSecond, rate);
    figures.latencies("at this rate", &took.quantiles());
    Ok(())
}

/// What the relays without the publisher have received and used. They count heartbeats in their
/// processor time.
struct Receivers {
    at: Instant,
    /// Frames and their queues.
    received: Option<(u64, u64)>,
    usage: Usage,
}

impl Receivers {
    async fn now(deployment: &Deployment) -> Result<Self> {
        let frames = deployment.sum("reveille_cluster_frames_received_total");
        let entries = deployment.sum("reveille_cluster_entries_received_total");
        let usage = deployment.servers[1..].iter().map(Broker::usage);
        Ok(Self {
            received: frames.await?.zip(entries.await?),
            usage: usage.reduce(Usage::plus).unwrap_or_default(),
            at: Instant::now(),
        })
    }

    /// Adds the costs of a frame since then.
    async fn add_costs(&self, figures: &mut Figures, deployment: &Deployment) -> Result<()> {
        let after = Self::now(deployment).await?;
        let received = after.received.zip(self.received);
        let received = received.map(|(after, before)| (after.0 - before.0, after.1 - before.1));
        let frames = received.map(|(frames, _)| frames as f64);
        let of_frame = |total: Option<f64>| Some(total? / frames.filter(|count| *count > 0.0)?);
        let seconds = (after.at - self.at).as_secs_f64();
        // Each receiver gets all frames.
        let receivers = deployment.servers.len().saturating_sub(1).max(1) as f64;
        let rate = frames.map(|frames| frames / receivers / seconds);
        figures.add("frames", Unit::PerSecond, rate);
        let queues = of_frame(received.map(|(_, entries)| entries as f64));
        figures.add("queues in a frame", Unit::Count, queues);
        let cpu = after.usage.seconds_since(&self.usage);
        let cpu = of_frame(cpu.map(|seconds| seconds * 1e6));
        figures.add("receiver's cpu for a frame", Unit::Micros, cpu);
        Ok(())
    }
}

/// Publishes one notification, and returns the time until it was acknowledged.
async fn acknowledged(publisher: Publisher, queue: QueueAddress) -> Result<Duration> {
    let sent = Instant::now();
    publisher.notify(Notification::new(queue)).await?;
    Ok(sent.elapsed())
}
