//! A histogram of durations, for metrics: fixed bounds, atomic counts, no lock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::base::clock::nanos;

/// The bounds of all histograms, ascending: each takes a part of them, so that a bound in one
/// metric is a bound in the others.
static BOUNDS: [Duration; 20] = [
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
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

/// Counts durations in the buckets between the bounds, and in one bucket above them.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [Duration],
    /// One bucket more than bounds.
    counts: Box<[AtomicU64]>,
    sum_nanos: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HistogramSnapshot {
    /// Upper bounds in seconds, the last one infinite, each with the count of that bucket alone (not
    /// cumulative).
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) sum_seconds: f64,
}

impl Histogram {
    /// Creates an empty histogram with the bounds from `least` to `most`, both included.
    pub(crate) fn new(least: Duration, most: Duration) -> Self {
        let from = BOUNDS.partition_point(|bound| *bound < least);
        let to = BOUNDS.partition_point(|bound| *bound <= most);
        let bounds = &BOUNDS[from..to];
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0));
        Self {
            bounds,
            counts: counts.collect(),
            sum_nanos: AtomicU64::new(0),
        }
    }

    /// Counts one duration.
    pub(crate) fn observe(&self, duration: Duration) {
        let at = self.bounds.partition_point(|bound| *bound < duration);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum_nanos.fetch_add(nanos(duration), Ordering::Relaxed);
    }

    /// Returns the upper bounds of the buckets but the last.
    pub(crate) fn bounds(&self) -> &'static [Duration] {
        self.bounds
    }

    /// Returns the counts of the buckets, one more than bounds.
    pub(crate) fn counts(&self) -> Vec<u64> {
        let counts = self.counts.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    pub(crate) fn snapshot(&self) -> HistogramSnapshot {
        let bounds = self.bounds.iter().map(Duration::as_secs_f64);
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        let nanos = self.sum_nanos.load(Ordering::Relaxed);
        HistogramSnapshot {
            buckets: bounds.chain([f64::INFINITY]).zip(counts).collect(),
            sum_seconds: Duration::from_nanos(nanos).as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::new(Duration::from_millis(1), Duration::from_micros(2_500));
        for micros in [0, 1_000, 1_001, 2_500, 2_501] {
            histogram.observe(Duration::from_micros(micros));
        }
        let snapshot = histogram.snapshot();
        assert_eq!(
            snapshot.buckets,
            [(0.001, 2), (0.0025, 2), (f64::INFINITY, 1)]
        );
        assert!((snapshot.sum_seconds - 0.007_002).abs() < 1e-9);
    }
}
