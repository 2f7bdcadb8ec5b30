//! Very many queues, patterns and subscriptions: what each costs, and whether one notification still
//! goes quickly while a `*/*` subscriber comes, listens and leaves.
//!
//! The relay, the many subscriptions and the `*/*` subscription are processes of their own; this one
//! holds the publishers and the one subscriber whose latencies count. All sums must be exact.

pub(super) mod crowd;
mod meter;
mod names;
mod pages;
mod phases;
mod reconnect;
mod setup;
mod visit;
pub(super) mod wildcard;

use std::time::Duration;

use anyhow::{Context, Result};
use reveille::{Client, ClientConfig, Publisher, PublisherOptions};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use self::phases::Phases;
use super::{
    ScaleArgs,
    broker::Broker,
    helper::Helper,
    progress::Progress,
    report::{Figures, Unit},
};

/// The first word of a line that says how far a child has come.
const AT: &str = "at";
/// Asks a child for its sums.
const TOLD: &str = "told";
/// Events of one request, the most there may be, and requests in flight.
const BATCH: usize = 1_024;
const PIPELINE: usize = 16;
/// Queues beside those that are asked for and a tenth more: the measured one and the new ones.
const SPARE: usize = 2_000;
/// A busy relay is waited for, because the time that it takes is what is measured.
const PATIENCE: Duration = Duration::from_secs(600);
/// A notification that was not told within this is lost.
const LOST: Duration = Duration::from_secs(120);
/// How often the sums of a child are read.
const COMPARE: Duration = Duration::from_millis(50);

/// Does the work once.
pub(super) async fn once(args: &ScaleArgs, progress: &Progress) -> Result<Figures> {
    let queues = usize::try_from(args.queues)?;
    let broker = Broker::relay_of(queues + queues / 10 + SPARE, args.sentinel).await?;
    let publisher = publisher(&broker.target)?;
    let mut figures = Figures::default();
    for (name, count) in [
        ("queues", args.queues),
        ("patterns", args.patterns),
        ("subscriptions", args.subscriptions),
    ] {
        figures.add(name, Unit::Count, Some(count.into()));
    }
    progress.say(&format!("notifying {} queues", args.queues));
    setup::notify_queues(args, &broker, &publisher, &mut figures).await?;
    let mut crowd = setup::open_crowd(args, &broker, progress, &mut figures).await?;

    let mut phases = Phases::start(&broker, args.pause, progress, figures).await?;
    let hold = args.hold;
    phases.run("quiet", idle(hold)).await?;
    visit::visit(args, &broker, &publisher, &mut crowd, &mut phases).await?;
    let lists = pages::measure(&broker.target, args.queues);
    let pages = phases.run("pages", lists).await?;
    let resuming = reconnect::measure(&broker.target, args.queues);
    let reconnect = phases.run("reconnect", resuming).await?;
    let mut figures = phases.finish();
    pages.add(&mut figures);
    reconnect.add(&mut figures);

    crowd.stop().await;
    let usage = broker.usage();
    let cpu = usage.cpu.map(|cpu| cpu.as_secs_f64());
    figures.add("cpu", Unit::Seconds, cpu);
    figures.add("rss", Unit::Kib, usage.rss_kib.map(|kib| kib as f64));
    broker.stop().await;
    Ok(figures)
}

async fn idle(hold: Duration) -> Result<()> {
    sleep(hold).await;
    Ok(())
}

/// Waits for a child's answer, and shows how far it has come meanwhile.
async fn answer(child: &mut Helper, progress: &Progress, what: &str) -> Result<String> {
    loop {
        let line = child.line().await?;
        match line.split_once(' ') {
            Some((AT, count)) => progress.tick(&format!("{what}: {count}")),
            _ => return Ok(line),
        }
    }
}

/// Reads a child's sums until they are large enough, or for as long as something may be on its way.
async fn sums<T: DeserializeOwned>(child: &mut Helper, enough: impl Fn(&T) -> bool) -> Result<T> {
    let last = Instant::now() + LOST;
    loop {
        child.tell(TOLD).await?;
        let line = child.line().await?;
        let told = serde_json::from_str(&line).context(line)?;
        if enough(&told) || Instant::now() > last {
            return Ok(told);
        }
        sleep(COMPARE).await;
    }
}

/// Returns how much the relay's memory has grown for each of so many, in KiB; `None` where the
/// system does not tell.
fn grown(broker: &Broker, before: Option<u64>, count: u32) -> Option<f64> {
    let (after, before) = broker.usage().rss_kib.zip(before)?;
    Some((after as f64 - before as f64) / f64::from(count.max(1)))
}

/// Returns a client that waits for a busy relay instead of asking again.
fn client(target: &str) -> Result<Client> {
    let config = ClientConfig {
        request_timeout: PATIENCE,
        ..ClientConfig::default()
    };
    Ok(Client::with_config(target, config)?)
}

/// Returns a publisher that sends what each call is given as one request.
fn publisher(target: &str) -> Result<Publisher> {
    Ok(client(target)?.publisher_with(PublisherOptions {
        conflate: false,
        batch: BATCH,
        pipeline: PIPELINE,
        deadline: PATIENCE,
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
