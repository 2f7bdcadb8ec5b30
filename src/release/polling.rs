//! Waits by reading the flag now and then: simple, robust, up to an interval late.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use crate::{
    backoff::jitter,
    error::{Error, Result},
    words::GlobalFlag,
};

/// Waits by reading the flag now and then. A setting that is shorter than two intervals may pass
/// unseen.
#[derive(Debug)]
pub struct PollingRelease {
    flag: Polled,
    interval: Duration,
}

/// A flag that is read again and again, whatever becomes of a single reading.
#[derive(Debug)]
pub(super) struct Polled {
    flag: Box<dyn GlobalFlag>,
    /// It was read before: what refuses the reading now has changed meanwhile, and may change back.
    was_read: AtomicBool,
    /// The last reading failed, and that was said.
    failing: AtomicBool,
}

impl PollingRelease {
    /// The usual interval: a parked node is released 1.2 s late on average, and reads 38,400 times
    /// a day.
    pub const INTERVAL: Duration = Duration::from_millis(2500);

    /// Makes one that reads the flag every `interval`; zero is [`PollingRelease::INTERVAL`].
    pub fn new(flag: impl GlobalFlag, interval: Duration) -> Self {
        Self {
            flag: Polled::new(flag),
            interval: or_usual(interval, Self::INTERVAL),
        }
    }

    /// Waits until the flag is set; reads it at once, and every interval from then on, up to a fifth
    /// of an interval early by chance; the second reading comes anywhere within the first interval,
    /// so that a fleet that was started at one moment does not read at one moment. A store that
    /// cannot be reached just now is read again at the next interval, and that is logged once. So
    /// is one that refuses the reading after it has allowed another: a credential that is being
    /// changed ends no fleet that is parked.
    ///
    /// # Errors
    /// Only what is final: the store refuses the reading from the beginning.
    ///
    /// # Cancel safety
    /// Safe: it may be called again.
    pub async fn wait(&self) -> Result<()> {
        self.flag.until_set(self.interval).await
    }
}

/// Returns `interval`, or the usual one where none is stated: never a loop without a pause.
pub(super) fn or_usual(interval: Duration, usual: Duration) -> Duration {
    if interval.is_zero() { usual } else { interval }
}

impl Polled {
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
                Err(error) if self.may_pass(&error) => {
                    if !self.failing.swap(true, Relaxed) {
                        tracing::warn!(%error, "the flag cannot be read; trying again");
                    }
                }
                Err(error) => return Err(error),
            }
            tokio::time::sleep(wait).await;
            wait = interval - jitter(interval / 5, &mut rng);
        }
    }

    fn may_pass(&self, error: &Error) -> bool {
        error.is_retryable() || self.was_read.load(Relaxed)
    }
}
