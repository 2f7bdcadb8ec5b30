//! One group with members on all relays: wake-ups for a single message, and for a burst.
//!
//! The members are in this process, on a connection each. A member reports DRAINED when it has
//! handled a message, and has room for one. Single messages come through the relays in turn.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use reveille::{
    Client, GroupName, ListenerId, Notification, Publisher, QueueAddress, SubscribeOptions,
    Subscription, WakeReason, WakeStream as _, WorkDetected,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use super::{
    super::{
        Server,
        args::ClusterGroupArgs,
        progress::Progress,
        report::{Figures, Unit},
        single_queue::queue,
    },
    burst::spread,
    deployment::{Deployment, Options},
    traffic,
};

/// A wake-up of a member.
struct Woken {
    member: u64,
    work: WorkDetected,
    at: SystemTime,
}

/// The members of the group, and a publisher at each relay.
struct Members {
    woken: mpsc::UnboundedReceiver<Woken>,
    publishers: Vec<Publisher>,
    queue: QueueAddress,
    /// Aborts the members when it is dropped.
    _tasks: JoinSet<Result<()>>,
}

/// Time in which new members are woken for their first check, and report.
const SETTLE: Duration = Duration::from_secs(2);
/// Time in which the wake-ups of a burst are counted; all members are idle after it.
const BURST: Duration = Duration::from_secs(1);

/// Runs the benchmark once on one side.
pub(super) async fn once(
    args: &ClusterGroupArgs,
    server: Server,
    options: Options,
    progress: &Progress,
) -> Result<Figures> {
    progress.step("starting the servers");
    let deployment = Deployment::start(server, &options).await?;
    let mut members = Members::join(args, &deployment).await?;
    sleep(SETTLE).await;
    members.take_until(Instant::now()).await;
    let before = deployment.usage();
    progress.step(&format!("{} single messages", args.messages));
    let mut took = Histogram::<u64>::new(3)?;
    let mut wakeups = 0;
    for number in 0..args.messages {
        let at = usize::try_from(number)? % members.publishers.len();
        members.notify(at, 1).await?;
        let woken = members.take_until(Instant::now() + args.pause).await;
        wakeups += woken.len();
        for one in &woken {
            took.record(latency(one))?;
        }
    }
    progress.step(&format!("{} bursts", args.bursts));
    let (mut distinct, mut of_bursts) = (0, 0);
    for _ in 0..args.bursts {
        members.notify(0, args.members).await?;
        let woken = members.take_until(Instant::now() + BURST).await;
        let distinct_members: HashSet<_> = woken.iter().map(|one| one.member).collect();
        distinct += distinct_members.len();
        of_bursts += woken.len();
    }
    let mut figures = Figures::of_counts(&[
        ("members", args.members),
        ("single messages", args.messages),
        ("bursts", args.bursts),
    ]);
    let each = |count: usize, of: u64| count as f64 / of as f64;
    for (name, value) in [
        ("wake-ups/message", each(wakeups, args.messages)),
        ("members woken by a burst", each(distinct, args.bursts)),
        ("wake-ups of a burst", each(of_bursts, args.bursts)),
    ] {
        figures.add(name, Unit::Ratio, value);
    }
    for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
        let micros = took.value_at_quantile(part) as f64 / 1e3;
        figures.add(name, Unit::Micros, micros);
    }
    traffic::usage(&mut figures, &deployment, &before);
    drop(members);
    deployment.stop().await;
    Ok(figures)
}

impl Members {
    /// Starts the members, and waits until each has a stream.
    async fn join(args: &ClusterGroupArgs, deployment: &Deployment) -> Result<Self> {
        let (queue, group) = (queue()?, GroupName::new("bench")?);
        let (report, woken) = mpsc::unbounded_channel();
        let (mut tasks, mut links, mut member) = (JoinSet::new(), Vec::new(), 0);
        for (server, count) in spread(&deployment.servers, args.members) {
            for _ in 0..count {
                let id = ListenerId::new(&format!("member-{member}"))?;
                let stream = Client::new(&server.target)?.subscribe(SubscribeOptions {
                    group: Some(group.clone()),
                    capacity: 1,
                    ..SubscribeOptions::new(id, [queue.clone()])
                })?;
                links.push(stream.link());
                tasks.spawn(work(stream, member, args.handling, report.clone()));
                member += 1;
            }
        }
        traffic::welcomed(links).await?;
        let publisher = |server| Ok(Client::new(server)?.publisher("bench"));
        let targets = deployment.servers.iter().map(|server| &*server.target);
        Ok(Self {
            woken,
            publishers: targets.map(publisher).collect::<Result<_>>()?,
            queue,
            _tasks: tasks,
        })
    }

    /// Notifies of this number of messages at once, through one relay.
    async fn notify(&self, publisher: usize, messages: u64) -> Result<()> {
        let notification = Notification {
            messages,
            published_at: Some(SystemTime::now()),
            ..Notification::new(self.queue.clone())
        };
        self.publishers[publisher].notify(notification).await?;
        Ok(())
    }

    /// Returns the wake-ups until this time, without checks.
    async fn take_until(&mut self, end: Instant) -> Vec<Woken> {
        let mut woken = Vec::new();
        while let Ok(Some(one)) = timeout_at(end, self.woken.recv()).await {
            if one.work.reason != WakeReason::Sentinel {
                woken.push(one);
            }
        }
        woken
    }
}

/// One member: handles each wake-up, and then reports DRAINED.
async fn work(
    mut stream: Subscription,
    member: u64,
    handling: Duration,
    woken: mpsc::UnboundedSender<Woken>,
) -> Result<()> {
    loop {
        let work = stream.next().await.context("no more wake-ups")??;
        let at = SystemTime::now();
        let report = stream.report(traffic::drained(&work)?);
        woken.send(Woken { member, work, at })?;
        sleep(handling).await;
        report.await?;
    }
}

/// Returns the time from publisher to member in nanoseconds.
fn latency(woken: &Woken) -> u64 {
    let published_at = woken.work.published_at.unwrap_or(woken.at);
    let span = woken.at.duration_since(published_at).unwrap_or_default();
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
