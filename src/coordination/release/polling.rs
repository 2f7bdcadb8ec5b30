//! Waits by reading the flag at an interval: simple, robust, up to an interval late.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use crate::{
    base::backoff::jitter,
    error::{Error, Result},
    types::GlobalFlag,
};

/// Waits by reading the flag at an interval. It may miss a set that is shorter than two intervals.
#[derive(Debug)]
pub struct PollingRelease {
    flag: FlagReader,
    interval: Duration,
}

/// Reads a flag repeatedly and survives single failures.
#[derive(Debug)]
pub(super) struct FlagReader {
    flag: Box<dyn GlobalFlag>,
    /// Whether the flag was read before. A later refusal is then treated as transient.
    was_read: AtomicBool,
    /// Whether the last read failed and that was logged.
    failing: AtomicBool,
}

impl PollingRelease {
    /// The default interval. A parked node is released 1.2 s late on average, and reads 38,400
    /// times a day.
    pub const INTERVAL: Duration = Duration::from_millis(2500);

    /// Makes a release that reads the flag every `interval`; zero is [`PollingRelease::INTERVAL`].
    pub fn new(flag: impl GlobalFlag, interval: Duration) -> Self {
        Self {
            flag: FlagReader::new(flag),
            interval: or_default(interval, Self::INTERVAL),
        }
    }

    /// Waits until the flag is set. Reads it at once and then at every interval, up to a fifth of
    /// an interval early at random. The second read comes at a random time within the first
    /// interval, so that nodes of a fleet do not read at the same time. If the store cannot be
    /// reached, the read is repeated at the next interval, and that is logged once. The same holds
    /// if the store refuses a read after it has allowed one: a change of the credential must not
    /// end a parked fleet.
    ///
    /// # Errors
    /// Only a final error: the store refuses the first read.
    ///
    /// # Cancel safety
    /// Safe: it may be called again.
    pub async fn wait(&self) -> Result<()> {
        self.flag.until_set(self.interval).await
    }
}

/// Returns `interval`, or the default for zero: there is never a loop without a pause.
pub(super) fn or_default(interval: Duration, default: Duration) -> Duration {
    if interval.is_zero() {
        default
    } else {
        interval
    }
}

impl FlagReader {
    pub(super) fn new(flag: impl GlobalFlag) -> Self {
        Self {
            flag: Box::new(flag),
            was_read: AtomicBool::new(false),
            failing: AtomicBool::new(false),
        }
    }

    /// Reads the flag until it is set.
    pub(super) async fn until_set(&self, interval: Duration) -> Result<()> {
        let mut rng = fastrand::Rng::new();
        let mut wait = jitter(interval, &mut rng);
        loop {
            match self.flag.is_set().await {
                Ok(set) => {
                    self.was_read.store(true, Relaxed);
                    if self.failing.swap(false, Relaxed) {
                        tracing::info!("the flag can be read again");
                    }
                    if set {
                        return Ok(());
                    }
                }
                Err(error) if self.is_transient(&error) => {
                    if !self.failing.swap(true, Relaxed) {
                        tracing::warn!(%error, "the flag cannot be read; retrying");
                    }
                }
                Err(error) => return Err(error),
            }
            tokio::time::sleep(wait).await;
            wait = interval - jitter(interval / 5, &mut rng);
        }
    }

    fn is_transient(&self, error: &Error) -> bool {
        error.is_retryable() || self.was_read.load(Relaxed)
    }
}
