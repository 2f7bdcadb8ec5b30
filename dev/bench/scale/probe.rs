//! Measures the latency of notifications of one queue with one subscriber, at a steady rate.
//!
//! A notification is sent at its time whether or not earlier ones were answered. So a relay that
//! stops for a second delays all notifications of that second. A phase ends when every notification
//! was acknowledged and delivered, and none twice.

use std::{collections::VecDeque, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use reveille::{
    ListenerId, Notification, Publisher, PublisherOptions, QueueAddress, SubscribeOptions,
    Subscription,
};
use tokio::{
    sync::oneshot,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use super::{LOSS_TIMEOUT, client};
use crate::{latencies::Latencies, report::Figures};

/// The publisher and the subscriber; `None` during a phase.
#[derive(Debug)]
pub(super) struct Probe(Option<Ends>);

#[derive(Debug)]
struct Ends {
    publisher: Publisher,
    subscription: Subscription,
    queue: QueueAddress,
    pause: Duration,
}

/// Latencies of a phase.
#[derive(Debug)]
pub(super) struct Sample {
    /// Until the publisher has the acknowledgement.
    ack: Latencies,
    /// Until the subscriber has the wake-up.
    wake: Latencies,
}

impl Sample {
    pub(super) fn add(&self, phase: &str, figures: &mut Figures) {
        figures.latencies(&format!("{phase} ack"), &self.ack.quantiles());
        figures.latencies(&format!("{phase} wake"), &self.wake.quantiles());
    }
}

impl Probe {
    /// Subscribes, and waits until both connections are open.
    pub(super) async fn start(target: &str, pause: Duration) -> Result<Self> {
        let queue = QueueAddress::new("bench", "measured")?;
        let client = client(target)?;
        let options = SubscribeOptions::new(ListenerId::new("measured")?, [queue.clone()]);
        let mut subscription = client.subscribe(options)?;
        subscription.next().await.context("no first wake-up")??;
        let publisher = client.publisher_with(PublisherOptions {
            // Large limits: a relay that stops for a while must not stop the publisher.
            pipeline: 1_000,
            max_pending: 1_000_000,
            deadline: LOSS_TIMEOUT,
            ..PublisherOptions::default()
        });
        publisher.notify(Notification::new(queue.clone())).await?;
        subscription.next().await.context("no wake-up")??;
        Ok(Self(Some(Ends {
            publisher,
            subscription,
            queue,
            pause,
        })))
    }

    /// Notifies the queue while `work` runs.
    pub(super) async fn during<T>(
        &mut self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<(T, Sample)> {
        let mut ends = self.0.take().context("a phase has failed before")?;
        let (end, ended) = oneshot::channel();
        // A task, so that the work does not delay its clock.
        let task = tokio::spawn(async move {
            let sample = ends.run(ended).await?;
            anyhow::Ok((ends, sample))
        });
        let done = work.await?;
        drop(end);
        let (ends, sample) = task.await??;
        self.0 = Some(ends);
        Ok((done, sample))
    }
}

impl Ends {
    async fn run(&mut self, mut ended: oneshot::Receiver<()>) -> Result<Sample> {
        let mut sample = Sample {
            ack: Latencies::new(),
            wake: Latencies::new(),
        };
        let mut ticks = interval(self.pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut acks = FuturesUnordered::new();
        // The send times of notifications that are not delivered yet, oldest first.
        let mut sent = VecDeque::new();
        // The deadline for the last notifications.
        let mut deadline = None;
        while deadline.is_none() || !acks.is_empty() || !sent.is_empty() {
            tokio::select! {
                _ = &mut ended, if deadline.is_none() => {
                    deadline = Some(Instant::now() + LOSS_TIMEOUT);
                }
                _ = ticks.tick(), if deadline.is_none() => {
                    let (publisher, began) = (self.publisher.clone(), Instant::now());
                    let notification = Notification::new(self.queue.clone());
                    sent.push_back(began);
                    acks.push(async move {
                        publisher.notify(notification).await?;
                        anyhow::Ok(began.elapsed())
                    });
                }
                Some(took) = acks.next() => sample.ack.record(took?),
                work = self.subscription.next() => {
                    let delivered = work.context("no more wake-ups")??.notifications;
                    let delivered = usize::try_from(delivered)?;
                    ensure!(
                        delivered <= sent.len(),
                        "the sums are wrong: {delivered} notifications were delivered, and {} were sent",
                        sent.len()
                    );
                    for began in sent.drain(..delivered) {
                        sample.wake.record(began.elapsed());
                    }
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    bail!("{} notifications were not delivered", sent.len());
                }
            }
        }
        Ok(sample)
    }
}
