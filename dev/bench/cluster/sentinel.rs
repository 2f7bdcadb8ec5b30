//! Checks that the sentinel asks for, of one queue with listeners on all relays.
//!
//! The listeners are in this process, on a connection each. Each one reports DRAINED at once, so the
//! relays tell each other of the check.

use anyhow::{Context as _, Result, ensure};
use reveille::{Client, ListenerId, SubscribeOptions, Subscription, WakeReason, WakeStream as _};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    super::{
        Server,
        args::ClusterSentinelArgs,
        broker,
        progress::Progress,
        report::{Figures, Unit},
        single_queue::queue,
    },
    burst::spread,
    deployment::{Deployment, Options},
    traffic,
};

/// Runs the benchmark once on one side.
pub(super) async fn once(
    args: &ClusterSentinelArgs,
    server: Server,
    options: Options,
    progress: &Progress,
) -> Result<Figures> {
    progress.step("starting the servers");
    let options = Options {
        relay_args: vec![broker::sentinel(args.sentinel)],
        ..options
    };
    let deployment = Deployment::start(server, &options).await?;
    let (sender, mut woken) = mpsc::unbounded_channel();
    let (mut listeners, mut links) = (JoinSet::new(), Vec::new());
    for (server, count) in spread(&deployment.servers, args.listeners) {
        for _ in 0..count {
            let id = ListenerId::new(&format!("listener-{}", links.len()))?;
            let options = SubscribeOptions::new(id, [queue()?]);
            let stream = Client::new(&server.target)?.subscribe(options)?;
            links.push(stream.link());
            listeners.spawn(listen(stream, sender.clone()));
        }
    }
    traffic::welcomed(links).await?;
    // The first checks of new streams are over.
    let settled = Instant::now() + args.sentinel;
    while timeout_at(settled, woken.recv()).await.is_ok() {}
    progress.step("counting the checks");
    let before = deployment.usage();
    let end = Instant::now() + args.hold;
    let mut checks = 0_u64;
    while let Ok(reason) = timeout_at(end, woken.recv()).await {
        checks += u64::from(reason == Some(WakeReason::Sentinel));
    }
    ensure!(listeners.try_join_next().is_none(), "a listener has ended");
    let mut figures = Figures::of_counts(&[("listeners", args.listeners), ("checks", checks)]);
    figures.add("sentinel", Unit::Seconds, args.sentinel.as_secs_f64());
    figures.add("wall", Unit::Seconds, args.hold.as_secs_f64());
    traffic::usage(&mut figures, &deployment, &before);
    drop(listeners);
    deployment.stop().await;
    Ok(figures)
}

/// One listener: reports each queue that it is woken for as empty.
async fn listen(mut stream: Subscription, woken: mpsc::UnboundedSender<WakeReason>) -> Result<()> {
    loop {
        let work = stream.next().await.context("no more wake-ups")??;
        woken.send(work.reason)?;
        stream.report(traffic::drained(&work)?).await?;
    }
}
