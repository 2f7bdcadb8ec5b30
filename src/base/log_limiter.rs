//! A rate limit for log lines that a peer can cause in large numbers.
//!
//! The first event of a kind is logged at once, then at most one per period. This module counts per
//! kind and writes no log. A caller logs only if [`LogLimiter::count`] returns a number, and states
//! that number. Events after the last line of a burst appear in the next line of their kind, so a
//! metric should count them as well.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;

use crate::base::{clock::Tick, sync::lock};

/// The log state of `KINDS` kinds of events. Plain data: its owner holds the lock.
#[derive(Debug)]
pub(crate) struct LogLimiter<const KINDS: usize> {
    every: Duration,
    kinds: [Option<LastLine>; KINDS],
}

#[derive(Debug, Clone, Copy)]
struct LastLine {
    at: Tick,
    suppressed: u64,
}

/// Counts of `KINDS` kinds of events since the start, with a limiter for their log lines.
#[derive(Debug)]
pub(crate) struct LimitedCounts<const KINDS: usize> {
    counts: [AtomicU64; KINDS],
    limiter: Mutex<LogLimiter<KINDS>>,
}

impl<const KINDS: usize> LimitedCounts<KINDS> {
    /// Creates counts whose limiter allows one line per kind in each period `every`.
    pub(crate) const fn new(every: Duration) -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; KINDS],
            limiter: Mutex::new(LogLimiter::new(every)),
        }
    }

    /// Counts an event, and returns the result of [`LogLimiter::count`].
    pub(crate) fn note(&self, kind: usize, now: Tick) -> Option<u64> {
        self.counts[kind].fetch_add(1, Ordering::Relaxed);
        lock(&self.limiter).count(kind, now)
    }

    /// Returns the number of events of a kind.
    pub(crate) fn count(&self, kind: usize) -> u64 {
        self.counts[kind].load(Ordering::Relaxed)
    }
}

/// One line a second of each kind.
impl<const KINDS: usize> Default for LimitedCounts<KINDS> {
    fn default() -> Self {
        Self::new(Duration::from_secs(1))
    }
}

impl<const KINDS: usize> LogLimiter<KINDS> {
    /// Creates a limiter that allows one line per kind in each period `every`.
    pub(crate) const fn new(every: Duration) -> Self {
        Self {
            every,
            kinds: [None; KINDS],
        }
    }

    /// Counts an event of a kind. If it should be logged, returns the number of events before it
    /// that were not logged.
    pub(crate) fn count(&mut self, kind: usize, now: Tick) -> Option<u64> {
        let is_limited = self.is_limited(kind, now);
        let last = &mut self.kinds[kind];
        match last {
            Some(last) if is_limited => {
                last.suppressed += 1;
                None
            }
            _ => {
                let suppressed = last.map_or(0, |last| last.suppressed);
                *last = Some(LastLine {
                    at: now,
                    suppressed: 0,
                });
                Some(suppressed)
            }
        }
    }

    /// Returns whether an event of a kind would not be logged now.
    pub(crate) fn is_limited(&self, kind: usize, now: Tick) -> bool {
        self.kinds[kind].is_some_and(|last| now.since(last.at) < self.every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_events_is_one_line_in_each_span() {
        let every = Duration::from_secs(10);
        let mut limiter = LogLimiter::<2>::new(every);
        let start = Tick::default();
        assert_eq!(limiter.count(0, start), Some(0));
        for second in 1..10 {
            let now = start + Duration::from_secs(second);
            assert_eq!(limiter.count(0, now), None);
        }
        assert_eq!(limiter.count(1, start), Some(0), "kinds are independent");
        assert_eq!(limiter.count(0, start + every), Some(9));
    }
}
