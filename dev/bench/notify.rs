//! One notification in each request, with many requests in flight: unary `Notify` calls, then the
//! publisher's `NotifyStream`.
//!
//! It measures the relay's processor time for a request, so that plain text can be compared with TLS
//! and with credentials. Both modes have the same subscribers, and the sums must be exact.

use std::time::SystemTime;

use anyhow::{Context as _, Result};

use super::{
    args::NotifyArgs,
    broker::Broker,
    progress::Progress,
    report::{Figures, Unit},
    sender::{PIPELINE, Sender},
    single_queue::{queue, since},
    subscriber_process::{SubscriberProcess, SubscriberSpec},
    unary::UnarySender,
    usage::Usage,
};

/// The publisher of one mode.
enum Mode {
    Unary(UnarySender),
    Stream(Sender),
}

/// Measurements of one mode.
struct ModeResult {
    wall: f64,
    cpu: Option<f64>,
}

/// Runs the benchmark once, in both modes.
pub(super) async fn notify(
    args: &NotifyArgs,
    broker: &Broker,
    progress: &Progress,
) -> Result<Figures> {
    let queues = [queue()?];
    progress.step("connecting");
    let spec = SubscriberSpec::of(&queues, args.subscribers, false);
    let mut process = SubscriberProcess::start(broker, &spec).await?;
    let security = broker.security().context("a relay of this bench")?;
    let unary = UnarySender::open(&broker.target, security, &queues[0]).await?;
    let pending = 2 * PIPELINE as u64;
    let stream = Sender::open(broker, &queues, 1, pending).await?;
    let mut figures = Figures::of_counts(&[
        ("subscribers", args.subscribers),
        ("unary notifications", args.notifications),
        ("stream notifications", args.streamed),
        ("in flight", PIPELINE as u64),
    ]);
    for (name, mut mode, count) in [
        ("unary", Mode::Unary(unary), args.notifications),
        ("stream", Mode::Stream(stream), args.streamed),
    ] {
        progress.step(&format!("{count} notifications, {name}"));
        mode.run(&mut process, broker, args.warm_up).await?;
        let result = mode.run(&mut process, broker, count).await?;
        result.add(name, count, &mut figures);
    }
    figures.add("rss", Unit::Kib, broker.usage().kib());
    process.stop().await;
    Ok(figures)
}

impl Mode {
    async fn run(
        &mut self,
        process: &mut SubscriberProcess,
        broker: &Broker,
        count: u64,
    ) -> Result<ModeResult> {
        process.expect(count).await?;
        let (before, began) = (broker.usage(), SystemTime::now());
        match self {
            Self::Unary(unary) => unary.requests(count, PIPELINE).await?,
            Self::Stream(stream) => stream.requests(count).await?,
        }
        let delivered = process.delivered(count).await?;
        Ok(ModeResult {
            wall: since(began, &delivered),
            cpu: Usage::seconds_since(&broker.usage(), &before),
        })
    }
}

impl ModeResult {
    fn add(&self, name: &str, notifications: u64, figures: &mut Figures) {
        let each = self.cpu.map(|cpu| cpu * 1e6 / notifications as f64);
        for (figure, unit, value) in [
            ("wall", Unit::Seconds, Some(self.wall)),
            ("cpu", Unit::Seconds, self.cpu),
            ("cpu/notification", Unit::Micros, each),
        ] {
            figures.add(format!("{name} {figure}"), unit, value);
        }
    }
}
