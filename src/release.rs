//! How a parked node waits until it is released.
//!
//! Three ways to wait for a flag: [`PollingRelease`] reads it now and then, [`ListeningRelease`]
//! hears of it at once but not of what came before, and [`Release`], which is what to take, misses
//! nothing: with a relay, with a store alone, or with both. Knows neither relay nor store: a [`FlagWatch`] and a
//! [`GlobalFlag`](crate::GlobalFlag) is all there is to it.

mod both;
mod listening;
mod polling;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::{both::Release, listening::ListeningRelease, polling::PollingRelease};
use crate::{
    backoff::Backoff,
    error::{Error, ErrorKind, Result},
    words::{FlagState, FlagWatch},
};

/// Attempts at an acknowledgement: with the waits between them about half a minute, longer than a
/// stream takes to come back.
const ACKS: u32 = 12;

/// The waits between the attempts.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Waits for the watch's next state.
async fn next(watch: &mut dyn FlagWatch) -> Result<FlagState> {
    let closed = || Error::new(ErrorKind::Closed, "the flag's watch was closed");
    watch.next().await.ok_or_else(closed)?
}

/// Acknowledges a generation, again and again while that may help.
async fn acknowledge(watch: &mut dyn FlagWatch, generation: u64) -> Result<()> {
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    for _ in 1..ACKS {
        match watch.ack(generation).await {
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(backoff.next(&mut fastrand::Rng::new())).await;
            }
            outcome => return outcome,
        }
    }
    watch.ack(generation).await
}
