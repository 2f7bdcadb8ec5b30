//! Runs the flags on tokio: ends those whose time has come, and looks for other writers' changes.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep};

use super::{Flags, Wall};
use crate::{
    backoff::Backoff,
    error::{Error, ErrorKind, Result},
    sync::lock,
    task::Scope,
    words::FlagName,
};

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

/// A refresh that takes longer is given up, and begun again: a request that hangs must not keep
/// other writers' changes from the watchers. 10,000 flags take 5 s where a read takes 15 ms.
const REFRESH: Duration = Duration::from_secs(60);

/// Starts the tasks; they end with the scope.
pub(crate) fn start(flags: &Flags, timers: &FlagTimers, scope: &Scope) {
    let outage = Arc::new(Outage::default());
    let expiry = Failures::new(Task::Expiry, RETRY.1, Arc::clone(&outage));
    scope.spawn(expire(flags.clone(), timers.clone(), expiry));
    scope.spawn(tell_acks(flags.clone()));
    if !timers.refresh.is_zero() {
        // A store that is back is read within an interval, as it is while it is there.
        let failures = Failures::new(Task::Refresh, timers.refresh, outage);
        scope.spawn(refresh(flags.clone(), timers.clone(), failures));
    }
}

async fn expire(flags: Flags, timers: FlagTimers, mut failures: Failures) {
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
        failures.note(ended).await;
    }
}

async fn refresh(flags: Flags, timers: FlagTimers, mut failures: Failures) {
    loop {
        if !failures.failing {
            sleep(timers.refresh).await;
        }
        let refresh = flags.refresh((timers.wall)());
        let read = tokio::time::timeout(REFRESH, refresh).await;
        failures.note(read.unwrap_or_else(|_| Err(late()))).await;
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

#[cold]
fn late() -> Error {
    let message = format!("the store did not answer within {REFRESH:?}");
    Error::new(ErrorKind::Timeout, message)
}

/// What asks the store.
#[derive(Debug, Clone, Copy)]
enum Task {
    Expiry = 0,
    Refresh = 1,
}

/// The outage of one store, as its tasks see it: each task logs it once, and its end is logged once,
/// when the store has answered and no task's request fails any more.
#[derive(Debug, Default)]
struct Outage {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The tasks whose last request failed.
    failing: [bool; 2],
    /// The tasks that have logged the outage.
    warned: [bool; 2],
    /// Whether the store has answered since a request failed.
    answered: bool,
}

impl Outage {
    /// Notes that a task's request failed; returns whether that is to be logged.
    fn begins(&self, task: Task) -> bool {
        let mut seen = lock(&self.seen);
        seen.failing[task as usize] = true;
        seen.answered = false;
        !std::mem::replace(&mut seen.warned[task as usize], true)
    }

    /// Notes that a task has nothing to ask for any more, or was `answered`; returns whether the end of
    /// the outage is to be logged.
    fn ends(&self, task: Task, answered: bool) -> bool {
        let mut seen = lock(&self.seen);
        seen.failing[task as usize] = false;
        seen.answered |= answered;
        let over = seen.answered && seen.warned.contains(&true) && !seen.failing.contains(&true);
        if over {
            *seen = Seen::default();
        }
        over
    }
}

/// A row of a task's failures: logged once, and followed by waits that grow.
struct Failures {
    task: Task,
    outage: Arc<Outage>,
    backoff: Backoff,
    failing: bool,
}

impl Failures {
    /// None waits longer than `longest`.
    fn new(task: Task, longest: Duration, outage: Arc<Outage>) -> Self {
        Self {
            task,
            outage,
            backoff: Backoff::new(RETRY.0.min(longest), RETRY.1.min(longest)),
            failing: false,
        }
    }

    /// Takes in whether the store was asked, and whether it answered. Returns at once after a success,
    /// after a wait otherwise.
    async fn note(&mut self, asked: Result<bool>) {
        let error = match asked {
            // Where nothing was to do, that says nothing about the store.
            Ok(answered) => {
                if self.outage.ends(self.task, answered) {
                    tracing::info!("the store answers again");
                }
                self.failing = false;
                if answered {
                    self.backoff.reset();
                }
                return;
            }
            Err(error) => error,
        };
        if self.outage.begins(self.task) {
            let what = match self.task {
                Task::Expiry => "flags whose time has come could not be ended",
                Task::Refresh => "watched flags could not be read",
            };
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
