//! Measures the latency of notifications of one queue with one subscriber, at a steady rate.
//!
//! A notification is sent at its time whether or not earlier ones were answered. So a relay that
//! stops for a second delays all notifications of that second. The sums are exact: a phase ends
//! when every notification was acknowledged and delivered, and none twice.

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

use super::{super::subscriber_process::Latencies, LOSS_TIMEOUT, client, names};

/// The handle of the measuring task.
#[derive(Debug)]
pub(super) struct LatencyProbe {
    commands: mpsc::Sender<Command>,
    task: JoinHandle<Result<()>>,
}

/// Measurements of a phase.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Time until the publisher has the acknowledgement.
    pub(super) ack: Latencies,
    /// Time until the subscriber has the wake-up.
    pub(super) wake: Latencies,
    pub(super) notifications: u64,
}

#[derive(Debug)]
enum Command {
    Begin,
    End(oneshot::Sender<Sample>),
}

/// The task's state.
struct ProbeTask {
    publisher: Publisher,
    subscription: Subscription,
    queue: QueueAddress,
    /// `None` between phases.
    ticks: Option<Interval>,
    acks: FuturesUnordered<BoxFuture<'static, Result<Duration>>>,
    /// The send times of notifications that are not delivered yet, oldest first.
    sent: VecDeque<Instant>,
    ack: Histogram<u64>,
    wake: Histogram<u64>,
    end_of_phase: Option<oneshot::Sender<Sample>>,
    /// The deadline for the last notifications of a phase.
    deadline: Instant,
}

/// Upper bound of the histograms in nanoseconds: ten minutes.
pub(super) const MAX_LATENCY: u64 = 600_000_000_000;

impl LatencyProbe {
    /// Subscribes, and waits until both connections are open.
    pub(super) async fn start(target: &str, pause: Duration) -> Result<Self> {
        let queue = names::measured()?;
        let client = client(target)?;
        let options = SubscribeOptions::new(ListenerId::new("measured")?, [queue.clone()]);
        let mut subscription = client.subscribe(options)?;
        subscription.next().await.context("no first wake-up")??;
        let publisher = client.publisher_with(PublisherOptions {
            conflate: false,
            // Large limits: a relay that stops for a while must not stop the publisher.
            pipeline: 4_096,
            max_pending: 1_000_000,
            deadline: LOSS_TIMEOUT,
            ..PublisherOptions::default()
        });
        publisher.notify(Notification::new(queue.clone())).await?;
        subscription.next().await.context("no wake-up")??;
        let (commands, received) = mpsc::channel(1);
        let running = ProbeTask {
            publisher,
            subscription,
            queue,
            ticks: None,
            acks: FuturesUnordered::new(),
            sent: VecDeque::new(),
            ack: Histogram::new_with_bounds(1, MAX_LATENCY, 3)?,
            wake: Histogram::new_with_bounds(1, MAX_LATENCY, 3)?,
            end_of_phase: None,
            deadline: Instant::now(),
        };
        let task = tokio::spawn(running.run(received, pause));
        Ok(Self { commands, task })
    }

    /// Begins a phase.
    pub(super) async fn begin(&mut self) -> Result<()> {
        if self.commands.send(Command::Begin).await.is_err() {
            self.failed().await?;
        }
        Ok(())
    }

    /// Ends a phase; returns its measurements.
    pub(super) async fn end(&mut self) -> Result<Sample> {
        let (answer, answered) = oneshot::channel();
        // If the task has failed, the answer fails as well.
        let _ = self.commands.send(Command::End(answer)).await;
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

impl Drop for LatencyProbe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ProbeTask {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>, pause: Duration) -> Result<()> {
        loop {
            tokio::select! {
                order = commands.recv() => match order {
                    None => return Ok(()),
                    Some(Command::Begin) => self.begin(pause),
                    Some(Command::End(answer)) => {
                        self.ticks = None;
                        self.end_of_phase = Some(answer);
                        self.deadline = Instant::now() + LOSS_TIMEOUT;
                    }
                },
                () = tick(&mut self.ticks) => self.send(),
                Some(acked) = self.acks.next() => record(&mut self.ack, acked?),
                work = self.subscription.next() => {
                    let work = work.context("no more wake-ups")??;
                    self.on_wake_up(work.notifications)?;
                }
                () = sleep_until(self.deadline), if self.end_of_phase.is_some() => {
                    anyhow::bail!("{} notifications were not delivered", self.sent.len());
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

    /// Records the delivery of the oldest `notifications` notifications.
    fn on_wake_up(&mut self, notifications: u64) -> Result<()> {
        let waiting = self.sent.len() as u64;
        ensure!(
            notifications <= waiting,
            "the sums are wrong: {notifications} notifications were delivered, and {waiting} were sent"
        );
        for sent in self.sent.drain(..usize::try_from(notifications)?) {
            record(&mut self.wake, sent.elapsed());
        }
        Ok(())
    }

    /// Sends the measurements of a phase whose notifications were all acknowledged and delivered.
    fn end(&mut self) {
        if let Some(answer) = self.end_of_phase.take() {
            let sample = Sample {
                ack: Latencies::of(&self.ack),
                wake: Latencies::of(&self.wake),
                notifications: self.wake.len(),
            };
            // An aborted phase has no receiver.
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
    use crate::scale::tests::node;

    #[tokio::test]
    async fn each_notification_of_a_phase_is_acknowledged_and_delivered_once() {
        let node = node().await;
        let pause = Duration::from_millis(1);
        let mut probe = LatencyProbe::start(&node.url(), pause)
            .await
            .expect("started");
        for _ in 0..2 {
            probe.begin().await.expect("running");
            tokio::time::sleep(Duration::from_millis(50)).await;
            let sample = probe.end().await.expect("exact sums");
            assert!(sample.notifications > 0);
            assert!(sample.ack.p50 > 0 && sample.wake.max >= sample.wake.p50);
        }
        node.shutdown(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_notification_of_another_publisher_makes_the_sums_wrong() {
        let node = node().await;
        let pause = Duration::from_secs(3600);
        let mut probe = LatencyProbe::start(&node.url(), pause)
            .await
            .expect("started");
        let other = client(&node.url()).expect("a URL").publisher("other");
        let queue = names::measured().expect("a name");
        other
            .notify(Notification::new(queue))
            .await
            .expect("acknowledged");
        let error = probe.failed().await.expect_err("wrong").to_string();
        assert!(error.contains("the sums are wrong"), "{error}");
    }
}
