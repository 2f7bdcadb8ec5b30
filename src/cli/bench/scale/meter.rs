//! Notifications of one queue with one subscriber, at a steady rate, and how long they take.
//!
//! A notification is sent at its time whether or not the ones before it were answered, so that a
//! relay that stops for a second shows in all notifications of that second. Sums are exact: a phase
//! ends when every notification was acknowledged and told, and none twice.

use std::{collections::VecDeque, time::Duration};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use hdrhistogram::Histogram;
use reveille::{
    ListenerId, Notification, Publisher, PublisherOptions, QueueAddress, SubscribeOptions,
    Subscription,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, Interval, MissedTickBehavior, interval, sleep_until},
};

use super::{super::fleet::Latencies, LOST, client, names};

/// What measures, seen from who asks.
#[derive(Debug)]
pub(super) struct Meter {
    orders: mpsc::Sender<Order>,
    task: JoinHandle<Result<()>>,
}

/// What was measured in a phase.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Until the publisher had the acknowledgement.
    pub(super) ack: Latencies,
    /// Until the subscriber had the wake-up.
    pub(super) wake: Latencies,
    pub(super) notifications: u64,
}

#[derive(Debug)]
enum Order {
    Begin,
    End(oneshot::Sender<Sample>),
}

/// The task's state.
struct Running {
    publisher: Publisher,
    subscription: Subscription,
    queue: QueueAddress,
    /// `None` between phases.
    ticks: Option<Interval>,
    acks: FuturesUnordered<BoxFuture<'static, Result<Duration>>>,
    /// When each notification was sent that the subscriber was not told of yet, oldest first.
    sent: VecDeque<Instant>,
    ack: Histogram<u64>,
    wake: Histogram<u64>,
    ends: Option<oneshot::Sender<Sample>>,
    /// A phase that ends has come to its sums by then.
    deadline: Instant,
}

/// The longest latency told apart, in nanoseconds: ten minutes.
pub(super) const LONGEST: u64 = 600_000_000_000;

impl Meter {
    /// Subscribes, and waits until both connections are open.
    pub(super) async fn start(target: &str, pause: Duration) -> Result<Self> {
        let queue = names::measured()?;
        let client = client(target)?;
        let options = SubscribeOptions::new(ListenerId::new("measured")?, [queue.clone()]);
        let mut subscription = client.subscribe(options)?;
        subscription.next().await.context("no first wake-up")??;
        let publisher = client.publisher_with(PublisherOptions {
            conflate: false,
            // A relay that stops for a while does not stop the publisher.
            pipeline: 4_096,
            max_pending: 1_000_000,
            deadline: LOST,
            ..PublisherOptions::default()
        });
        publisher.notify(Notification::new(queue.clone())).await?;
        subscription.next().await.context("no wake-up")??;
        let (orders, received) = mpsc::channel(1);
        let running = Running {
            publisher,
            subscription,
            queue,
            ticks: None,
            acks: FuturesUnordered::new(),
            sent: VecDeque::new(),
            ack: Histogram::new_with_bounds(1, LONGEST, 3)?,
            wake: Histogram::new_with_bounds(1, LONGEST, 3)?,
            ends: None,
            deadline: Instant::now(),
        };
        let task = tokio::spawn(running.run(received, pause));
        Ok(Self { orders, task })
    }

    /// Begins a phase.
    pub(super) async fn begin(&mut self) -> Result<()> {
        if self.orders.send(Order::Begin).await.is_err() {
            self.failed().await?;
        }
        Ok(())
    }

    /// Ends a phase; returns what it came to.
    pub(super) async fn end(&mut self) -> Result<Sample> {
        let (answer, answered) = oneshot::channel();
        // Where the task has failed, the answer does not come either.
        let _ = self.orders.send(Order::End(answer)).await;
        match answered.await {
            Ok(sample) => Ok(sample),
            Err(_) => {
                self.failed().await?;
                anyhow::bail!("the measured notifications have ended")
            }
        }
    }

    async fn failed(&mut self) -> Result<()> {
        (&mut self.task).await?
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Running {
    async fn run(mut self, mut orders: mpsc::Receiver<Order>, pause: Duration) -> Result<()> {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    None => return Ok(()),
                    Some(Order::Begin) => self.begin(pause),
                    Some(Order::End(answer)) => {
                        self.ticks = None;
                        self.ends = Some(answer);
                        self.deadline = Instant::now() + LOST;
                    }
                },
                () = tick(&mut self.ticks) => self.send(),
                Some(acked) = self.acks.next() => record(&mut self.ack, acked?),
                work = self.subscription.next() => {
                    let work = work.context("no more wake-ups")??;
                    self.woken(work.notifications)?;
                }
                () = sleep_until(self.deadline), if self.ends.is_some() => {
                    anyhow::bail!("{} notifications were not told of", self.sent.len());
                }
            }
            if self.acks.is_empty() && self.sent.is_empty() {
                self.end();
            }
        }
    }

    fn begin(&mut self, pause: Duration) {
        self.ack.reset();
        self.wake.reset();
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        self.ticks = Some(ticks);
    }

    fn send(&mut self) {
        let (publisher, queue) = (self.publisher.clone(), self.queue.clone());
        self.sent.push_back(Instant::now());
        self.acks.push(Box::pin(async move {
            let began = Instant::now();
            publisher.notify(Notification::new(queue)).await?;
            Ok(began.elapsed())
        }));
    }

    /// The subscriber was told of so many notifications: the oldest ones.
    fn woken(&mut self, notifications: u64) -> Result<()> {
        let waiting = self.sent.len() as u64;
        ensure!(
            notifications <= waiting,
            "the sums are wrong: told of {notifications} notifications where {waiting} were sent"
        );
        for sent in self.sent.drain(..usize::try_from(notifications)?) {
            record(&mut self.wake, sent.elapsed());
        }
        Ok(())
    }

    /// All notifications were acknowledged and told: answers who waits for that.
    fn end(&mut self) {
        if let Some(answer) = self.ends.take() {
            let sample = Sample {
                ack: Latencies::of(&self.ack),
                wake: Latencies::of(&self.wake),
                notifications: self.wake.len(),
            };
            // Where the phase was given up, nobody takes it.
            let _ = answer.send(sample);
        }
    }
}

async fn tick(ticks: &mut Option<Interval>) {
    match ticks {
        Some(ticks) => drop(ticks.tick().await),
        None => std::future::pending().await,
    }
}

pub(super) fn record(histogram: &mut Histogram<u64>, span: Duration) {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    histogram.saturating_record(nanos.max(1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::scale::tests::node;

    #[tokio::test]
    async fn each_notification_of_a_phase_is_acknowledged_and_told_once() {
        let node = node().await;
        let pause = Duration::from_millis(1);
        let mut meter = Meter::start(&node.url(), pause).await.expect("started");
        for _ in 0..2 {
            meter.begin().await.expect("running");
            tokio::time::sleep(Duration::from_millis(50)).await;
            let sample = meter.end().await.expect("exact sums");
            assert!(sample.notifications > 0);
            assert!(sample.ack.p50 > 0 && sample.wake.max >= sample.wake.p50);
        }
        node.shutdown(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_notification_of_another_publisher_makes_the_sums_wrong() {
        let node = node().await;
        let pause = Duration::from_secs(3600);
        let mut meter = Meter::start(&node.url(), pause).await.expect("started");
        let other = client(&node.url()).expect("a URL").publisher("other");
        let queue = names::measured().expect("a name");
        other
            .notify(Notification::new(queue))
            .await
            .expect("acknowledged");
        let error = meter.failed().await.expect_err("wrong").to_string();
        assert!(error.contains("the sums are wrong"), "{error}");
    }
}
