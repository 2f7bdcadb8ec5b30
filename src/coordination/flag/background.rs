//! The background tasks of flags: expiry, refresh and counts of acknowledgements.

use std::{
    future::poll_fn,
    time::{Duration, SystemTime},
};

use tokio::time::sleep;

use super::{Flags, WallClock};
use crate::{
    base::{backoff::Backoff, task::Scope},
    error::{Error, ErrorKind, Result},
};

/// Settings of the background tasks.
#[derive(Clone)]
pub(crate) struct FlagTimers {
    /// Interval at which each watched flag is read to find other writers' changes. Zero turns it
    /// off. At 10 s a flag costs 8,640 reads a day: less than a cent at 0.40 for a million reads.
    pub(crate) refresh: Duration,
    pub(crate) wall: WallClock,
}

/// The longest sleep before an expiry, because the wall clock may be changed during it.
const MAX_SLEEP: Duration = Duration::from_secs(10);

/// Back-off after a failure of the store: first and longest wait.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The shortest time between two messages of acknowledgements to an observer.
const ACK_INTERVAL: Duration = Duration::from_millis(50);

/// Limits the messages to all observers to 5,000 a second: 10,000 observers receive one every two
/// seconds.
const ACK_TIME_PER_OBSERVER: Duration = Duration::from_micros(200);

/// Limit of one refresh, which then starts again. A request that hangs must not hide other writers'
/// changes. 10,000 flags take 5 s if a read takes 15 ms.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the tasks. They end with the scope.
pub(crate) fn start(flags: &Flags, timers: &FlagTimers, scope: &Scope) {
    scope.spawn(expire(flags.clone(), timers.clone()));
    scope.spawn(tell_acks(flags.clone()));
    scope.spawn(refresh(flags.clone(), timers.clone()));
}

async fn expire(flags: Flags, timers: FlagTimers) {
    let mut store = StoreLink::new("expired flags could not be ended", RETRY_BACKOFF.1);
    if let Err(error) = flags.recover((timers.wall)()).await {
        // The next registered watcher finds the flag. Until then it reads as not set.
        tracing::warn!(%error, "could not search the store for flags with an expiry");
    }
    loop {
        let next = flags.next_expiry();
        tokio::select! {
            biased;
            () = poll_fn(|context| flags.poll_expiry_moved(next, context.waker())) => continue,
            () = sleep(until(next, (timers.wall)())) => {}
        }
        let ended = flags.expire((timers.wall)()).await;
        store.after(ended).await;
    }
}

async fn refresh(flags: Flags, timers: FlagTimers) {
    // A store that has recovered is read within one interval. Without one, requested refreshes are
    // repeated with the longest wait.
    let longest = match timers.refresh.is_zero() {
        true => RETRY_BACKOFF.1,
        false => timers.refresh,
    };
    let mut store = StoreLink::new("watched flags could not be read", longest);
    loop {
        if !store.fails {
            let interval = async {
                match timers.refresh.is_zero() {
                    true => std::future::pending().await,
                    false => sleep(timers.refresh).await,
                }
            };
            tokio::select! {
                () = interval => {}
                () = flags.refresh_requested() => {}
            }
        }
        let refresh = flags.refresh((timers.wall)());
        let read = tokio::time::timeout(REFRESH_TIMEOUT, refresh).await;
        store
            .after(read.unwrap_or_else(|_| Err(late_error())))
            .await;
    }
}

/// Sends acknowledgements to observers: the first ones at once, later ones conflated per interval.
async fn tell_acks(flags: Flags) {
    loop {
        poll_fn(|context| flags.poll_acks_changed(context.waker())).await;
        let told = u32::try_from(flags.publish_acks().await).unwrap_or(u32::MAX);
        sleep(ACK_INTERVAL.max(ACK_TIME_PER_OBSERVER.saturating_mul(told))).await;
    }
}

fn until(next: Option<SystemTime>, wall: SystemTime) -> Duration {
    let left = next.map(|at| at.duration_since(wall).unwrap_or_default());
    left.unwrap_or(MAX_SLEEP).min(MAX_SLEEP)
}

#[cold]
fn late_error() -> Error {
    let message = format!("the store did not answer within {REFRESH_TIMEOUT:?}");
    Error::new(ErrorKind::Timeout, message)
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

impl std::fmt::Debug for FlagTimers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlagTimers")
            .field("refresh", &self.refresh)
            .finish_non_exhaustive()
    }
}
