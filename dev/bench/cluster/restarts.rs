//! A rolling restart: each relay in turn ends in order and starts again, under a publisher and listeners
//! at any relay.
//!
//! The clients are in this process. A queue is notified once, so that no later wake-up hides a lost
//! one. A listener has three queues.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use reveille::{
    Client, ListenerId, Notification, Publisher, QueueAddress, SubscribeOptions, Subscription,
    WakeReason, WakeStream as _,
};
use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        args::ClusterRestartsArgs,
        child,
        directory::Directory,
        progress::Progress,
        report::{Figures, Unit},
    },
    RELAYS,
    deployment::Options,
    processes::Processes,
    traffic,
};

/// The queues of one listener.
const QUEUES: u32 = 3;
/// Streams that are opened at one time.
const OPENING: usize = 100;
/// After the last restart: reconnections, and checks that are spread over two seconds.
const SETTLE: Duration = Duration::from_secs(5);
/// After its acknowledgement each listener is told of a notification within this time: a move to another
/// relay, and two seconds over which checks are spread.
const BOUND: Duration = Duration::from_secs(5);
/// A relay answers at most this long after its count.
const ANSWER: Duration = Duration::from_millis(1_100);
/// A relay ends at most this long after its drain: the rest of C15.
const END: Duration = Duration::from_secs(30);

/// A notification: when it began, and when it was acknowledged.
struct Answered {
    queue: u32,
    began: Instant,
    acknowledged: Instant,
}

/// The wake-ups of one listener, by queue.
type Wakes = HashMap<QueueAddress, Vec<(Instant, WakeReason)>>;

/// The judgement of a run.
#[derive(Default)]
struct Totals {
    /// Pairs of a listener and a queue of it.
    pairs: u64,
    /// Those of them whose queue was notified, and that had no wake-up after that.
    due: u64,
    lost: u64,
    late: u64,
    /// CATCH_UPs since the first restart: of all pairs, and of the pair with most.
    checks: u64,
    most_checks: u64,
    longest: Duration,
}

/// Runs the benchmark once.
pub(super) async fn once(
    args: &ClusterRestartsArgs,
    options: &Options,
    progress: &Progress,
) -> Result<Figures> {
    child::raise_limits();
    progress.step("starting the servers");
    let directory = Directory::new()?;
    let store = directory.path().join("flags.db");
    let drain = format!("--drain={}ms", args.drain.as_millis());
    let mut processes = Processes::start(&options.nats, &store, &[drain]).await?;
    let urls = processes.urls().join(",");
    progress.step(&format!("opening {} streams", args.listeners));
    let stop = CancellationToken::new();
    let listeners = open(args, &urls, &stop).await?;
    sleep(SETTLE).await;

    let began = Instant::now();
    let publisher = Client::new(&urls)?.publisher("bench");
    let restarted = CancellationToken::new();
    let publishing = publish(publisher, (args.queues, args.rate), restarted.clone());
    let publishing = tokio::spawn(publishing);
    for number in 0..RELAYS {
        progress.step(&format!("restart {} of {RELAYS}", number + 1));
        processes
            .restart_relay(number, args.drain * 2 + END)
            .await?;
        processes.found_each_other().await?;
    }
    let span = began.elapsed();
    progress.step("waiting for the last wake-ups");
    restarted.cancel();
    let answered = publishing.await??;
    sleep(SETTLE).await;
    stop.cancel();
    let mut totals = Totals::default();
    for (queues, wakes) in listeners
        .join_all()
        .await
        .into_iter()
        .collect::<Result<Vec<_>>>()?
    {
        for queue in queues {
            let all = wakes.get(&address(queue)?).map_or(&[][..], Vec::as_slice);
            totals.judge(answered.get(queue as usize), all, began);
        }
    }
    processes.stop().await;
    totals.figures(args, answered.len() as u64, span)
}

/// Opens the streams of all listeners.
async fn open(
    args: &ClusterRestartsArgs,
    urls: &str,
    stop: &CancellationToken,
) -> Result<JoinSet<Result<(Vec<u32>, Wakes)>>> {
    let (mut listeners, mut links) = (JoinSet::new(), Vec::new());
    for number in 0..args.listeners {
        let queues: Vec<_> = (0..QUEUES)
            .map(|at| (number * QUEUES + at) % args.queues)
            .collect();
        let addresses = queues.iter().copied().map(address);
        let addresses = addresses.collect::<Result<Vec<_>>>()?;
        let id = ListenerId::new(&format!("listener-{number}"))?;
        let stream = Client::new(urls)?.subscribe(SubscribeOptions::new(id, addresses))?;
        links.push(stream.link());
        let stop = stop.clone();
        listeners.spawn(async move { Ok((queues, listen(stream, stop).await?)) });
        if links.len() == OPENING || number + 1 == args.listeners {
            traffic::welcomed(links.drain(..)).await?;
        }
    }
    Ok(listeners)
}

/// One listener: notes each wake-up, and reports its queue as empty.
async fn listen(mut stream: Subscription, stop: CancellationToken) -> Result<Wakes> {
    let mut wakes = Wakes::new();
    loop {
        let work = tokio::select! {
            work = stream.next() => work.context("no more wake-ups")??,
            () = stop.cancelled() => return Ok(wakes),
        };
        let report = traffic::drained(&work)?;
        let all = wakes.entry(report.queue.clone()).or_default();
        all.push((Instant::now(), work.reason));
        // Without a stream it is of no use: the next one begins with a check.
        let _ = stream.report(report).await;
    }
}

/// Notifies one queue after the other; returns the acknowledgements in their order.
async fn publish(
    publisher: Publisher,
    (queues, rate): (u32, u32),
    stop: CancellationToken,
) -> Result<Vec<Answered>> {
    let mut ticks = interval(Duration::from_secs(1) / rate);
    let mut waiting = JoinSet::new();
    for queue in 0.. {
        ticks.tick().await;
        if stop.is_cancelled() {
            break;
        }
        ensure!(
            queue < queues,
            "all queues are notified before the last restart: use more --queues, or a lower --rate"
        );
        let (publisher, address) = (publisher.clone(), address(queue)?);
        waiting.spawn(async move {
            let began = Instant::now();
            publisher.notify(Notification::new(address)).await?;
            Ok(Answered {
                queue,
                began,
                acknowledged: Instant::now(),
            })
        });
    }
    let mut all = waiting
        .join_all()
        .await
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    all.sort_by_key(|one| one.queue);
    Ok(all)
}

impl Answered {
    /// A relay counts a notification at most [`ANSWER`] before it answers, so an earlier check may have
    /// come before the count.
    fn is_told_by(&self, (at, reason): &(Instant, WakeReason)) -> bool {
        let counted = match reason {
            WakeReason::Notified => self.began,
            _ => self.began.max(self.acknowledged - ANSWER),
        };
        *at >= counted
    }
}

impl Totals {
    /// Judges the wake-ups of one listener and queue: those of its notification, and the checks since the
    /// first restart.
    fn judge(
        &mut self,
        answered: Option<&Answered>,
        wakes: &[(Instant, WakeReason)],
        began: Instant,
    ) {
        self.pairs += 1;
        if let Some(answered) = answered {
            self.due += 1;
            match wakes.iter().find(|wake| answered.is_told_by(wake)) {
                Some((at, _)) => {
                    let delay = at.saturating_duration_since(answered.acknowledged);
                    self.longest = self.longest.max(delay);
                    self.late += u64::from(delay > BOUND);
                }
                None => self.lost += 1,
            }
        }
        let checks = wakes.iter().filter(|(at, _)| *at >= began);
        let checks = checks.filter(|(_, reason)| *reason == WakeReason::CatchUp);
        let checks = checks.count() as u64;
        self.checks += checks;
        self.most_checks = self.most_checks.max(checks);
    }

    /// # Errors
    /// A wake-up is lost or late.
    fn figures(
        &self,
        args: &ClusterRestartsArgs,
        notifications: u64,
        span: Duration,
    ) -> Result<Figures> {
        if self.lost + self.late > 0 {
            let Self {
                lost, late, due, ..
            } = self;
            let text = format!("of {due} wake-ups {lost} are lost, and {late} are late");
            anyhow::bail!(text);
        }
        let mut figures = Figures::of_counts(&[
            ("listeners", args.listeners.into()),
            ("notifications", notifications),
            ("due wake-ups", self.due),
            ("lost", self.lost),
            ("late", self.late),
            ("most checks/listener and queue", self.most_checks),
        ]);
        let mean = self.checks as f64 / self.pairs as f64;
        figures.add("checks/listener and queue", Unit::Ratio, mean);
        figures.add("longest delay", Unit::Seconds, self.longest.as_secs_f64());
        figures.add("restarts", Unit::Seconds, span.as_secs_f64());
        Ok(figures)
    }
}

fn address(queue: u32) -> Result<QueueAddress> {
    Ok(QueueAddress::new("bench", &format!("r{queue:06}"))?)
}
