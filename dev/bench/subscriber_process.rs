//! The parent's handle of the subscribers' process, and the lines that both exchange.

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use reveille::QueueAddress;
use serde::{Deserialize, Serialize};

use super::{broker::Broker, child};
use crate::child::Child;

/// The process of the subscribers. All of them subscribe to the same queues.
#[derive(Debug)]
pub(super) struct SubscriberProcess {
    process: Child,
}

/// The notifications that the subscribers got since the last `expect`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Delivered {
    /// The smallest and the largest number of notifications that one subscriber got.
    pub(super) least: u64,
    pub(super) most: u64,
    /// Number of wake-ups that carried them, for all subscribers.
    pub(super) wakeups: u64,
    /// Time at which the last subscriber had all of them: nanoseconds of the wall clock.
    pub(super) last_at: u64,
}

/// Latencies of wake-ups from publisher to subscriber, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Latencies {
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) p999: u64,
    pub(super) max: u64,
}

/// The first word of each line between the two.
pub(super) const READY: &str = "ready";
pub(super) const EXPECT: &str = "expect";
pub(super) const STEPS: &str = "steps";
pub(super) const STEP: &str = "step";
pub(super) const ARMED: &str = "armed";
pub(super) const LATENCIES: &str = "latencies";

/// The subscribers to start.
#[derive(Debug)]
pub(super) struct SubscriberSpec<'a> {
    /// The queues of each subscriber. All names have the same length.
    pub(super) queues: &'a [QueueAddress],
    pub(super) subscribers: u64,
    pub(super) per_connection: u64,
    /// Record the latency of each wake-up.
    pub(super) timed: bool,
}

impl<'a> SubscriberSpec<'a> {
    /// Returns subscribers on a connection each.
    pub(super) fn of(queues: &'a [QueueAddress], subscribers: u64, timed: bool) -> Self {
        Self {
            queues,
            subscribers,
            per_connection: 1,
            timed,
        }
    }
}

impl Latencies {
    /// Returns the latencies of a histogram of nanoseconds.
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            p50: histogram.value_at_quantile(0.5),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }
}

impl SubscriberProcess {
    /// Starts the subscribers, and waits until all are connected and up to date.
    pub(super) async fn start(broker: &Broker, spec: &SubscriberSpec<'_>) -> Result<Self> {
        let mut args = vec![
            format!("--server={}", broker.server),
            format!("--target={}", broker.target),
            format!("--subscribers={}", spec.subscribers),
            format!("--per-connection={}", spec.per_connection),
        ];
        args.extend(spec.queues.iter().map(|queue| format!("--queue={queue}")));
        args.extend(spec.timed.then(|| "--timed".to_owned()));
        let mut process = Child::start_with("subscribers", &args, broker.client_environment())?;
        process.expect(READY).await?;
        Ok(Self { process })
    }

    /// Makes each subscriber expect `notifications` more.
    pub(super) async fn expect(&mut self, notifications: u64) -> Result<()> {
        self.arm(&format!("{EXPECT} {notifications}")).await
    }

    /// Makes each subscriber expect `notifications` more, `steps` times, with a line after each
    /// step.
    pub(super) async fn expect_steps(&mut self, steps: u64, notifications: u64) -> Result<()> {
        self.arm(&format!("{STEPS} {steps} {notifications}")).await
    }

    async fn arm(&mut self, order: &str) -> Result<()> {
        self.process.send(order).await?;
        self.process.expect(ARMED).await
    }

    /// Waits until all subscribers have finished a step.
    pub(super) async fn step(&mut self) -> Result<()> {
        self.process.expect(STEP).await
    }

    /// Waits until all subscribers have the expected notifications; fails if one has more.
    pub(super) async fn delivered(&mut self, expected: u64) -> Result<Delivered> {
        let line = self.process.line().await?;
        let delivered: Delivered = serde_json::from_str(&line).context(line)?;
        ensure!(
            delivered.least == expected && delivered.most == expected,
            "the sums are wrong: {expected} notifications were published, and subscribers got {} \
             to {}",
            delivered.least,
            delivered.most
        );
        Ok(delivered)
    }

    /// Returns the latencies since the last call.
    pub(super) async fn latencies(&mut self) -> Result<Latencies> {
        self.process.send(LATENCIES).await?;
        let line = self.process.line().await?;
        serde_json::from_str(&line).context(line)
    }

    /// Ends the process.
    pub(super) async fn stop(self) {
        self.process.stop().await;
    }
}
