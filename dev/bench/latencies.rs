//! Latencies and their quantiles.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies of up to ten minutes, with three digits.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Histogram<u64>);

/// Quantiles in microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

/// The longest latency, in nanoseconds.
const LONGEST: u64 = 600_000_000_000;

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("valid bounds"))
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(LONGEST);
        self.0.saturating_record(nanos.max(1));
    }

    /// Adds the latencies of `other`.
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("the same bounds");
    }

    pub(crate) fn quantiles(&self) -> Quantiles {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        Quantiles {
            p50: micros(self.0.value_at_quantile(0.5)),
            p99: micros(self.0.value_at_quantile(0.99)),
            p999: micros(self.0.value_at_quantile(0.999)),
            max: micros(self.0.max()),
        }
    }
}
