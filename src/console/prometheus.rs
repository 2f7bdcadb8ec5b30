//! The metrics as Prometheus text.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text::encode},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use super::process;
use crate::base::histogram::HistogramSnapshot;

/// A metric: its name without `reveille_`, its help text, its value.
pub(crate) type Metric = (&'static str, &'static str, u64);

/// Returns the metrics of a table with a row `name = value, "help";` for each.
macro_rules! metric_table {
    ($($name:ident = $value:expr, $help:literal;)*) => {
        vec![$((stringify!($name), $help, $value)),*]
    };
}

pub(crate) use metric_table;

/// A snapshot of a process's metrics.
#[derive(Debug, Default, Clone)]
pub(crate) struct Metrics {
    /// Monotonic counters.
    pub(crate) counters: Vec<Metric>,
    pub(crate) gauges: Vec<Metric>,
    /// Durations, in seconds.
    pub(crate) histograms: Vec<(&'static str, &'static str, HistogramSnapshot)>,
}

impl Metrics {
    /// Encodes them as OpenMetrics text.
    pub(crate) fn render(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry).expect("writing to a String never fails");
        text
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, value) in &self.counters {
            let name = format!("reveille_{name}");
            encode_metric(&mut encoder, &name, help, &ConstCounter::new(*value))?;
        }
        for (name, help, value) in &self.gauges {
            let name = format!("reveille_{name}");
            let gauge = ConstGauge::new(i64::try_from(*value).unwrap_or(i64::MAX));
            encode_metric(&mut encoder, &name, help, &gauge)?;
        }
        for (name, help, histogram) in &self.histograms {
            let name = format!("reveille_{name}");
            let mut part = encoder.encode_descriptor(&name, help, None, MetricType::Histogram)?;
            let bounds = histogram.bounds.iter().copied().chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(histogram.counts.iter().copied()).collect();
            let (sum, count) = (histogram.sum.as_secs_f64(), histogram.counts.iter().sum());
            part.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        process::encode(&mut encoder)
    }
}

/// Encodes a metric with one value.
pub(super) fn encode_metric(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> std::fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn figures_are_openmetrics_text() {
        let text = Metrics {
            counters: vec![("notifications", "Notifications counted", 7)],
            gauges: vec![("queues", "Queues remembered", 3)],
            histograms: vec![(
                "latency_seconds",
                "How long",
                HistogramSnapshot {
                    bounds: &[0.5],
                    counts: vec![2, 1],
                    sum: Duration::from_millis(4500),
                },
            )],
        }
        .render();
        assert!(
            text.contains("# TYPE reveille_notifications counter"),
            "{text}"
        );
        assert!(text.contains("reveille_notifications_total 7"), "{text}");
        assert!(text.contains("reveille_queues 3"), "{text}");
        for line in [
            "# TYPE reveille_latency_seconds histogram",
            "reveille_latency_seconds_bucket{le=\"0.5\"} 2",
            "reveille_latency_seconds_bucket{le=\"+Inf\"} 3",
            "reveille_latency_seconds_count 3",
            "reveille_latency_seconds_sum 4.5",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let build = format!(
            "reveille_build_info{{version=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION")
        );
        assert!(text.contains(&build), "{text}");
        #[cfg(target_os = "linux")]
        assert!(text.contains("process_resident_memory_bytes "), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
