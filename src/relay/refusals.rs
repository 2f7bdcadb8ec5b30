//! Requests refused for want of room: counted all, logged once a second for each kind.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;

use crate::{
    clock::Tick,
    error::{Error, ErrorKind},
    log_limiter::LogLimiter,
};

/// A request that can be refused for want of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Notify,
    Subscribe,
    Report,
}

/// The counts since the start.
#[derive(Debug)]
pub(crate) struct Refusals {
    counts: [AtomicU64; KINDS],
    limiter: Mutex<LogLimiter<KINDS>>,
}

const KINDS: usize = 3;
const LOG_EVERY: Duration = Duration::from_secs(1);

impl Default for Refusals {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; KINDS],
            limiter: Mutex::new(LogLimiter::new(LOG_EVERY)),
        }
    }
}

impl Refusals {
    /// Counts an error that says that there is no room, and no other.
    #[cold]
    pub(super) fn note(&self, request: Refused, error: &Error, now: Tick) {
        if error.kind() != ErrorKind::Exhausted {
            return;
        }
        self.counts[request as usize].fetch_add(1, Ordering::Relaxed);
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let suppressed = limiter.count(request as usize, now);
        drop(limiter);
        if let Some(suppressed) = suppressed {
            tracing::warn!(%error, suppressed, "{}", request.text());
        }
    }

    pub(crate) fn count(&self, request: Refused) -> u64 {
        self.counts[request as usize].load(Ordering::Relaxed)
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
