//! Requests that were refused at a limit: all are counted, one a second of each kind is logged.

use std::time::Duration;

use crate::{
    base::{clock::Tick, log_limiter::LimitedCounts},
    error::{Error, ErrorKind},
};

/// A request that can be refused at a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Notify,
    Subscribe,
    Report,
}

/// The counts since the start.
#[derive(Debug)]
pub(crate) struct Refusals(LimitedCounts<3>);

const LOG_EVERY: Duration = Duration::from_secs(1);

impl Default for Refusals {
    fn default() -> Self {
        Self(LimitedCounts::new(LOG_EVERY))
    }
}

impl Refusals {
    /// Counts an error of this kind, and no other.
    #[cold]
    pub(super) fn note(&self, request: Refused, error: &Error, now: Tick) {
        if error.kind() != ErrorKind::Exhausted {
            return;
        }
        if let Some(suppressed) = self.0.note(request as usize, now) {
            tracing::warn!(%error, suppressed, "{}", request.text());
        }
    }

    pub(crate) fn count(&self, request: Refused) -> u64 {
        self.0.count(request as usize)
    }
}

impl Refused {
    fn text(self) -> &'static str {
        match self {
            Self::Notify => "refused notifications for want of room; their publisher repeats them",
            Self::Subscribe => "refused a subscription for want of room; its listener tries again",
            Self::Report => "refused a report for want of room; its listener repeats it",
        }
    }
}
