//! One notification at a time: the publisher is at one relay, the subscriber at another.
//!
//! A relay alone and nats-server have both.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use reveille::duration;

use super::deployment::{Deployment, Traffic};
use crate::{
    positive,
    report::{Figures, Unit},
    sender::Sender,
    server::Server,
    single_queue::queue,
    step,
};

#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  reveille-bench cluster wake --runs 5")]
pub(super) struct WakeArgs {
    /// Number of measured notifications.
    #[arg(long, default_value_t = 3_000, value_parser = positive())]
    notifications: u64,
    /// Number of notifications before them, which are not measured.
    #[arg(long, default_value_t = 500, value_parser = positive())]
    warm_up: u64,
    /// Pause before each notification; timers round it up to the next millisecond.
    #[arg(long, default_value = "500us", value_parser = duration::parse)]
    pause: Duration,
}

/// Runs the benchmark once on one side.
pub(super) async fn once(args: &WakeArgs, server: Server) -> Result<Figures> {
    let deployment = Deployment::start(server).await?;
    let at: &[u64] = if deployment.servers.len() > 1 {
        &[0, 1]
    } else {
        &[1]
    };
    let mut traffic = Traffic::start(&deployment, at, &queue()?, 1, true).await?;
    step(format_args!("{} to warm up", args.warm_up));
    let singly =
        |count| async move |sender: &mut Sender| one_by_one(sender, count, args.pause).await;
    traffic.round(args.warm_up, singly(args.warm_up)).await?;
    traffic.processes[0].latencies().await?;
    step(format_args!("{} notifications", args.notifications));
    let before = deployment.usage();
    let round = traffic
        .round(args.notifications, singly(args.notifications))
        .await?;
    let mut figures = Figures::default();
    figures.count("notifications", args.notifications);
    figures.count("wake-ups", round.wakeups);
    figures.add("wall", Unit::Seconds, round.wall);
    figures.latencies("", &traffic.processes[0].latencies().await?);
    deployment.stop(traffic, &mut figures, &before).await;
    Ok(figures)
}

/// Publishes one notification at a time, with a pause before each; returns the time of the start.
async fn one_by_one(sender: &mut Sender, count: u64, pause: Duration) -> Result<SystemTime> {
    let began = SystemTime::now();
    for _ in 0..count {
        tokio::time::sleep(pause).await;
        sender.one().await?;
    }
    Ok(began)
}
