//! What can be asked of a listener while it runs.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    histogram::{Histogram, HistogramSnapshot},
    scaling::ListenerMode,
};

/// A listener at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueryState {
    /// How it hears of work.
    pub mode: ListenerMode,
    /// About how many messages are in the queue; `None` where it could not be asked.
    pub current_queue_depth: Option<u64>,
    /// Dequeue tasks that work or wait for work.
    pub active_dequeue_tasks: usize,
    /// The most that were ever active at one time.
    pub total_dequeue_tasks: usize,
    /// No task holds a message, or may come to hold one by a get on its way.
    pub is_idle: bool,
    /// It gets nothing until it is [resumed](super::Listener::resume).
    pub is_paused: bool,
    /// What it has done so far.
    pub stats: ListenerStats,
}

/// What a listener has done so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerStats {
    /// Wake-ups heard.
    pub wake_ups: u64,
    /// Gets issued, empty ones included.
    pub gets: u64,
    /// Gets that found nothing.
    pub empty_gets: u64,
    /// Messages got.
    pub received: u64,
    /// Messages handled and deleted.
    pub handled: u64,
    /// Handlings that failed.
    pub failed: u64,
    /// Messages moved to the poison queue.
    pub poisoned: u64,
    /// Messages that somebody else has got while they were handled here.
    pub lost: u64,
    /// Errors of all kinds.
    pub errors: u64,
    /// How long handling takes, lately; `None` before the first.
    pub mean_handling_time: Option<Duration>,
    /// How long a wake-up takes from its publisher, lately, by both machines' clocks; `None` before
    /// the first.
    pub mean_wake_latency: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) wake_ups: AtomicU64,
    pub(super) gets: AtomicU64,
    pub(super) empty_gets: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) handled: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) poisoned: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) errors: AtomicU64,
    /// The depth that was known last, and whether there is one.
    pub(super) depth: AtomicU64,
    pub(super) handling: Handling,
    pub(super) wake_latency: Mean,
}

/// A moving mean of spans in microseconds; one more than that, as 0 is none yet.
#[derive(Debug, Default)]
pub(super) struct Mean(AtomicU64);

impl Mean {
    /// Adds one: the newest counts for an eighth. Two at a time may lose one; it is a mean.
    pub(super) fn add(&self, span: Duration) {
        let new = u64::try_from(span.as_micros()).unwrap_or(u64::MAX / 16);
        let next = match self.0.load(Ordering::Relaxed) {
            0 => new,
            old => (old - 1) - (old - 1) / 8 + new / 8,
        };
        self.0.store(next.saturating_add(1), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<Duration> {
        let stored = self.0.load(Ordering::Relaxed);
        stored.checked_sub(1).map(Duration::from_micros)
    }
}

/// How long handling takes: a moving mean, and all of it by length.
#[derive(Debug)]
pub(super) struct Handling {
    mean: Mean,
    times: Histogram,
}

/// From a quick function to an hour, which is the longest handling by default.
const HANDLING_TIMES: [Duration; 16] = [
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(600),
    Duration::from_secs(3600),
];

impl Default for Handling {
    fn default() -> Self {
        Self {
            mean: Mean::default(),
            times: Histogram::new(&HANDLING_TIMES),
        }
    }
}

impl Handling {
    pub(super) fn add(&self, duration: Duration) {
        self.mean.add(duration);
        self.times.observe(duration);
    }

    /// Returns the mean of lately.
    pub(super) fn get(&self) -> Option<Duration> {
        self.mean.get()
    }

    pub(super) fn times(&self) -> HistogramSnapshot {
        self.times.snapshot()
    }
}

impl Counters {
    pub(super) fn stats(&self) -> ListenerStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ListenerStats {
            wake_ups: read(&self.wake_ups),
            gets: read(&self.gets),
            empty_gets: read(&self.empty_gets),
            received: read(&self.received),
            handled: read(&self.handled),
            failed: read(&self.failed),
            poisoned: read(&self.poisoned),
            lost: read(&self.lost),
            errors: read(&self.errors),
            mean_handling_time: self.handling.get(),
            mean_wake_latency: self.wake_latency.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_follows_what_is_added() {
        let mean = Mean::default();
        assert_eq!(mean.get(), None);
        mean.add(Duration::from_millis(8));
        assert_eq!(mean.get(), Some(Duration::from_millis(8)));
        for _ in 0..100 {
            mean.add(Duration::ZERO);
        }
        assert!(mean.get() < Some(Duration::from_micros(10)));
        mean.add(Duration::MAX);
        assert!(mean.get() > Some(Duration::from_secs(3600)));
    }
}
