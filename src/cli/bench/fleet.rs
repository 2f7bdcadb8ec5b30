//! The subscribers of one run, seen from the parent, and the words that the two exchange.

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use reveille::QueueAddress;
use serde::{Deserialize, Serialize};

use super::{broker::Broker, helper::Helper};

/// The subscribers' process. All of them subscribe to the same queues.
#[derive(Debug)]
pub(super) struct Fleet {
    helper: Helper,
}

/// What the subscribers were told since they were asked to expect it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Told {
    /// The fewest and the most notifications that one of them was told of.
    pub(super) least: u64,
    pub(super) most: u64,
    /// Messages that told all of them so.
    pub(super) wakeups: u64,
    /// When the last of them had been told of all: nanoseconds of the wall clock.
    pub(super) last_at: u64,
}

/// How long wake-ups took from their publisher to their subscriber, in nanoseconds.
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

/// The subscribers that are wanted.
#[derive(Debug)]
pub(super) struct Crew<'a> {
    /// Each subscriber subscribes to all of them. Their names are of one length.
    pub(super) queues: &'a [QueueAddress],
    pub(super) subscribers: u64,
    pub(super) per_connection: u64,
    /// Record how long each wake-up took.
    pub(super) timed: bool,
}

impl Latencies {
    /// Returns those of a histogram of nanoseconds.
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            p50: histogram.value_at_quantile(0.5),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }
}

impl Fleet {
    /// Starts the subscribers, and waits until all of them are connected and up to date.
    pub(super) async fn start(broker: &Broker, crew: &Crew<'_>) -> Result<Self> {
        let mut args = vec![
            ("side", broker.side.to_string()),
            ("target", broker.target.clone()),
            ("subscribers", crew.subscribers.to_string()),
            ("per-connection", crew.per_connection.to_string()),
        ];
        args.extend(crew.queues.iter().map(|queue| ("queue", queue.to_string())));
        let mut args: Vec<String> = args
            .into_iter()
            .flat_map(|(name, value)| [format!("--{name}"), value])
            .collect();
        if crew.timed {
            args.push("--timed".to_owned());
        }
        let mut helper = Helper::start("fleet", &args)?;
        let line = helper.line().await?;
        ensure!(line == READY, "the fleet process says {line:?}");
        Ok(Self { helper })
    }

    /// Has the subscribers expect `notifications` more each.
    pub(super) async fn expect(&mut self, notifications: u64) -> Result<()> {
        self.arm(&format!("{EXPECT} {notifications}")).await
    }

    /// Has the subscribers expect `notifications` more each, `steps` times, and say so after each.
    pub(super) async fn expect_steps(&mut self, steps: u64, notifications: u64) -> Result<()> {
        self.arm(&format!("{STEPS} {steps} {notifications}")).await
    }

    async fn arm(&mut self, order: &str) -> Result<()> {
        self.helper.tell(order).await?;
        let line = self.helper.line().await?;
        ensure!(line == ARMED, "the fleet process says {line:?}");
        Ok(())
    }

    /// Waits until all have been told of a step.
    pub(super) async fn step(&mut self) -> Result<()> {
        let line = self.helper.line().await?;
        ensure!(line == STEP, "the fleet process says {line:?}");
        Ok(())
    }

    /// Waits until all have been told of what they expect; checks that none was told of more.
    pub(super) async fn told(&mut self, expected: u64) -> Result<Told> {
        let line = self.helper.line().await?;
        let told: Told = serde_json::from_str(&line).context(line)?;
        ensure!(
            told.least == expected && told.most == expected,
            "the sums are wrong: {expected} notifications were published, and subscribers were \
             told of {} to {}",
            told.least,
            told.most
        );
        Ok(told)
    }

    /// Returns the latencies since this was last asked.
    pub(super) async fn latencies(&mut self) -> Result<Latencies> {
        self.helper.tell(LATENCIES).await?;
        let line = self.helper.line().await?;
        serde_json::from_str(&line).context(line)
    }

    /// Ends the subscribers.
    pub(super) async fn stop(self) {
        self.helper.stop().await;
    }
}
