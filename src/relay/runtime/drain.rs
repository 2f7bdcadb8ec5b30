//! C15: the orderly end of a relay. From its begin on, new streams are refused, and the open ones end
//! within its span; then notifications are refused.
//!
//! A drain begins once. A later request may bring its end forward, and never puts it off.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::sync::watch;

use super::Relay;
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind, Result},
    types::Drain,
};

/// The state of a relay's drain.
#[derive(Debug, Default)]
pub(super) struct DrainState {
    /// The span without a stated one.
    default_span: Duration,
    drain: watch::Sender<Option<Drain>>,
    /// Each stream reads it at each poll, so the lock of `drain` is taken only after the begin.
    has_begun: AtomicBool,
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
        let has_begun = self.has_begun.load(Ordering::Acquire);
        has_begun.then(|| *self.drain.borrow()).flatten()
    }

    /// Begins the drain, or brings its end forward. Returns whether something has changed.
    fn set(&self, span: Option<Duration>, now: Tick) -> bool {
        let end = now + span.unwrap_or(self.default_span);
        self.drain.send_if_modified(|drain| {
            if drain.is_some_and(|known| known.began + known.span <= end) {
                return false;
            }
            let began = drain.map_or(now, |known| known.began);
            let span = end.since(began);
            *drain = Some(Drain { began, span });
            self.has_begun.store(true, Ordering::Release);
            true
        })
    }
}

impl Relay {
    /// Ends all streams with a Goodbye, within [`RelayConfig::drain`](super::RelayConfig::drain);
    /// new ones are refused. Brings the end of a drain forward that has begun with a longer span.
    pub fn drain(&self) {
        self.drain_over(None);
    }

    /// Does the same within this span from now on; `None` is the setting.
    pub(crate) fn drain_over(&self, span: Option<Duration>) {
        if self.shared.drain.set(span, self.shared.clock.now()) {
            self.shared.hub.wake_all();
        }
    }

    /// Returns the drain, once it has begun.
    pub(crate) fn drain_state(&self) -> Option<Drain> {
        self.shared.drain.get()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain_state().is_some()
    }

    /// Waits until a drain begins, or until its end is brought forward; changes before this call are
    /// not seen.
    pub(crate) fn drain_changes(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut drain = self.shared.drain.drain.subscribe();
        async move {
            // The sender lives as long as the relay.
            let _ = drain.changed().await;
        }
    }

    /// Waits until a drain has begun.
    pub(crate) async fn drain_began(&self) {
        let mut drain = self.shared.drain.drain.subscribe();
        // The sender lives as long as the relay.
        let _ = drain.wait_for(Option::is_some).await;
    }

    /// Waits until the span of the drain is over, or no stream is left; `watchers` counts those that
    /// are not of subscribers. Returns at once if no drain has begun.
    pub(crate) async fn all_streams_told(&self, watchers: impl Fn() -> u64 + Send + Sync) {
        while let Some(drain) = self.drain_state() {
            let is_over = self.shared.clock.now() >= drain.began + drain.span;
            let none_left = self.shared.hub.stats().subscriptions == 0 && watchers() == 0;
            if is_over || none_left {
                return;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
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
        let refuses = &self.shared.drain.refuses_notifications;
        refuse_if(refuses.load(Ordering::Acquire))
    }

    /// Checks that new streams are accepted.
    ///
    /// # Errors
    /// `Unavailable` once a drain has begun.
    pub(crate) fn check_accepts_streams(&self) -> Result<()> {
        refuse_if(self.is_draining())
    }
}

fn refuse_if(drains: bool) -> Result<()> {
    if !drains {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Unavailable, "the relay is shutting down");
    Err(error.with_retry_after(RETRY_AFTER))
}
