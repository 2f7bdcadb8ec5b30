//! Very many queues, patterns and subscriptions: measures the memory of each, and the latency of
//! one queue's notifications while a `*/*` subscriber connects, runs and leaves.
//!
//! The relay, the many subscriptions and the `*/*` subscription are separate processes. This
//! process has the publishers and the one subscriber whose latencies are measured. All sums must be
//! exact.

mod latency_probe;
mod names;
mod pages;
mod phases;
mod reconnect;
mod setup;
pub(super) mod subscriptions;
pub(super) mod wildcard;
mod wildcard_phases;

use std::time::Duration;

use anyhow::{Context, Result};
use reveille::{Client, ClientConfig, Publisher, PublisherOptions};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use self::phases::Phases;
use super::{
    args::ScaleArgs,
    broker::{Broker, sentinel},
    progress::Progress,
    report::{Figures, Unit},
};
use crate::child::Child;

/// The first word of a child's progress line.
const AT: &str = "at";
/// The command on which a child prints its sums.
const SUMS: &str = "sums";
/// Events of one request, the maximum, and requests in flight.
const BATCH: usize = 1_024;
const PIPELINE: usize = 16;
/// Room for queues beyond `--queues` and a tenth more: the measured queue and the new ones.
const SPARE: usize = 2_000;
/// Time-out of a request: long, because the answer time of a busy relay is measured.
const TIMEOUT: Duration = Duration::from_secs(600);
/// A notification that was not delivered within this time is lost.
const LOSS_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the sums of a child are read.
const SUMS_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the benchmark once.
pub(super) async fn once(args: &ScaleArgs, progress: &Progress) -> Result<Figures> {
    let queues = usize::try_from(args.queues)?;
    let max_queues = queues + queues / 10 + SPARE;
    let mut relay = vec![
        format!("--max-queues={max_queues}"),
        "--measure-polls".to_owned(),
    ];
    relay.extend(args.sentinel.map(sentinel));
    let broker = Broker::relay(&relay).await?;
    let publisher = publisher(&broker.target)?;
    let mut figures = Figures::of_counts(&[
        ("queues", args.queues.into()),
        ("patterns", args.patterns.into()),
        ("subscriptions", args.subscriptions.into()),
    ]);
    progress.step(&format!("notifying {} queues", args.queues));
    setup::notify_queues(args, &broker, &publisher, &mut figures).await?;
    let mut subscriptions =
        setup::open_subscriptions(args, &broker, progress, &mut figures).await?;

    let mut phases = Phases::start(&broker, args.pause, progress, figures).await?;
    let hold = args.hold;
    phases.run("quiet", idle(hold)).await?;
    wildcard_phases::run(args, &broker, &publisher, &mut subscriptions, &mut phases).await?;
    let lists = pages::measure(&broker.target, args.queues);
    let pages = phases.run("pages", lists).await?;
    let resuming = reconnect::measure(&broker.target, args.queues);
    let reconnect = phases.run("reconnect", resuming).await?;
    let mut figures = phases.finish();
    pages.add(&mut figures);
    reconnect.add(&mut figures);

    subscriptions.stop().await;
    let usage = broker.usage();
    let cpu = usage.cpu.map(|cpu| cpu.as_secs_f64());
    figures.add("cpu", Unit::Seconds, cpu);
    figures.add("rss", Unit::Kib, usage.kib());
    broker.stop().await;
    Ok(figures)
}

async fn idle(hold: Duration) -> Result<()> {
    sleep(hold).await;
    Ok(())
}

/// Waits for a child's answer, and shows its progress.
async fn answer(child: &mut Child, progress: &Progress, step: &str) -> Result<String> {
    loop {
        let line = child.line().await?;
        match line.split_once(' ') {
            Some((AT, count)) => progress.tick(&format!("{step}: {count}")),
            _ => return Ok(line),
        }
    }
}

/// Reads a child's sums until they are large enough, for at most [`LOSS_TIMEOUT`].
async fn read_sums<T: DeserializeOwned>(
    child: &mut Child,
    enough: impl Fn(&T) -> bool,
) -> Result<T> {
    let deadline = Instant::now() + LOSS_TIMEOUT;
    loop {
        child.send(SUMS).await?;
        let line = child.line().await?;
        let sums = serde_json::from_str(&line).context(line)?;
        if enough(&sums) || Instant::now() > deadline {
            return Ok(sums);
        }
        sleep(SUMS_INTERVAL).await;
    }
}

/// Returns the growth of the relay's memory for each of `count` items, in KiB; `None` if the system
/// does not report it.
fn grown(broker: &Broker, before: Option<u64>, count: u32) -> Option<f64> {
    let (after, before) = broker.usage().rss_kib.zip(before)?;
    Some((after as f64 - before as f64) / f64::from(count.max(1)))
}

/// Returns a client with a long time-out, so that it waits for a busy relay instead of retrying.
fn client(target: &str) -> Result<Client> {
    let config = ClientConfig {
        request_timeout: TIMEOUT,
        ..ClientConfig::default()
    };
    Ok(Client::with_config(target, config)?)
}

/// Returns a publisher that sends the notifications of each call in one request.
fn publisher(target: &str) -> Result<Publisher> {
    Ok(client(target)?.publisher_with(PublisherOptions {
        conflate: false,
        batch: BATCH,
        pipeline: PIPELINE,
        deadline: TIMEOUT,
        ..PublisherOptions::default()
    }))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use reveille::{Node, NodeConfig, Notification, QueueAddress};

    use super::*;

    /// Starts a relay in this process.
    pub(super) async fn node() -> Node {
        let config = NodeConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            admin_listen: None,
            ..NodeConfig::default()
        };
        Node::start(config).await.expect("started")
    }

    /// Notifies each queue once.
    pub(super) async fn notify(node: &Node, queues: &[QueueAddress]) {
        let publisher = publisher(&node.url()).expect("a URL");
        for chunk in queues.chunks(BATCH) {
            let notifications = chunk.iter().cloned().map(Notification::new).collect();
            let accepted = publisher.notify_all(notifications).await;
            assert_eq!(accepted.expect("acknowledged").len(), chunk.len());
        }
    }
}
