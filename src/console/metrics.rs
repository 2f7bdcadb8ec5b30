//! The figures as Prometheus text.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text::encode},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

/// What a relay tells of itself at one moment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) notifications: u64,
    pub(crate) wakes: u64,
    pub(crate) entries: u64,
    pub(crate) told: u64,
    pub(crate) heartbeats: u64,
    pub(crate) timed: u64,
    pub(crate) fanned_out: u64,
    pub(crate) forgotten: u64,
    pub(crate) queues: u64,
    pub(crate) subscriptions: u64,
    pub(crate) connections: u64,
    pub(crate) watchers: u64,
}

impl Figures {
    /// Writes them as OpenMetrics text.
    pub(crate) fn render(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a String takes all that is written");
        text
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counters = [
            ("notifications", "Notifications counted", self.notifications),
            ("wakes", "Wake messages sent", self.wakes),
            (
                "wake_entries",
                "Queues told of in wake messages",
                self.entries,
            ),
            (
                "wake_notifications",
                "Notifications told of in wake messages",
                self.told,
            ),
            ("heartbeats", "Heartbeats sent", self.heartbeats),
            ("timed_wakeups", "Timers fired", self.timed),
            ("fanouts", "Walks left to the fan-out", self.fanned_out),
            ("queues_forgotten", "Queues forgotten", self.forgotten),
        ];
        for (name, help, value) in counters {
            let metric = ConstCounter::new(value);
            let name = format!("reveille_{name}");
            let part = encoder.encode_descriptor(&name, help, None, metric.metric_type())?;
            metric.encode(part)?;
        }
        let gauges = [
            ("queues", "Queues remembered", self.queues),
            (
                "subscriptions",
                "Subscriptions that hold a stream",
                self.subscriptions,
            ),
            ("connections", "Connections open", self.connections),
            ("flag_watchers", "Streams that watch a flag", self.watchers),
        ];
        for (name, help, value) in gauges {
            let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let name = format!("reveille_{name}");
            let part = encoder.encode_descriptor(&name, help, None, metric.metric_type())?;
            metric.encode(part)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_openmetrics_text() {
        let text = Figures {
            notifications: 7,
            queues: 3,
            ..Figures::default()
        }
        .render();
        assert!(
            text.contains("# TYPE reveille_notifications counter"),
            "{text}"
        );
        assert!(text.contains("reveille_notifications_total 7"), "{text}");
        assert!(text.contains("reveille_queues 3"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
