//! Runs the flags on tokio: ends those whose time has come, and looks for other writers' changes.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep};

use super::{Flags, Wall};
use crate::{backoff::Backoff, error::Result, task::Scope, words::FlagName};

/// What the flags' tasks go by.
#[derive(Clone)]
pub(crate) struct FlagTimers {
    /// How often each watched flag is read, for the sake of other writers; zero is never. At 10 s a
    /// flag costs 8,640 reads a day: less than a cent where a million of them cost 0.40.
    pub(crate) refresh: Duration,
    pub(crate) wall: Wall,
}

/// The longest sleep before an expiry: the wall clock may be set meanwhile.
const LONGEST: Duration = Duration::from_secs(10);

/// A store that fails is tried again after a wait that grows so far.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// An observer is told of acknowledgements at most so often.
const ACKS_EVERY: Duration = Duration::from_millis(50);

/// All observers of a flag together are told 5,000 times a second: 10,000 of them every two seconds.
const ACKS_EACH: Duration = Duration::from_micros(200);

/// Starts the tasks; they end with the scope.
pub(crate) fn start(flags: &Flags, timers: &FlagTimers, scope: &Scope) {
    scope.spawn(expire(flags.clone(), timers.clone()));
    scope.spawn(tell_acks(flags.clone()));
    if !timers.refresh.is_zero() {
        scope.spawn(refresh(flags.clone(), timers.clone()));
    }
}

async fn expire(flags: Flags, timers: FlagTimers) {
    let mut failures = Failures::new(RETRY.1);
    if let Err(error) = flags.recover((timers.wall)()).await {
        // What is not found now is found when it is watched; until then it reads as not set.
        tracing::warn!(%error, "flags that end by themselves could not be looked for");
    }
    loop {
        let next = flags.next_expiry();
        tokio::select! {
            biased;
            () = poll_fn(|context| flags.poll_expiry_moved(next, context.waker())) => continue,
            () = sleep(until(next, (timers.wall)())) => {}
        }
        let ended = flags.expire((timers.wall)()).await;
        failures
            .note(ended, "flags whose time has come could not be ended")
            .await;
    }
}

async fn refresh(flags: Flags, timers: FlagTimers) {
    // A store that is back is read within an interval, as it is while it is there.
    let mut failures = Failures::new(timers.refresh);
    loop {
        if !failures.failing {
            sleep(timers.refresh).await;
        }
        let read = flags.refresh((timers.wall)()).await;
        failures.note(read, "watched flags could not be read").await;
    }
}

/// Tells observers of acknowledgements: the first at once, then what has changed within each span.
async fn tell_acks(flags: Flags) {
    // Flags whose observers are told again at these times; one with few is not kept waiting.
    let mut later = BTreeMap::<FlagName, Instant>::new();
    loop {
        poll_fn(|context| flags.poll_acks_changed(context.waker())).await;
        let now = Instant::now();
        later.retain(|_, at| *at > now);
        for (name, told) in flags.publish_acks(|name| !later.contains_key(name)).await {
            let told = u32::try_from(told).unwrap_or(u32::MAX);
            later.insert(name, now + ACKS_EVERY.max(ACKS_EACH.saturating_mul(told)));
        }
        sleep(ACKS_EVERY).await;
    }
}

fn until(next: Option<SystemTime>, wall: SystemTime) -> Duration {
    let left = next.map(|at| at.duration_since(wall).unwrap_or_default());
    left.unwrap_or(LONGEST).min(LONGEST)
}

/// A row of failures: said once, and followed by waits that grow.
struct Failures {
    backoff: Backoff,
    failing: bool,
}

impl Failures {
    /// None waits longer than `longest`.
    fn new(longest: Duration) -> Self {
        Self {
            backoff: Backoff::new(RETRY.0.min(longest), RETRY.1.min(longest)),
            failing: false,
        }
    }

    /// Returns at once after a success, after a wait otherwise.
    async fn note(&mut self, outcome: Result<()>, what: &str) {
        let Err(error) = outcome else {
            if std::mem::take(&mut self.failing) {
                tracing::info!("the store answers again");
            }
            self.backoff.reset();
            return;
        };
        if !self.failing {
            tracing::warn!(%error, "{what}; trying again");
        }
        self.failing = true;
        let wait = self.backoff.next(&mut fastrand::Rng::new());
        // Never none at all: full jitter may draw zero, and what is due stays due.
        sleep(wait.max(RETRY.0 / 10)).await;
    }
}

impl std::fmt::Debug for FlagTimers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlagTimers")
            .field("refresh", &self.refresh)
            .finish_non_exhaustive()
    }
}
