//! A histogram of durations, for metrics: fixed bounds, atomic counts, no lock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::base::clock::nanos;

/// The bounds of all histograms, ascending.
const BOUNDS: &[Duration] = &[
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
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HistogramSnapshot {
    /// The upper bounds of all buckets but the last.
    pub(crate) bounds: &'static [Duration],
    /// The count of each bucket alone (not cumulative).
    pub(crate) counts: Vec<u64>,
    pub(crate) sum: Duration,
}

impl Histogram {
    /// Counts one duration.
    pub(crate) fn observe(&self, duration: Duration) {
        let at = BOUNDS.partition_point(|bound| *bound < duration);
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
