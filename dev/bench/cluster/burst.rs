//! Many notifications at once, through one relay, to subscribers of all relays.

use anyhow::Result;

use super::{
    super::{
        Server,
        args::ClusterBurstArgs,
        broker::Broker,
        progress::Progress,
        report::{Figures, Unit},
        sender::Sender,
        single_queue::queue,
    },
    deployment::{Deployment, Options},
    traffic::{self, Traffic},
};

/// Runs the benchmark once on one side.
pub(super) async fn once(
    args: &ClusterBurstArgs,
    server: Server,
    options: Options,
    progress: &Progress,
) -> Result<Figures> {
    progress.step("starting the servers");
    let deployment = Deployment::start(server, &options).await?;
    progress.step(&format!("connecting {} subscribers", args.subscribers));
    let subscribers = spread(&deployment.servers, args.subscribers);
    let limits = (args.batch, args.notifications);
    let mut traffic = Traffic::start(&deployment, &subscribers, &queue()?, limits, false).await?;
    // Opens the publisher's connection.
    let one = async |sender: &mut Sender| sender.one().await;
    traffic.round(1, one).await?;
    progress.step(&format!("{} notifications", args.notifications));
    let sent = "reveille_cluster_frames_sent_total";
    let frames = deployment.sum(sent).await?;
    let before = deployment.usage();
    let all = async |sender: &mut Sender| sender.all(args.notifications).await;
    let round = traffic.round(args.notifications, all).await?;
    let frames = deployment.sum(sent).await?.zip(frames);
    let mut figures = Figures::of_counts(&[
        ("subscribers", args.subscribers),
        ("notifications", args.notifications),
        ("wake-ups", round.wakeups),
    ]);
    let frames = frames.map(|(after, before)| (after - before) as f64);
    figures.add("frames", Unit::Count, frames);
    figures.add("wall", Unit::Seconds, round.wall);
    traffic::usage(&mut figures, &deployment, &before);
    traffic.stop().await;
    deployment.stop().await;
    Ok(figures)
}

/// Spreads the subscribers over the servers.
pub(super) fn spread(servers: &[Broker], subscribers: u64) -> Vec<(&Broker, u64)> {
    let count = servers.len() as u64;
    let share = |at: u64| subscribers / count + u64::from(at < subscribers % count);
    servers.iter().zip((0..count).map(share)).collect()
}
