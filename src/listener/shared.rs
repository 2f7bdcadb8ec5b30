//! The state that the tasks of one listener share: the scaler behind a lock, the queue, the totals;
//! and its snapshots.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::Notify as Signal;
use tokio_util::sync::CancellationToken;

use super::{
    builder::ListenerBuilder,
    config::ListenerConfig,
    handler::AnyHandler,
    hooks::{Action, Hooks},
    poison::{AttemptLimits, Attempts},
};
use crate::{
    base::{
        clock::{Clock, Tick},
        histogram::Histogram,
        log_limiter::LogLimiter,
        sync::lock,
        text::opaque_debug,
    },
    error::{Error, ErrorKind, Result},
    listener::scaling::{ListenerMode, Scaler, ScalerConfig},
    queue::{MessageId, WorkQueue},
    types::Notifier,
};

/// A snapshot of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueryState {
    /// How it learns of work.
    pub mode: ListenerMode,
    /// The approximate number of messages in the queue; `None` where it was not read.
    pub current_queue_depth: Option<u64>,
    /// Dequeue tasks that work or wait for work.
    pub active_dequeue_tasks: usize,
    /// The highest number of tasks that were active at one time.
    pub total_dequeue_tasks: usize,
    /// No task holds a message or may receive one from a get in flight.
    pub is_idle: bool,
    /// The totals so far.
    pub stats: ListenerStats,
}

/// The totals of a listener so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerStats {
    /// Wake-ups received.
    pub wake_ups: u64,
    /// Gets issued, empty ones included.
    pub gets: u64,
    /// Gets that found nothing.
    pub empty_gets: u64,
    /// Messages got.
    pub received: u64,
    /// Messages handled and deleted.
    pub handled: u64,
    /// Handlings that failed.
    pub failed: u64,
    /// Messages moved to the poison queue.
    pub poisoned: u64,
    /// Messages that another listener got while they were handled here.
    pub lost: u64,
    /// Errors of all kinds.
    pub errors: u64,
    /// The recent mean handling time; `None` before the first.
    pub mean_handling_time: Option<Duration>,
    /// The recent mean time of a wake-up from its publisher, by both machines' clocks; `None`
    /// before the first.
    pub mean_wake_latency: Option<Duration>,
}

/// A read-only view of a [`Listener`](super::Listener) that another part of the program owns. Clones are
/// cheap, and neither keep the listener running nor end it. After its end the figures stay unchanged.
#[derive(Debug, Clone)]
pub struct ListenerMonitor(pub(super) Arc<Shared>);

/// The state that the tasks of one listener share.
pub(super) struct Shared {
    pub(super) queue: Arc<dyn WorkQueue>,
    pub(super) poison: Option<Arc<dyn WorkQueue>>,
    pub(super) publisher: Option<Arc<dyn Notifier>>,
    pub(super) handler: AnyHandler,
    pub(super) config: ListenerConfig,
    pub(super) clock: Clock,
    /// The queue's number in the budget.
    pub(super) number: u64,
    pub(super) stats: Mutex<ListenerStats>,
    /// The last depth that was read, and when.
    pub(super) depth: Mutex<Option<(u64, Tick)>>,
    pub(super) handlings: RunningHandlings,
    pub(super) handling_times: Histogram,
    /// The supervisor must run the scaler.
    pub(super) changed: Signal,
    /// A sleeping task must read its deadline again.
    pub(super) sleep_changed: Signal,
    /// The listener gets no more messages.
    pub(super) stopping: CancellationToken,
    /// The grace period of a shutdown is over.
    pub(super) abandoning: CancellationToken,
    /// Why it polls, as the hooks were told last.
    pub(super) cause: Mutex<Option<Arc<str>>>,
    hooks: Arc<dyn Hooks>,
    core: Mutex<Core>,
    log_limiter: Mutex<LogLimiter<{ Action::COUNT }>>,
    attempts: Mutex<Attempts>,
}

/// The state behind the lock. A leaf: while it is held, no other lock is taken and no foreign code
/// is called.
pub(super) struct Core {
    pub(super) scaler: Scaler,
    pub(super) rng: fastrand::Rng,
}

/// The log has at most one line per kind of error in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl Shared {
    /// Makes the state of a listener, from a builder with a valid configuration.
    pub(super) fn new(builder: ListenerBuilder, handler: AnyHandler, has_relay: bool) -> Self {
        let (queue, config) = (builder.queue, builder.config);
        let scaler = ScalerConfig {
            max_tasks: config.max_tasks.min(config.budget.slots()),
            idle: config.idle,
            away: config.away,
            empty_is_certain: queue.empty_is_certain(),
        };
        let core = Core {
            scaler: Scaler::new(scaler, has_relay),
            rng: config
                .seed
                .map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed),
        };
        let limits = AttemptLimits {
            max_dequeue_count: config.max_dequeue_count,
            visibility_timeout: config.visibility_timeout,
            poisons: builder.poison.is_some(),
        };
        Self {
            number: config.budget.number(),
            queue,
            poison: builder.poison,
            publisher: builder.publisher,
            handler,
            hooks: builder.hooks,
            config,
            clock: Clock::new(),
            stats: Mutex::default(),
            depth: Mutex::default(),
            handlings: RunningHandlings::default(),
            handling_times: Histogram::default(),
            changed: Signal::new(),
            sleep_changed: Signal::new(),
            stopping: CancellationToken::new(),
            abandoning: CancellationToken::new(),
            cause: Mutex::default(),
            core: Mutex::new(core),
            log_limiter: Mutex::new(LogLimiter::new(LOG_INTERVAL)),
            attempts: Mutex::new(Attempts::new(limits)),
        }
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Calls `f` with the locked scaler, the present time, and a random number in 0..1.
    pub(super) fn scaler<T>(&self, f: impl FnOnce(&mut Scaler, Tick, f64) -> T) -> T {
        let core = &mut *self.core();
        f(&mut core.scaler, self.clock.now(), core.rng.f64())
    }

    /// As [`Shared::scaler`], where `f` changes what there is to do, and returns whether it woke a
    /// sleeping task early.
    pub(super) fn change(&self, f: impl FnOnce(&mut Scaler, Tick, f64) -> bool) {
        if self.scaler(f) {
            self.sleep_changed.notify_waiters();
        }
        self.changed.notify_one();
    }

    /// Returns the present state without a depth.
    pub(super) fn state(&self) -> QueryState {
        let stats = *lock(&self.stats);
        self.scaler(|scaler, _, _| {
            let (active_dequeue_tasks, total_dequeue_tasks) = scaler.active();
            QueryState {
                mode: scaler.mode(),
                current_queue_depth: None,
                active_dequeue_tasks,
                total_dequeue_tasks,
                is_idle: scaler.tasks.is_idle(),
                stats,
            }
        })
    }

    /// Returns the locked records of single messages; this lock is a leaf as well.
    pub(super) fn attempts(&self) -> MutexGuard<'_, Attempts> {
        lock(&self.attempts)
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut ListenerStats)) {
        change(&mut lock(&self.stats));
    }

    /// Notes the queue's depth, which was read just now.
    pub(super) fn note_depth(&self, depth: u64) {
        *lock(&self.depth) = Some((depth, self.clock.now()));
    }

    /// Stops getting messages.
    pub(super) fn stop(&self) {
        self.scaler(|scaler, _, _| scaler.stop());
        self.stopping.cancel();
    }

    /// Messages become visible after `delay`, and no other process reports them.
    pub(super) fn report_hidden(&self, delay: Duration) {
        // A queue that counts whole seconds may show a message a second late.
        let shown = delay.saturating_add(self.queue.limits().resolution);
        self.scaler(|scaler, now, _| scaler.reporter.add_hidden(shown, now));
        self.changed.notify_one();
    }

    /// Calls a hook; `otherwise` is its result if it panics: a bug in a program's hook must not end
    /// its listener.
    pub(super) fn hook<T>(&self, otherwise: T, call: impl FnOnce(&dyn Hooks) -> T) -> T {
        catch_unwind(AssertUnwindSafe(|| call(&*self.hooks))).unwrap_or_else(|_| {
            tracing::error!(queue = %self.queue, "a hook panicked; the listener continues");
            otherwise
        })
    }

    /// Counts an error, and passes it to the hooks and the rate-limited log.
    pub(super) fn report_error(
        &self,
        action: Action,
        message_id: Option<&MessageId>,
        error: &Error,
    ) {
        self.count(|stats| stats.errors += 1);
        let silent = lock(&self.log_limiter).count(action as usize, self.clock.now());
        if let Some(silent) = silent {
            let queue = &self.queue;
            let id = message_id.map(MessageId::as_str);
            tracing::warn!(%queue, %action, id, silent, %error, "a call failed; the listener continues");
        }
        self.hook((), |hooks| hooks.on_error(action, message_id, error));
    }
}

/// Limits a call; `what` names it in the error of a time-out.
pub(super) async fn in_time<T>(
    limit: Duration,
    what: &str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        let message = format!("{what} did not end within {limit:?}");
        Err(Error::new(ErrorKind::Timeout, message))
    })
}

opaque_debug!(Shared: queue);

/// The messages that are being handled, by the time at which that began.
#[derive(Debug, Default)]
pub(super) struct RunningHandlings(Mutex<BTreeSet<(Tick, MessageId)>>);

/// Counts a message while it is handled.
pub(super) struct RunningHandling<'a>(&'a RunningHandlings, (Tick, MessageId));

impl RunningHandlings {
    pub(super) fn begin(&self, id: &MessageId, now: Tick) -> RunningHandling<'_> {
        let running = (now, id.clone());
        lock(&self.0).insert(running.clone());
        RunningHandling(self, running)
    }

    /// Returns when the oldest one began.
    pub(super) fn oldest(&self) -> Option<Tick> {
        lock(&self.0).first().map(|(began, _)| *began)
    }
}

impl Drop for RunningHandling<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).remove(&self.1);
    }
}

/// Adds a value to a moving mean, with a weight of one eighth.
pub(super) fn add_to_mean(mean: &mut Option<Duration>, new: Duration) {
    *mean = Some(mean.map_or(new, |old| (old - old / 8).saturating_add(new / 8)));
}

impl ListenerMonitor {
    /// Returns the present state without a depth: makes no call to the queue.
    pub fn state(&self) -> QueryState {
        self.0.state()
    }

    /// Returns whether the listener is stopping.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.is_cancelled()
    }

    /// Returns why the listener polls; `None` while it is pushed, and where no cause is known.
    pub fn cause(&self) -> Option<Arc<str>> {
        lock(&self.0.cause).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_follows_what_is_added() {
        let mut mean = None;
        add_to_mean(&mut mean, Duration::from_millis(8));
        assert_eq!(mean, Some(Duration::from_millis(8)));
        for _ in 0..100 {
            add_to_mean(&mut mean, Duration::ZERO);
        }
        assert!(mean < Some(Duration::from_micros(10)));
        add_to_mean(&mut mean, Duration::MAX);
        add_to_mean(&mut mean, Duration::MAX);
        assert!(mean > Some(Duration::from_secs(3600)));
    }
}
