//! The state and the totals of a running listener.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex},
    time::Duration,
};

use super::shared::Shared;
use crate::{
    base::{clock::Tick, sync::lock},
    listener::scaling::ListenerMode,
};

/// A snapshot of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueryState {
    /// How it learns of work.
    pub mode: ListenerMode,
    /// The approximate number of messages in the queue; `None` where it was not read.
    pub current_queue_depth: Option<u64>,
    /// Dequeue tasks that work or wait for work.
    pub active_dequeue_tasks: usize,
    /// The highest number of tasks that were active at one time.
    pub total_dequeue_tasks: usize,
    /// No task holds a message or may receive one from a get in flight.
    pub is_idle: bool,
    /// It gets no messages until it is [resumed](super::Listener::resume).
    pub is_paused: bool,
    /// The totals so far.
    pub stats: ListenerStats,
}

/// The totals of a listener so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerStats {
    /// Wake-ups received.
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
    /// Messages that another listener got while they were handled here.
    pub lost: u64,
    /// Errors of all kinds.
    pub errors: u64,
    /// The recent mean handling time; `None` before the first.
    pub mean_handling_time: Option<Duration>,
    /// The recent mean time of a wake-up from its publisher, by both machines' clocks; `None`
    /// before the first.
    pub mean_wake_latency: Option<Duration>,
}

/// A read-only view of a [`Listener`](super::Listener) that another part of the program owns. Clones are cheap, and neither keep the
/// listener running nor end it. After its end the figures stay unchanged.
#[derive(Debug, Clone)]
pub struct ListenerMonitor(pub(super) Arc<Shared>);

/// The messages or batches that are being handled, by the time at which that began.
#[derive(Debug, Default)]
pub(super) struct RunningHandlings(Mutex<BTreeMap<Tick, usize>>);

/// Counts a message or a batch while it is handled.
pub(super) struct RunningHandling<'a>(&'a RunningHandlings, Tick);

impl RunningHandlings {
    pub(super) fn begin(&self, now: Tick) -> RunningHandling<'_> {
        *lock(&self.0).entry(now).or_default() += 1;
        RunningHandling(self, now)
    }

    /// Returns when the oldest one began.
    pub(super) fn oldest(&self) -> Option<Tick> {
        lock(&self.0).first_key_value().map(|(began, _)| *began)
    }
}

impl Drop for RunningHandling<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut running) = lock(&self.0.0).entry(self.1) {
            *running.get_mut() -= 1;
            if *running.get() == 0 {
                running.remove();
            }
        }
    }
}

/// Adds a value to a moving mean, with a weight of one eighth.
pub(super) fn add_to_mean(mean: &mut Option<Duration>, new: Duration) {
    *mean = Some(mean.map_or(new, |old| (old - old / 8).saturating_add(new / 8)));
}

impl ListenerMonitor {
    /// Returns the present state without a depth: makes no call to the queue.
    pub fn state(&self) -> QueryState {
        self.0.state()
    }

    /// Returns whether the listener is stopping.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.is_cancelled()
    }

    /// Returns why the listener polls; `None` while it is pushed, and where no cause is known.
    pub fn cause(&self) -> Option<Arc<str>> {
        lock(&self.0.cause).clone()
    }

    /// Returns the handling times of all messages or batches so far.
    #[cfg(feature = "console")]
    pub(crate) fn handling_times(&self) -> crate::base::histogram::HistogramSnapshot {
        self.0.handling_times.snapshot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_follows_what_is_added() {
        let mut mean = None;
        add_to_mean(&mut mean, Duration::from_millis(8));
        assert_eq!(mean, Some(Duration::from_millis(8)));
        for _ in 0..100 {
            add_to_mean(&mut mean, Duration::ZERO);
        }
        assert!(mean < Some(Duration::from_micros(10)));
        add_to_mean(&mut mean, Duration::MAX);
        add_to_mean(&mut mean, Duration::MAX);
        assert!(mean > Some(Duration::from_secs(3600)));
    }
}
