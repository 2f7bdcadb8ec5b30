//! The phases of a run: measures each phase's effect on one queue that is notified at a steady
//! rate.

use std::{future::Future, time::Duration};

use anyhow::Result;
use tokio::time::Instant;

use super::{
    super::{
        broker::Broker,
        progress::Progress,
        report::{Figures, Unit},
        subscriber_process::Latencies,
    },
    latency_probe::LatencyProbe,
};

/// The phases of one run, and their figures so far.
#[derive(Debug)]
pub(super) struct Phases<'a> {
    broker: &'a Broker,
    progress: &'a Progress,
    probe: LatencyProbe,
    pub(super) figures: Figures,
}

impl<'a> Phases<'a> {
    /// Notifies the measured queue every `pause` in all phases.
    pub(super) async fn start(
        broker: &'a Broker,
        pause: Duration,
        progress: &'a Progress,
        figures: Figures,
    ) -> Result<Self> {
        Ok(Self {
            broker,
            progress,
            probe: LatencyProbe::start(&broker.target, pause).await?,
            figures,
        })
    }

    /// Runs one phase, and adds the latencies of the notifications measured during it.
    pub(super) async fn run<T>(
        &mut self,
        name: &str,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.progress.step(name);
        let (before, began) = (self.broker.usage(), Instant::now());
        self.probe.begin().await?;
        let done = work.await?;
        let wall = began.elapsed();
        let sample = self.probe.end().await?;
        let cpu = self.broker.usage().seconds_since(&before);
        let figures = &mut self.figures;
        figures.add(format!("{name} wall"), Unit::Seconds, wall.as_secs_f64());
        figures.add(format!("{name} cpu"), Unit::Seconds, cpu);
        let sent = sample.notifications as f64;
        figures.add(format!("{name} notifications"), Unit::Count, sent);
        add_latencies(figures, &format!("{name} ack"), &sample.ack);
        add_latencies(figures, &format!("{name} wake"), &sample.wake);
        let metrics = self.broker.metrics().await?;
        let longest = metrics.and_then(|m| m.value("reveille_longest_poll_microseconds"));
        let longest = longest.map(|micros| micros as f64);
        self.figures
            .add(format!("{name} longest poll so far"), Unit::Micros, longest);
        Ok(done)
    }

    pub(super) fn progress(&self) -> &'a Progress {
        self.progress
    }

    /// Ends the measurements, and returns the figures.
    pub(super) fn finish(self) -> Figures {
        self.figures
    }
}

/// Adds the p50, p99 and maximum of the latencies.
pub(super) fn add_latencies(figures: &mut Figures, name: &str, latencies: &Latencies) {
    for (quantile, nanos) in [
        ("p50", latencies.p50),
        ("p99", latencies.p99),
        ("max", latencies.max),
    ] {
        let micros = nanos as f64 / 1e3;
        figures.add(format!("{name} {quantile}"), Unit::Micros, micros);
    }
}
