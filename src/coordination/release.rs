//! How a parked node waits for its release.
//!
//! There are three ways to wait for a flag. [`PollingRelease`] reads it at an interval.
//! [`ListeningRelease`] is notified at once, but misses a set that happened before. [`Release`],
//! the usual choice, misses nothing: with a relay, with a store alone, or with both. The types know
//! neither relay nor store, only a [`FlagWatch`] and a [`GlobalFlag`](crate::GlobalFlag).

mod combined;
mod listening;
mod polling;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::{combined::Release, listening::ListeningRelease, polling::PollingRelease};
use crate::{
    base::backoff::Backoff,
    error::{Error, ErrorKind, Result},
    types::{FlagState, FlagWatch},
};

/// Attempts at an acknowledgement. With the waits between them they take about half a minute,
/// longer than a stream takes to reconnect.
const ACK_ATTEMPTS: u32 = 12;

/// Back-off between the attempts: first and longest wait.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Waits for the watch's next state.
async fn next(watch: &mut dyn FlagWatch) -> Result<FlagState> {
    let closed = || Error::new(ErrorKind::Closed, "the flag's watch was closed");
    watch.next().await.ok_or_else(closed)?
}

/// Acknowledges a generation and retries transient errors.
async fn acknowledge(watch: &mut dyn FlagWatch, generation: u64) -> Result<()> {
    let mut backoff = Backoff::new(RETRY_BACKOFF.0, RETRY_BACKOFF.1);
    for _ in 1..ACK_ATTEMPTS {
        match watch.ack(generation).await {
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(backoff.next(&mut fastrand::Rng::new())).await;
            }
            outcome => return outcome,
        }
    }
    watch.ack(generation).await
}
