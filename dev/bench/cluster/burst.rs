//! Many notifications at once, through one relay, to subscribers of all relays.

use anyhow::Result;
use clap::Args;

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
#[command(after_help = "Example:\n  reveille-bench cluster burst --runs 5")]
pub(super) struct BurstArgs {
    /// Number of notifications.
    #[arg(long, default_value_t = 200_000, value_parser = positive())]
    notifications: u64,
    /// Number of subscribers, each on a separate connection, spread over the relays.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(3..))]
    subscribers: u64,
    /// Number of notifications of one request.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
}

const FRAMES: &str = "reveille_cluster_frames_sent_total";

/// Runs the benchmark once on one side.
pub(super) async fn once(args: &BurstArgs, server: Server) -> Result<Figures> {
    let deployment = Deployment::start(server).await?;
    step(format_args!("connecting {} subscribers", args.subscribers));
    let count = deployment.servers.len() as u64;
    let share = |at| args.subscribers / count + u64::from(at < args.subscribers % count);
    let subscribers: Vec<u64> = (0..count).map(share).collect();
    let mut traffic =
        Traffic::start(&deployment, &subscribers, &queue()?, args.batch, false).await?;
    // Opens the publisher's connection.
    let one = async |sender: &mut Sender| sender.one().await;
    traffic.round(1, one).await?;
    step(format_args!("{} notifications", args.notifications));
    let (frames, before) = (deployment.sum(FRAMES).await?, deployment.usage());
    let all = async |sender: &mut Sender| sender.all(args.notifications).await;
    let round = traffic.round(args.notifications, all).await?;
    let frames = deployment.sum(FRAMES).await?.zip(frames);
    let mut figures = Figures::default();
    figures.count("subscribers", args.subscribers);
    figures.count("notifications", args.notifications);
    figures.count("wake-ups", round.wakeups);
    let frames = frames.map(|(after, before)| (after - before) as f64);
    figures.add("frames", Unit::Count, frames);
    figures.add("wall", Unit::Seconds, round.wall);
    deployment.stop(traffic, &mut figures, &before).await;
    Ok(figures)
}
