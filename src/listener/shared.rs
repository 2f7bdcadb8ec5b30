//! What the tasks of one listener share: the machine behind a lock, the queue, the counters.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify as Signal, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{
    attempts::{AttemptLimits, Attempts},
    batch::Handlers,
    config::ListenerConfig,
    hooks::{Action, AnyHooks, ListenerError},
    state::{Counters, QueryState},
};
use crate::{
    clock::{Clock, Tick},
    error::Error,
    fault::Fault,
    log_limiter::LogLimiter,
    queue::{MessageId, WorkQueue},
    scaling::Scaler,
    words::Notify,
};

/// What the tasks of one listener share.
pub(super) struct Shared {
    pub(super) queue: Arc<dyn WorkQueue>,
    pub(super) poison: Option<Arc<dyn WorkQueue>>,
    pub(super) publisher: Option<Arc<dyn Notify>>,
    pub(super) handlers: Handlers,
    pub(super) hooks: AnyHooks,
    pub(super) config: ListenerConfig,
    pub(super) clock: Clock,
    /// Its number in the budget.
    pub(super) number: u64,
    pub(super) counters: Counters,
    /// The conductor has something to do.
    pub(super) stirred: Signal,
    /// A sleeping task is to look at how long it sleeps.
    pub(super) roused: Signal,
    /// No message is got any more.
    pub(super) stopping: CancellationToken,
    /// Handlers are waited for no longer.
    pub(super) abandoning: CancellationToken,
    /// Messages of a stream that may still be got before one is taken.
    pub(super) prefetch: Option<Arc<Semaphore>>,
    core: Mutex<Core>,
    log_limiter: Mutex<LogLimiter<{ Action::COUNT }>>,
    attempts: Mutex<Attempts>,
}

/// The log has one line of a kind of error in this span.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// What the lock guards. A leaf: nothing else is locked and nothing is called under it.
pub(super) struct Core {
    pub(super) scaler: Scaler,
    pub(super) rng: fastrand::Rng,
}

/// What a listener is made of.
pub(super) struct Parts {
    pub(super) queue: Arc<dyn WorkQueue>,
    pub(super) poison: Option<Arc<dyn WorkQueue>>,
    pub(super) publisher: Option<Arc<dyn Notify>>,
    pub(super) handlers: Handlers,
    pub(super) hooks: AnyHooks,
    pub(super) config: ListenerConfig,
    /// Messages of a stream that are hidden and not taken, at most.
    pub(super) prefetch: Option<usize>,
}

impl Shared {
    pub(super) fn new(parts: Parts, scaler: Scaler) -> Self {
        let Parts {
            queue,
            poison,
            publisher,
            handlers,
            hooks,
            config,
            prefetch,
        } = parts;
        let rng = match config.seed {
            Some(seed) => fastrand::Rng::with_seed(seed),
            None => fastrand::Rng::new(),
        };
        let limits = AttemptLimits {
            max_dequeue_count: config.max_dequeue_count,
            visibility_timeout: config.visibility_timeout,
            poisons: poison.is_some(),
        };
        Self {
            number: config.budget.number(),
            queue,
            poison,
            publisher,
            handlers,
            hooks,
            config,
            clock: Clock::new(),
            counters: Counters::default(),
            stirred: Signal::new(),
            roused: Signal::new(),
            stopping: CancellationToken::new(),
            abandoning: CancellationToken::new(),
            prefetch: prefetch.map(|most| Arc::new(Semaphore::new(most))),
            core: Mutex::new(Core { scaler, rng }),
            log_limiter: Mutex::new(LogLimiter::new(LOG_EVERY)),
            attempts: Mutex::new(Attempts::new(limits, Fault::NONE)),
        }
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the listener does just now, without a depth.
    pub(super) fn state(&self) -> QueryState {
        let (mode, (active, total), is_idle, is_paused) = self.ask(|core, _| {
            let scaler = &core.scaler;
            let (is_idle, is_paused) = (scaler.nobody_works(), scaler.is_paused());
            (scaler.mode(), scaler.active(), is_idle, is_paused)
        });
        QueryState {
            mode,
            current_queue_depth: None,
            active_dequeue_tasks: active,
            total_dequeue_tasks: total,
            is_idle,
            is_paused,
            stats: self.counters.stats(),
        }
    }

    /// Asks the machine something that needs the time.
    pub(super) fn ask<T>(&self, question: impl FnOnce(&mut Core, Tick) -> T) -> T {
        question(&mut self.core(), self.clock.now())
    }

    /// Returns what is remembered of single messages; a leaf as well.
    pub(super) fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has nothing more got.
    pub(super) fn stop(&self) {
        self.ask(|core, _| core.scaler.stop());
        self.stopping.cancel();
    }

    /// Has the conductor look, and, where one was `roused`, the tasks that sleep.
    pub(super) fn stir(&self, roused: bool) {
        if roused {
            self.roused.notify_waiters();
        }
        self.stirred.notify_one();
    }

    /// Messages become visible after `delay`, and nobody else says so.
    pub(super) fn hidden(&self, delay: Duration) {
        // A queue that counts whole seconds may show it one later than asked.
        let shown = delay.saturating_add(self.queue.limits().resolution);
        self.ask(|core, now| core.scaler.hidden(shown, now));
        self.stirred.notify_one();
    }

    /// Tells the hooks, and the log so far as it is no flood.
    pub(super) fn complain(&self, action: Action, message_id: Option<&MessageId>, error: Error) {
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.now();
        let limiter = self.log_limiter.lock();
        let silent = limiter
            .unwrap_or_else(PoisonError::into_inner)
            .count(action as usize, now);
        if let Some(silent) = silent {
            let queue = &self.queue;
            let message = message_id.map(MessageId::as_str);
            tracing::warn!(%queue, %action, message, silent, %error, "the listener goes on");
        }
        let message_id = message_id.cloned();
        self.hooks.on_error(&ListenerError {
            action,
            message_id,
            error,
        });
    }
}

impl Core {
    /// Returns a chance: uniform in 0..1.
    pub(super) fn chance(&mut self) -> f64 {
        self.rng.f64()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// Adds one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
