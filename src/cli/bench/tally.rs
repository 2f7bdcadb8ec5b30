//! What the subscribers of one process have been told, and whether that is all.

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
    fleet::{Latencies, Told},
    subscribers::nanos,
};

/// What all subscribers of this process have been told.
#[derive(Debug)]
pub(super) struct Tally {
    /// Notifications that each was told of since it was ready.
    told: Vec<AtomicU64>,
    /// What `told` is to come to.
    goal: AtomicU64,
    /// How many have come to it.
    there: AtomicU64,
    wakeups: AtomicU64,
    last_at: AtomicU64,
    ready: AtomicU64,
    /// `None` where no times are wanted: recording them takes longer than counting.
    latencies: Option<Mutex<Histogram<u64>>>,
    /// Rung when all are ready, and when all have come to the goal.
    bell: Notify,
}

/// The longest latency told apart, in nanoseconds: a minute.
const LONGEST: u64 = 60_000_000_000;

impl Tally {
    pub(super) fn new(subscribers: u64, timed: bool) -> Result<Self> {
        let latencies = match timed {
            true => Some(Mutex::new(Histogram::new_with_bounds(1, LONGEST, 3)?)),
            false => None,
        };
        Ok(Self {
            told: (0..subscribers).map(|_| AtomicU64::new(0)).collect(),
            goal: AtomicU64::new(0),
            there: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            last_at: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            latencies,
            bell: Notify::new(),
        })
    }

    pub(super) fn subscribers(&self) -> usize {
        self.told.len()
    }

    /// So many more subscribers are subscribed and up to date.
    pub(super) fn ready(&self, count: u64) {
        self.ready.fetch_add(count, Ordering::AcqRel);
        self.bell.notify_one();
    }

    /// Waits until all subscribers are ready.
    pub(super) async fn all_ready(&self) {
        self.rung(&self.ready).await;
    }

    /// Waits until all subscribers were told of what is expected.
    pub(super) async fn all_told(&self) {
        self.rung(&self.there).await;
    }

    /// Waits until a count comes to the number of subscribers; it is read whenever the bell rings.
    async fn rung(&self, count: &AtomicU64) {
        while count.load(Ordering::Acquire) < self.told.len() as u64 {
            self.bell.notified().await;
        }
    }

    /// Counts messages from 0 again.
    pub(super) fn restart(&self) {
        self.wakeups.store(0, Ordering::Release);
        self.last_at.store(0, Ordering::Release);
    }

    /// Expects each subscriber to be told of `goal` notifications since it was ready. Nothing is
    /// published until this has returned.
    pub(super) fn expect(&self, goal: u64) {
        self.there.store(0, Ordering::Release);
        self.goal.store(goal, Ordering::Release);
    }

    /// Takes what a subscriber was told, in so many messages.
    pub(super) fn take(&self, index: u64, notifications: u64, messages: u64, published_at: u64) {
        self.wakeups.fetch_add(messages, Ordering::Relaxed);
        if let Some(latencies) = &self.latencies
            && published_at > 0
        {
            let now = nanos(SystemTime::now());
            let mut latencies = latencies.lock().expect("nobody panics with it");
            // The clock may have been set back in between: nothing is faster than 1 ns.
            latencies.saturating_record(now.saturating_sub(published_at).max(1));
        }
        let told = &self.told[usize::try_from(index).expect("an index of it")];
        let before = told.fetch_add(notifications, Ordering::AcqRel);
        let goal = self.goal.load(Ordering::Acquire);
        if before < goal && goal <= before + notifications {
            self.last_at
                .fetch_max(nanos(SystemTime::now()), Ordering::AcqRel);
            let there = self.there.fetch_add(1, Ordering::AcqRel) + 1;
            if there == self.told.len() as u64 {
                self.bell.notify_one();
            }
        }
    }

    /// Returns what was told beyond `before` notifications each.
    pub(super) fn told(&self, before: u64) -> Told {
        let told = || self.told.iter().map(|told| told.load(Ordering::Acquire));
        Told {
            least: told().min().unwrap_or_default().saturating_sub(before),
            most: told().max().unwrap_or_default().saturating_sub(before),
            wakeups: self.wakeups.load(Ordering::Acquire),
            last_at: self.last_at.load(Ordering::Acquire),
        }
    }

    /// Returns the latencies since this was last asked, and forgets them.
    pub(super) fn take_latencies(&self) -> Latencies {
        let Some(latencies) = &self.latencies else {
            return Latencies::default();
        };
        let mut latencies = latencies.lock().expect("nobody panics with it");
        let taken = Latencies::of(&latencies);
        latencies.reset();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_sums_of_each_subscriber_are_compared_with_what_is_expected() {
        let tally = Tally::new(2, false).expect("bounds");
        tally.expect(3);
        tally.take(0, 3, 1, 0);
        tally.take(1, 2, 2, 0);
        assert_eq!(tally.there.load(Ordering::Acquire), 1);
        tally.take(1, 1, 1, 0);
        tally.all_told().await;
        // The next step begins before anything else is published.
        tally.expect(4);
        tally.take(0, 1, 1, 0);
        tally.take(1, 2, 1, 0);
        tally.all_told().await;
        let told = tally.told(0);
        assert_eq!((told.least, told.most, told.wakeups), (4, 5, 6));
    }
}
