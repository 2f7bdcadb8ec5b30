//! Counts the notifications that the subscribers of one process got.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::sync::Notify;

use super::{
    subscriber_process::{Delivered, Latencies},
    wall_nanos::nanos,
};

/// The counters of all subscribers of this process.
#[derive(Debug)]
pub(super) struct DeliveryCounter {
    /// Notifications that each subscriber got since it was ready.
    received: Vec<AtomicU64>,
    /// The expected value of each of `received`.
    goal: AtomicU64,
    /// Number of subscribers that have reached the goal.
    finished: AtomicU64,
    wakeups: AtomicU64,
    last_at: AtomicU64,
    ready: AtomicU64,
    /// `None` without `--timed`: recording latencies takes longer than counting.
    latencies: Option<Mutex<Histogram<u64>>>,
    /// Notified when subscribers are ready, and when all have reached the goal.
    changed: Notify,
}

/// Upper bound of the histogram in nanoseconds: a minute.
const MAX_LATENCY: u64 = 60_000_000_000;

impl DeliveryCounter {
    pub(super) fn new(subscribers: u64, timed: bool) -> Result<Self> {
        let latencies = match timed {
            true => Some(Mutex::new(Histogram::new_with_bounds(1, MAX_LATENCY, 3)?)),
            false => None,
        };
        Ok(Self {
            received: (0..subscribers).map(|_| AtomicU64::new(0)).collect(),
            goal: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            last_at: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            latencies,
            changed: Notify::new(),
        })
    }

    pub(super) fn subscribers(&self) -> usize {
        self.received.len()
    }

    /// Counts `count` more subscribers as subscribed and up to date.
    pub(super) fn add_ready(&self, count: u64) {
        self.ready.fetch_add(count, Ordering::AcqRel);
        self.changed.notify_one();
    }

    /// Waits until all subscribers are ready.
    pub(super) async fn all_ready(&self) {
        self.reached_all(&self.ready).await;
    }

    /// Waits until all subscribers have reached the goal.
    pub(super) async fn all_finished(&self) {
        self.reached_all(&self.finished).await;
    }

    /// Waits until a count reaches the number of subscribers.
    async fn reached_all(&self, count: &AtomicU64) {
        while count.load(Ordering::Acquire) < self.received.len() as u64 {
            self.changed.notified().await;
        }
    }

    /// Resets the count of wake-ups.
    pub(super) fn restart(&self) {
        self.wakeups.store(0, Ordering::Release);
        self.last_at.store(0, Ordering::Release);
    }

    /// Sets the goal: the number of notifications that each subscriber gets since it was ready. The
    /// publisher publishes nothing until this has returned.
    pub(super) fn expect(&self, goal: u64) {
        self.finished.store(0, Ordering::Release);
        self.goal.store(goal, Ordering::Release);
    }

    /// Records notifications that a subscriber got in `wakeups` wake-ups.
    pub(super) fn record(&self, index: u64, notifications: u64, wakeups: u64, published_at: u64) {
        self.wakeups.fetch_add(wakeups, Ordering::Relaxed);
        if let Some(latencies) = &self.latencies
            && published_at > 0
        {
            let now = nanos(SystemTime::now());
            let mut latencies = latencies.lock().expect("no panic under this lock");
            // The clock may have been set back in between: the minimum is 1 ns.
            latencies.saturating_record(now.saturating_sub(published_at).max(1));
        }
        let received = &self.received[usize::try_from(index).expect("a subscriber's index")];
        let before = received.fetch_add(notifications, Ordering::AcqRel);
        let goal = self.goal.load(Ordering::Acquire);
        if before < goal && goal <= before + notifications {
            self.last_at
                .fetch_max(nanos(SystemTime::now()), Ordering::AcqRel);
            let finished = self.finished.fetch_add(1, Ordering::AcqRel) + 1;
            if finished == self.received.len() as u64 {
                self.changed.notify_one();
            }
        }
    }

    /// Returns the notifications beyond `before` of each subscriber.
    pub(super) fn delivered(&self, before: u64) -> Delivered {
        let received = || {
            let counts = self.received.iter();
            counts.map(|count| count.load(Ordering::Acquire))
        };
        Delivered {
            least: received().min().unwrap_or_default().saturating_sub(before),
            most: received().max().unwrap_or_default().saturating_sub(before),
            wakeups: self.wakeups.load(Ordering::Acquire),
            last_at: self.last_at.load(Ordering::Acquire),
        }
    }

    /// Returns the latencies since the last call, and resets them.
    pub(super) fn take_latencies(&self) -> Latencies {
        let Some(latencies) = &self.latencies else {
            return Latencies::default();
        };
        let mut latencies = latencies.lock().expect("no panic under this lock");
        let taken = Latencies::of(&latencies);
        latencies.reset();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_sum_of_each_subscriber_is_compared_with_the_goal() {
        let counter = DeliveryCounter::new(2, false).expect("bounds");
        counter.expect(3);
        counter.record(0, 3, 1, 0);
        counter.record(1, 2, 2, 0);
        assert_eq!(counter.finished.load(Ordering::Acquire), 1);
        counter.record(1, 1, 1, 0);
        counter.all_finished().await;
        // The next step begins before the next notification is published.
        counter.expect(4);
        counter.record(0, 1, 1, 0);
        counter.record(1, 2, 1, 0);
        counter.all_finished().await;
        let delivered = counter.delivered(0);
        let counts = (delivered.least, delivered.most, delivered.wakeups);
        assert_eq!(counts, (4, 5, 6));
    }
}
