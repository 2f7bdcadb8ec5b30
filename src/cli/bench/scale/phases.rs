//! The phases of a run: what each does to one queue that is notified at a steady rate.

use std::{future::Future, time::Duration};

use anyhow::Result;
use tokio::time::Instant;

use super::{
    super::{
        broker::Broker,
        fleet::Latencies,
        progress::Progress,
        report::{Figures, Unit},
    },
    meter::Meter,
};

/// The phases of one run, and their figures so far.
#[derive(Debug)]
pub(super) struct Phases<'a> {
    broker: &'a Broker,
    progress: &'a Progress,
    meter: Meter,
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
            meter: Meter::start(&broker.target, pause).await?,
            figures,
        })
    }

    /// Does one phase's work, and adds what the measured notifications took meanwhile.
    pub(super) async fn run<T>(
        &mut self,
        name: &str,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.progress.say(name);
        let (before, began) = (self.broker.usage(), Instant::now());
        self.meter.begin().await?;
        let done = work.await?;
        let wall = began.elapsed();
        let sample = self.meter.end().await?;
        let cpu = self.broker.usage().cpu_since(&before);
        let figures = &mut self.figures;
        let seconds = |span: Duration| span.as_secs_f64();
        figures.add(format!("{name} wall"), Unit::Seconds, Some(seconds(wall)));
        figures.add(format!("{name} cpu"), Unit::Seconds, cpu.map(seconds));
        let sent = Some(sample.notifications as f64);
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

    /// Ends the notifications of the measured queue.
    pub(super) fn finish(self) -> Figures {
        self.figures
    }
}

/// Adds the latencies that count.
pub(super) fn add_latencies(figures: &mut Figures, name: &str, latencies: &Latencies) {
    for (quantile, nanos) in [
        ("p50", latencies.p50),
        ("p99", latencies.p99),
        ("max", latencies.max),
    ] {
        let micros = Some(nanos as f64 / 1e3);
        figures.add(format!("{name} {quantile}"), Unit::Micros, micros);
    }
}
