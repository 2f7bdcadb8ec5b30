//! A publisher and a subscriber that an attack must not disturb, and later subscribers.
//!
//! They run on a separate thread, so that an attack can delay them only through the relay. Each
//! notification is sent at its scheduled time, independent of earlier answers. So a relay that
//! stops for a second affects all notifications of that second.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use reveille::{Client, Notification, Publisher, PublisherOptions, Subscription};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};

use super::target::Target;
use crate::support::{PATIENCE, listening, queue, within, woken};

/// The publisher and the subscriber of one queue, seen from the test.
#[derive(Debug)]
pub(super) struct GoodPair {
    phases: mpsc::Sender<Phase>,
}

/// The sorted times from a notification to its wake-up, and the times of late subscribers.
#[derive(Debug, Clone)]
pub(super) struct Latencies {
    wakes: Vec<Duration>,
    /// The longest time from `subscribe` to the catch-up of the last of 500 queues.
    pub(super) late: Duration,
    /// Notifications without a wake-up.
    pub(super) lost: usize,
}

/// A period in which the pair measures.
#[derive(Debug)]
struct Phase {
    /// Set at the end of the period. The pair measures at least this many wake-ups.
    over: Arc<AtomicBool>,
    least: usize,
    answer: oneshot::Sender<Latencies>,
}

/// The pair's state on its thread.
struct Running {
    target: Target,
    publisher: Publisher,
    wakes: Subscription,
}

/// Interval of notifications.
const PAUSE: Duration = Duration::from_millis(5);
/// Interval of late subscribers.
const LATE_PAUSE: Duration = Duration::from_millis(500);
/// A request of about 30 KB, which does not fit into one frame.
const LATE_NAMES: usize = 500;

impl GoodPair {
    /// Subscribes, and waits for the first wake-up.
    pub(super) async fn start(target: Target) -> Self {
        let (phases, orders) = mpsc::channel(1);
        let (started, starts) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let running = Running::start(target).await;
                started.send(()).expect("the test waits");
                running.run(orders).await;
            });
        });
        starts.await.expect("the pair starts");
        Self { phases }
    }

    /// Measures until `over` is set, for at least this many wake-ups.
    pub(super) async fn measure(
        &self,
        over: Arc<AtomicBool>,
        least: usize,
    ) -> oneshot::Receiver<Latencies> {
        let (answer, latencies) = oneshot::channel();
        let phase = Phase {
            over,
            least,
            answer,
        };
        self.phases.send(phase).await.expect("the pair lives");
        latencies
    }
}

impl Running {
    async fn start(target: Target) -> Self {
        let client = target.client();
        let mut wakes = client
            .subscribe(listening("good", &["good/pair"]))
            .expect("options");
        woken(&mut wakes).await;
        let publisher = client.publisher_with(PublisherOptions {
            name: "good".to_owned(),
            // None waits for an answer.
            pipeline: 4_096,
            ..PublisherOptions::default()
        });
        // The connection of a publisher opens with its first notification.
        let orders = Notification::new(queue("good/pair"));
        within("counted", publisher.notify(orders))
            .await
            .expect("counted");
        woken(&mut wakes).await;
        Self {
            target,
            publisher,
            wakes,
        }
    }

    async fn run(mut self, mut phases: mpsc::Receiver<Phase>) {
        while let Some(phase) = phases.recv().await {
            let latencies = self.measure(&phase).await;
            // The test may have ended already.
            let _ = phase.answer.send(latencies);
        }
    }

    async fn measure(&mut self, phase: &Phase) -> Latencies {
        let mut ticks = tokio::time::interval(PAUSE);
        let mut late_ticks = tokio::time::interval(LATE_PAUSE);
        let (mut acks, mut late) = (FuturesUnordered::new(), JoinSet::new());
        let (mut sent, mut wakes) = (VecDeque::<Instant>::new(), Vec::new());
        let mut longest = Duration::ZERO;
        loop {
            let goes_on = !phase.over.load(Ordering::Relaxed) || wakes.len() < phase.least;
            if !goes_on && sent.is_empty() && acks.is_empty() && late.is_empty() {
                break;
            }
            // A failed test ends the relay.
            if phase.answer.is_closed() {
                break;
            }
            let oldest = sent.front().copied();
            let in_vain = oldest.unwrap_or_else(Instant::now) + PATIENCE;
            tokio::select! {
                () = tokio::time::sleep_until(in_vain), if oldest.is_some() => break,
                at = ticks.tick(), if goes_on => {
                    sent.push_back(at);
                    let publisher = self.publisher.clone();
                    let orders = Notification::new(queue("good/pair"));
                    acks.push(async move { publisher.notify(orders).await });
                }
                _ = late_ticks.tick(), if goes_on && late.is_empty() => {
                    late.spawn(late_subscriber(self.target.client()));
                }
                Some(ack) = acks.next() => drop(ack.expect("counted")),
                Some(took) = late.join_next() => {
                    longest = longest.max(took.expect("no panic"));
                }
                work = self.wakes.next() => {
                    let work = work.expect("not ended").expect("not refused");
                    for _ in 0..work.notifications {
                        wakes.extend(sent.pop_front().map(|at| at.elapsed()));
                    }
                }
            }
        }
        Latencies::new(wakes, longest, sent.len())
    }
}

/// Subscribes to many queues on a new connection; returns the time until each had its catch-up.
async fn late_subscriber(client: Client) -> Duration {
    let start = Instant::now();
    let names: Vec<_> = (0..LATE_NAMES)
        .map(|number| format!("late/{}-{number:04}", "n".repeat(40)))
        .collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut wakes = client
        .subscribe(listening("late", &names))
        .expect("options");
    let all = async {
        for _ in 0..LATE_NAMES {
            woken(&mut wakes).await;
        }
    };
    within("all catch-ups of a late subscriber", all).await;
    start.elapsed()
}

impl Latencies {
    fn new(mut wakes: Vec<Duration>, late: Duration, lost: usize) -> Self {
        wakes.sort_unstable();
        Self { wakes, late, lost }
    }

    pub(super) fn count(&self) -> usize {
        self.wakes.len()
    }

    pub(super) fn p99(&self) -> Duration {
        let last = self.wakes.len().saturating_sub(1);
        self.wakes.get(last * 99 / 100).copied().unwrap_or_default()
    }

    pub(super) fn worst(&self) -> Duration {
        self.wakes.last().copied().unwrap_or_default()
    }
}
