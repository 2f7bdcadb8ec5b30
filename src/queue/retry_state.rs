//! The retry state of one call: whether a failed call is repeated, and when.
//!
//! Pure: knows neither queues nor timers, and randomness is an argument, so that the listener's
//! simulation can use it.

use std::time::Duration;

use super::RetryConfig;
use crate::{base::backoff::Backoff, error::Error};

/// The retry state of one call.
#[derive(Debug)]
pub(crate) struct RetryState {
    attempts_left: u32,
    backoff: Backoff,
    retry_on: RetryOn,
    /// An attempt failed but may have taken effect.
    in_doubt: bool,
}

/// The failures after which a call is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryOn {
    /// All temporary failures: a second call does no harm.
    Temporary,
    /// Refusals only. A get without an answer may have hidden messages. The listener must see that
    /// error, because it then reports when the messages become visible again.
    Refusals,
}

impl RetryState {
    pub(crate) fn new(config: &RetryConfig, retry_on: RetryOn) -> Self {
        Self {
            attempts_left: config.tries.max(1),
            backoff: Backoff::new(config.base, config.max),
            retry_on,
            in_doubt: false,
        }
    }

    /// Returns the wait before the next attempt; `None` if the call has failed for good.
    pub(crate) fn next_wait(&mut self, error: &Error, rng: &mut fastrand::Rng) -> Option<Duration> {
        let refused = error.kind().is_refusal();
        self.in_doubt |= !refused;
        self.attempts_left = self.attempts_left.saturating_sub(1);
        if self.attempts_left == 0 || !error.is_retryable() || !self.repeats_after(refused) {
            return None;
        }
        // The jitter is added to the service's `retry_after`. Otherwise all callers that it turned
        // away would return at the same time.
        let asked = error.retry_after().unwrap_or_default();
        Some(asked.saturating_add(self.backoff.next(rng)))
    }

    fn repeats_after(&self, refused: bool) -> bool {
        refused || self.retry_on == RetryOn::Temporary
    }

    /// Returns whether an attempt failed but may have taken effect.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }
}
