//! One notification at a time: the publisher is at one relay, the subscriber at another.
//!
//! A relay alone and nats-server have both.

use std::time::{Duration, SystemTime};

use anyhow::Result;

use super::{
    super::{
        Server,
        args::ClusterWakeArgs,
        progress::Progress,
        report::{Figures, Unit},
        sender::Sender,
        single_queue::{SINGLE, latencies, queue},
    },
    deployment::{Deployment, Options},
    traffic::{self, Traffic},
};

/// Runs the benchmark once on one side.
pub(super) async fn once(
    args: &ClusterWakeArgs,
    server: Server,
    options: Options,
    progress: &Progress,
) -> Result<Figures> {
    progress.step("starting the servers");
    let deployment = Deployment::start(server, &options).await?;
    let subscribers = [(deployment.other(), 1)];
    let mut traffic = Traffic::start(&deployment, &subscribers, &queue()?, SINGLE, true).await?;
    progress.step(&format!("{} to warm up", args.warm_up));
    let singly =
        |count| async move |sender: &mut Sender| one_by_one(sender, count, args.pause).await;
    traffic.round(args.warm_up, singly(args.warm_up)).await?;
    traffic.processes[0].latencies().await?;
    progress.step(&format!("{} notifications", args.notifications));
    let before = deployment.usage();
    let notifications = args.notifications;
    let round = traffic.round(notifications, singly(notifications)).await?;
    let mut figures = Figures::of_counts(&[
        ("notifications", notifications),
        ("wake-ups", round.wakeups),
    ]);
    figures.add("wall", Unit::Seconds, round.wall);
    latencies(&mut figures, &traffic.processes[0].latencies().await?);
    traffic::usage(&mut figures, &deployment, &before);
    traffic.stop().await;
    deployment.stop().await;
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
