//! A histogram of durations, for metrics: fixed bounds, atomic counts, no lock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::base::clock::nanos;

/// The bounds of all histograms in seconds, ascending.
const BOUNDS: &[f64] = &[
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0, 60.0, 600.0, 3600.0,
];

/// Counts durations in the buckets between the bounds, and in one bucket above them.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HistogramSnapshot {
    /// The upper bounds of all buckets but the last, in seconds.
    pub(crate) bounds: &'static [f64],
    /// The count of each bucket alone (not cumulative).
    pub(crate) counts: Vec<u64>,
    pub(crate) sum: Duration,
}

impl Histogram {
    /// Counts one duration.
    pub(crate) fn observe(&self, duration: Duration) {
        let at = BOUNDS.partition_point(|bound| *bound < duration.as_secs_f64());
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum_nanos.fetch_add(nanos(duration), Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> HistogramSnapshot {
        let counts = self.counts.iter();
        HistogramSnapshot {
            bounds: BOUNDS,
            counts: counts.map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: Duration::from_nanos(self.sum_nanos.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::default();
        for micros in [0, 50, 51, 100, 3_600_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.bounds.len() + 1, snapshot.counts.len());
        assert_eq!(snapshot.counts[..3], [2, 2, 0]);
        assert_eq!(snapshot.counts.last(), Some(&1));
        assert_eq!(snapshot.sum, Duration::from_micros(3_600_000_202));
    }
}
