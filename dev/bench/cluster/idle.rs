//! Idle relays: processor time, bytes on the link to the broker, and storage requests.
//!
//! A proxy without a delay counts the bytes, of all relays and both ways. Storage requests are lines
//! of Azurite's log, as a relay has no metric of them.

use anyhow::Result;
use reveille::QueueAddress;

use super::{
    super::{
        Server,
        args::ClusterIdleArgs,
        broker::sentinel,
        listen::requests,
        progress::Progress,
        report::{Figures, Unit},
        subscriber_process::{SubscriberProcess, SubscriberSpec},
    },
    deployment::{Deployment, Options},
    traffic,
};

/// Runs the benchmark once on one side.
pub(super) async fn once(
    args: &ClusterIdleArgs,
    server: Server,
    options: Options,
    progress: &Progress,
) -> Result<Figures> {
    progress.step("starting the servers");
    let options = Options {
        counts_bytes: true,
        store: args.store.clone(),
        relay_args: args.sentinel.map(sentinel).into_iter().collect(),
        ..options
    };
    let deployment = Deployment::start(server, &options).await?;
    let queues: Vec<_> = (0..args.queues).map(name).collect::<Result<_>>()?;
    progress.step(&format!("subscribing to {} queues", args.queues));
    let mut processes = Vec::new();
    for server in &deployment.servers {
        let spec = SubscriberSpec::of(&queues, 1, false);
        processes.push(SubscriberProcess::start(server, &spec).await?);
    }
    progress.step("idle");
    let log = || args.azurite_log.as_deref().map(requests).transpose();
    let (before, bytes, logged) = (deployment.usage(), deployment.link_bytes(), log()?);
    tokio::time::sleep(args.hold).await;
    let bytes = deployment.link_bytes().zip(bytes);
    let logged = log()?.zip(logged);
    let after = deployment.usage();

    let relays = deployment.servers.len() as f64;
    let seconds = args.hold.as_secs_f64();
    let grown = |(after, before): (u64, u64)| (after - before) as f64;
    let mut figures = Figures::of_counts(&[("queues", args.queues.into())]);
    figures.add("relays", Unit::Count, relays);
    figures.add("wall", Unit::Seconds, seconds);
    let cpu = after.servers.seconds_since(&before.servers);
    let share = cpu.map(|cpu| cpu * 100.0 / seconds / relays);
    figures.add("percent of a core, each relay", Unit::Ratio, share);
    let bytes = bytes.map(|bytes| grown(bytes) / seconds);
    figures.add("link bytes", Unit::PerSecond, bytes);
    figures.add("storage requests", Unit::Count, logged.map(grown));
    traffic::usage(&mut figures, &deployment, &before);
    for process in processes {
        process.stop().await;
    }
    deployment.stop().await;
    Ok(figures)
}

fn name(queue: u16) -> Result<QueueAddress> {
    Ok(QueueAddress::new("bench", &format!("i{queue:04}"))?)
}
