//! Counts the notifications that the subscribers of one process got.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::sync::Notify;

use crate::{
    latencies::{Latencies, Quantiles},
    subscriber_process::{Delivered, wall_nanos},
};

/// The counters of all subscribers of this process.
#[derive(Debug)]
pub(crate) struct DeliveryCounter {
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
    latencies: Option<Mutex<Latencies>>,
    /// Notified when subscribers are ready, and when all have reached the goal.
    changed: Notify,
}

impl DeliveryCounter {
    pub(crate) fn new(subscribers: u64, timed: bool) -> Self {
        Self {
            received: (0..subscribers).map(|_| AtomicU64::new(0)).collect(),
            goal: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            last_at: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            latencies: timed.then(|| Mutex::new(Latencies::new())),
            changed: Notify::new(),
        }
    }

    /// Counts `count` more subscribers as subscribed and up to date.
    pub(crate) fn add_ready(&self, count: u64) {
        self.ready.fetch_add(count, Ordering::AcqRel);
        self.changed.notify_one();
    }

    /// Waits until all subscribers are ready.
    pub(crate) async fn all_ready(&self) {
        self.reached_all(&self.ready).await;
    }

    /// Waits until all subscribers have reached the goal.
    pub(crate) async fn all_finished(&self) {
        self.reached_all(&self.finished).await;
    }

    /// Waits until a count reaches the number of subscribers.
    async fn reached_all(&self, count: &AtomicU64) {
        while count.load(Ordering::Acquire) < self.received.len() as u64 {
            self.changed.notified().await;
        }
    }

    /// Resets the count of wake-ups.
    pub(crate) fn restart(&self) {
        self.wakeups.store(0, Ordering::Release);
        self.last_at.store(0, Ordering::Release);
    }

    /// Sets the goal: the number of notifications that each subscriber gets since it was ready. The
    /// publisher publishes nothing until this has returned.
    pub(crate) fn expect(&self, goal: u64) {
        self.finished.store(0, Ordering::Release);
        self.goal.store(goal, Ordering::Release);
    }

    /// Records notifications that a subscriber got in `wakeups` wake-ups.
    pub(crate) fn record(&self, index: u64, notifications: u64, wakeups: u64, published_at: u64) {
        self.wakeups.fetch_add(wakeups, Ordering::Relaxed);
        if let Some(latencies) = &self.latencies
            && published_at > 0
        {
            let latency = wall_nanos(SystemTime::now()).saturating_sub(published_at);
            let mut latencies = latencies.lock().expect("no panic under this lock");
            latencies.record(Duration::from_nanos(latency));
        }
        let received = &self.received[usize::try_from(index).expect("a subscriber's index")];
        let before = received.fetch_add(notifications, Ordering::AcqRel);
        let goal = self.goal.load(Ordering::Acquire);
        if before < goal && goal <= before + notifications {
            self.last_at
                .fetch_max(wall_nanos(SystemTime::now()), Ordering::AcqRel);
            let finished = self.finished.fetch_add(1, Ordering::AcqRel) + 1;
            if finished == self.received.len() as u64 {
                self.changed.notify_one();
            }
        }
    }

    /// Returns the notifications beyond `before` of each subscriber.
    pub(crate) fn delivered(&self, before: u64) -> Delivered {
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

    /// Returns the quantiles of the latencies since the last call, and resets them.
    pub(crate) fn take_latencies(&self) -> Quantiles {
        let Some(latencies) = &self.latencies else {
            return Quantiles::default();
        };
        let mut latencies = latencies.lock().expect("no panic under this lock");
        std::mem::replace(&mut *latencies, Latencies::new()).quantiles()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_sum_of_each_subscriber_is_compared_with_the_goal() {
        let counter = DeliveryCounter::new(2, false);
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
