//! C15: the orderly end of a relay. From its begin on, new streams are refused, and the open ones end
//! within its span; then notifications are refused.
//!
//! A drain begins once. A later request for one changes nothing.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::Relay;
use crate::{
    error::{Error, ErrorKind, Result},
    types::Drain,
};

/// The state of a relay's drain.
#[derive(Debug, Default)]
pub(super) struct DrainState {
    /// The span without a stated one.
    default_span: Duration,
    /// Read by each stream at each poll.
    drain: OnceLock<Drain>,
    began: CancellationToken,
    refuses_notifications: AtomicBool,
}

/// Interval of the checks whether a stream is left.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The wait that is stated to a refused client.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl DrainState {
    pub(super) fn new(default_span: Duration) -> Self {
        Self {
            default_span,
            ..Self::default()
        }
    }

    /// Returns the drain, once it has begun.
    pub(super) fn get(&self) -> Option<Drain> {
        self.drain.get().copied()
    }
}

impl Relay {
    /// Ends all streams with a Goodbye, within [`RelayConfig::drain`](super::RelayConfig::drain);
    /// new ones are refused.
    pub fn drain(&self) {
        self.drain_over(None);
    }

    /// Does the same within this span; `None` is the setting.
    pub(crate) fn drain_over(&self, span: Option<Duration>) {
        let state = &self.shared.drain;
        let drain = Drain {
            began: self.shared.clock.now(),
            span: span.unwrap_or(state.default_span),
        };
        let _ = state.drain.set(drain);
        state.began.cancel();
        self.shared.hub.wake_all();
    }

    /// Returns the drain, once it has begun.
    pub(crate) fn drain_state(&self) -> Option<Drain> {
        self.shared.drain.get()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain_state().is_some()
    }

    /// Returns a token that is cancelled when a drain begins.
    pub(crate) fn drain_began(&self) -> CancellationToken {
        self.shared.drain.began.clone()
    }

    /// Waits until the span of the drain is over, or no stream is left; `watchers` counts those that
    /// are not of subscribers. Returns at once if no drain has begun.
    pub(crate) async fn all_streams_told(&self, watchers: impl Fn() -> u64 + Send + Sync) {
        let Some(drain) = self.drain_state() else {
            return;
        };
        let end = self.shared.clock.instant(drain.began + drain.span);
        let none_left = async {
            while self.shared.hub.stats().subscriptions > 0 || watchers() > 0 {
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        };
        // An error means that streams are left: each of them has its Goodbye now.
        let _ = tokio::time::timeout_at(end, none_left).await;
    }

    /// Refuses the notifications of clients from now on.
    pub(crate) fn refuse_notifications(&self) {
        let refuses = &self.shared.drain.refuses_notifications;
        refuses.store(true, Ordering::Release);
    }

    /// Checks that notifications of clients are accepted.
    ///
    /// # Errors
    /// `Unavailable` once all streams were told to end.
    pub(crate) fn check_accepts_notifications(&self) -> Result<()> {
        match self
            .shared
            .drain
            .refuses_notifications
            .load(Ordering::Acquire)
        {
            true => Err(Self::draining()),
            false => Ok(()),
        }
    }

    /// Checks that new streams are accepted.
    ///
    /// # Errors
    /// `Unavailable` once a drain has begun.
    pub(crate) fn check_accepts_streams(&self) -> Result<()> {
        match self.is_draining() {
            true => Err(Self::draining()),
            false => Ok(()),
        }
    }

    fn draining() -> Error {
        Error::new(ErrorKind::Unavailable, "the relay is shutting down")
            .with_retry_after(RETRY_AFTER)
    }
}
