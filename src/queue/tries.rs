//! The tries of one call: whether a call that failed is made again, and when.
//!
//! Pure: knows neither queues nor timers, and randomness is an argument, so that the simulation of
//! the listener runs it as well.

use std::time::Duration;

use super::RetryConfig;
use crate::{
    backoff::Backoff,
    error::Error,
    fault::{Fault, planted},
};

/// The tries of one call.
#[derive(Debug)]
pub(crate) struct Tries {
    left: u32,
    backoff: Backoff,
    repeat: Repeat,
    /// A try may have happened although it failed.
    in_doubt: bool,
    fault: Fault,
}

/// After which failures a call is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// After each that may pass: the second call does no harm.
    Any,
    /// After a refusal only. A get that may have happened has hidden messages, and only its failure
    /// tells the listener to report when they come back.
    Refused,
}

impl Tries {
    pub(crate) fn new(config: &RetryConfig, repeat: Repeat, fault: Fault) -> Self {
        Self {
            left: config.tries.max(1),
            backoff: Backoff::new(config.base, config.max),
            repeat,
            in_doubt: false,
            fault,
        }
    }

    /// Returns how long to wait before the next try; `None` where the call has failed.
    pub(crate) fn after(&mut self, error: &Error, rng: &mut fastrand::Rng) -> Option<Duration> {
        let refused = error.kind().is_refusal();
        self.in_doubt |= !refused;
        self.left = self.left.saturating_sub(1);
        let repeats = self.repeat == Repeat::Any || refused || planted!(self.fault, LostGetRetried);
        if self.left == 0 || !error.is_retryable() || !repeats {
            return None;
        }
        // On top of what the service asks for, or all that it turned away would come back at once.
        let asked = error.retry_after().unwrap_or_default();
        Some(asked.saturating_add(self.backoff.next(rng)))
    }

    /// Returns whether a try may have happened although it failed.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }
}
