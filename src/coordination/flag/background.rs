//! The background tasks of flags: expiry, refresh and counts of acknowledgements.
//!
//! They decide when, and wait after failures of the store. What is done is in `writes.rs` (expiry) and
//! `remote_writes.rs` (refresh).

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use super::{Flags, WallClock};
use crate::{
    base::{backoff::Backoff, task::Scope},
    error::{Error, ErrorKind, Result},
};

/// A flag ends at most this late.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Back-off after a failure of the store: first and longest wait.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The shortest time between two messages of acknowledgements to an observer.
const ACK_INTERVAL: Duration = Duration::from_millis(50);

/// Limit of one refresh, which then starts again. A request that hangs must not hide other writers'
/// changes. 10,000 flags that were cleared take 14 s if a read takes 15 ms.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the tasks. They end with the scope. Watched flags are refreshed at this interval: at 10 s a
/// relay lists the store 8,640 times a day, for 4 cents at 5.00 for a million lists. Zero turns it off.
pub(crate) fn start(flags: &Flags, refresh_interval: Duration, wall: &WallClock, scope: &Scope) {
    scope.spawn(expire(flags.clone(), Arc::clone(wall)));
    scope.spawn(refresh(flags.clone(), refresh_interval, Arc::clone(wall)));
    scope.spawn(publish_acks(flags.clone()));
}

async fn expire(flags: Flags, wall: WallClock) {
    let mut store = StoreLink::new("expired flags could not be ended", RETRY_BACKOFF.1);
    if let Err(error) = flags.recover(wall()).await {
        // The next registered watcher finds the flag. Until then it reads as not set.
        tracing::warn!(%error, "could not search the store for flags with an expiry");
    }
    loop {
        sleep(EXPIRY_INTERVAL).await;
        store.after(flags.expire(wall()).await).await;
    }
}

async fn refresh(flags: Flags, interval: Duration, wall: WallClock) {
    // A store that has recovered is read within one interval. Without one, requested refreshes are
    // repeated with the longest wait.
    let (every, longest) = match interval.is_zero() {
        true => (Duration::MAX, RETRY_BACKOFF.1),
        false => (interval, interval),
    };
    let mut store = StoreLink::new("watched flags could not be read", longest);
    loop {
        if !store.fails {
            // The interval is over, or a refresh was requested.
            _ = timeout(every, flags.refresh_requested()).await;
        }
        let late = |_| {
            let message = format!("the store did not answer within {REFRESH_TIMEOUT:?}");
            Err(Error::new(ErrorKind::Timeout, message))
        };
        let read = timeout(REFRESH_TIMEOUT, flags.refresh(wall())).await;
        store.after(read.unwrap_or_else(late)).await;
    }
}

/// Sends acknowledgements to observers: the first ones at once, later ones conflated per interval.
async fn publish_acks(flags: Flags) {
    loop {
        flags.acks_changed().await;
        flags.publish_acks();
        sleep(ACK_INTERVAL).await;
    }
}

/// A task's requests to the store: a failure is followed by a growing wait. An outage is logged
/// once, and its end when the store has answered.
struct StoreLink {
    /// What a failure means.
    failure: &'static str,
    backoff: Backoff,
    /// Whether the last request failed.
    fails: bool,
    warned: bool,
}

impl StoreLink {
    /// No wait is longer than `longest`.
    fn new(failure: &'static str, longest: Duration) -> Self {
        Self {
            failure,
            backoff: Backoff::new(RETRY_BACKOFF.0.min(longest), RETRY_BACKOFF.1.min(longest)),
            fails: false,
            warned: false,
        }
    }

    /// Takes the result of a request; `false` means that none was needed. Returns at once after a
    /// success, and after a wait otherwise.
    async fn after(&mut self, asked: Result<bool>) {
        self.fails = asked.is_err();
        match asked {
            // The store's state is unknown.
            Ok(false) => {}
            Ok(true) => {
                self.backoff.reset();
                if std::mem::take(&mut self.warned) {
                    tracing::info!("the store answers again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(%error, "{}; retrying", self.failure);
                }
                let wait = self.backoff.next(&mut fastrand::Rng::new());
                // Full jitter may draw zero. A minimum wait keeps a due flag from a busy loop.
                sleep(wait.max(RETRY_BACKOFF.0 / 10)).await;
            }
        }
    }
}
