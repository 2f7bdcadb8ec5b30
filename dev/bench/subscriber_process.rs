//! The parent's handle of the subscribers' process, and the lines that both exchange.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use reveille::QueueAddress;
use serde::{Deserialize, Serialize};

use crate::{broker::Broker, child::Child, latencies::Quantiles};

/// The process of the subscribers. All of them subscribe to the same queues.
#[derive(Debug)]
pub(crate) struct SubscriberProcess {
    process: Child,
}

/// The notifications that the subscribers got since the last `expect`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Delivered {
    /// The smallest and the largest number of notifications that one subscriber got.
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// Number of wake-ups that carried them, for all subscribers.
    pub(crate) wakeups: u64,
    /// Time at which the last subscriber had all of them: nanoseconds of the wall clock.
    pub(crate) last_at: u64,
}

/// The first word of each line between the two.
pub(crate) const READY: &str = "ready";
pub(crate) const EXPECT: &str = "expect";
pub(crate) const STEP: &str = "step";
pub(crate) const ARMED: &str = "armed";
pub(crate) const LATENCIES: &str = "latencies";

/// The subscribers to start.
#[derive(Debug)]
pub(crate) struct SubscriberSpec<'a> {
    /// The queues of each subscriber. All names have the same length.
    pub(crate) queues: &'a [QueueAddress],
    pub(crate) subscribers: u64,
    pub(crate) per_connection: u64,
    /// Record the latency of each wake-up.
    pub(crate) timed: bool,
}

impl<'a> SubscriberSpec<'a> {
    /// Returns subscribers on a connection each.
    pub(crate) fn of(queues: &'a [QueueAddress], subscribers: u64, timed: bool) -> Self {
        Self {
            queues,
            subscribers,
            per_connection: 1,
            timed,
        }
    }
}

impl SubscriberProcess {
    /// Starts the subscribers, and waits until all are connected and up to date.
    pub(crate) async fn start(broker: &Broker, spec: &SubscriberSpec<'_>) -> Result<Self> {
        let mut args = vec![
            format!("--server={}", broker.server),
            format!("--target={}", broker.target),
            format!("--subscribers={}", spec.subscribers),
            format!("--per-connection={}", spec.per_connection),
        ];
        args.extend(spec.queues.iter().map(|queue| format!("--queue={queue}")));
        args.extend(spec.timed.then(|| "--timed".to_owned()));
        let mut process = Child::start("subscribers", &args, broker.client_environment())?;
        process.expect(READY).await?;
        Ok(Self { process })
    }

    /// Makes each subscriber expect `notifications` more, `steps` times. The process tells of the
    /// end of each step but the last.
    pub(crate) async fn expect(&mut self, steps: u64, notifications: u64) -> Result<()> {
        let order = format!("{EXPECT} {steps} {notifications}");
        self.process.send(&order).await?;
        self.process.expect(ARMED).await
    }

    /// Waits until all subscribers have finished a step that is not the last.
    pub(crate) async fn step(&mut self) -> Result<()> {
        self.process.expect(STEP).await
    }

    /// Waits until all subscribers have the expected notifications; fails if one has more.
    pub(crate) async fn delivered(&mut self, expected: u64) -> Result<Delivered> {
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
    pub(crate) async fn latencies(&mut self) -> Result<Quantiles> {
        self.process.send(LATENCIES).await?;
        let line = self.process.line().await?;
        serde_json::from_str(&line).context(line)
    }

    /// Ends the process.
    pub(crate) async fn stop(self) {
        self.process.stop().await;
    }
}

impl Delivered {
    /// Returns the seconds until the last subscriber had all.
    pub(crate) fn seconds_since(&self, began: SystemTime) -> f64 {
        self.last_at.saturating_sub(wall_nanos(began)) as f64 / 1e9
    }
}

/// Returns a point in time as nanoseconds of the wall clock, which the processes of one machine
/// compare.
pub(crate) fn wall_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
