//! Waits by reading the flag now and then: simple, robust, up to an interval late.

use std::time::Duration;

use crate::{error::Result, words::GlobalFlag};

/// Waits by reading the flag now and then. A setting that is shorter than two intervals may pass
/// unseen.
#[derive(Debug)]
pub struct PollingRelease {
    flag: Box<dyn GlobalFlag>,
    interval: Duration,
}

impl PollingRelease {
    /// The usual interval: a parked node is released 1.25 s late on average, and reads 34,560 times
    /// a day.
    pub const INTERVAL: Duration = Duration::from_millis(2500);

    /// Makes one that reads the flag every `interval`; zero is [`PollingRelease::INTERVAL`].
    pub fn new(flag: impl GlobalFlag, interval: Duration) -> Self {
        Self {
            flag: Box::new(flag),
            interval: or_usual(interval, Self::INTERVAL),
        }
    }

    /// Waits until the flag is set; reads it at once, and every interval from then on. A store that
    /// cannot be reached just now is read again at the next interval.
    ///
    /// # Errors
    /// Only what is final: the store refuses the reading.
    ///
    /// # Cancel safety
    /// Safe: it may be called again.
    pub async fn wait(&self) -> Result<()> {
        until_set(&*self.flag, || self.interval).await
    }
}

/// Returns `interval`, or the usual one where none is stated: never a loop without a pause.
pub(super) fn or_usual(interval: Duration, usual: Duration) -> Duration {
    if interval.is_zero() { usual } else { interval }
}

/// Reads the flag until it is set.
pub(super) async fn until_set(
    flag: &dyn GlobalFlag,
    mut interval: impl FnMut() -> Duration,
) -> Result<()> {
    loop {
        match flag.is_set().await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "the flag cannot be read; trying again");
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(interval()).await;
    }
}
