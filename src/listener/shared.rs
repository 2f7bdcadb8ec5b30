//! The state that the tasks of one listener share: the scaler behind a lock, the queue, the
//! counters.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::Notify as Signal;
use tokio_util::sync::CancellationToken;

use super::{
    batch::Handlers,
    builder::ListenerBuilder,
    config::ListenerConfig,
    hooks::{Action, AnyHooks, ListenerError},
    poison::{AttemptLimits, Attempts},
    state::{Counters, QueryState},
};
use crate::{
    base::{
        clock::{Clock, Tick},
        log_limiter::LogLimiter,
        sync::lock,
    },
    error::Error,
    listener::scaling::{Scaler, ScalerConfig},
    queue::{MessageId, WorkQueue},
    types::Notifier,
};

/// The state that the tasks of one listener share.
pub(super) struct Shared {
    pub(super) queue: Arc<dyn WorkQueue>,
    pub(super) poison: Option<Arc<dyn WorkQueue>>,
    pub(super) publisher: Option<Arc<dyn Notifier>>,
    pub(super) handlers: Handlers,
    pub(super) hooks: AnyHooks,
    pub(super) config: ListenerConfig,
    pub(super) clock: Clock,
    /// The queue's number in the budget.
    pub(super) number: u64,
    pub(super) counters: Counters,
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
    core: Mutex<Core>,
    log_limiter: Mutex<LogLimiter<{ Action::COUNT }>>,
    attempts: Mutex<Attempts>,
}

/// The log has at most one line per kind of error in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The state behind the lock. A leaf: while it is held, no other lock is taken and no foreign code
/// is called.
pub(super) struct Core {
    pub(super) scaler: Scaler,
    pub(super) rng: fastrand::Rng,
}

impl Shared {
    /// Makes the state of a listener, from a builder with a valid configuration.
    pub(super) fn new(builder: ListenerBuilder, handlers: Handlers, has_relay: bool) -> Self {
        let ListenerBuilder {
            queue,
            publisher,
            poison,
            hooks,
            config,
            ..
        } = builder;
        let scaler = ScalerConfig {
            max_tasks: config.max_tasks.min(config.budget.slots()),
            idle: config.idle,
            away: config.away,
            empty_is_certain: queue.empty_is_certain(),
        };
        let scaler = Scaler::new(scaler, has_relay);
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
            changed: Signal::new(),
            sleep_changed: Signal::new(),
            stopping: CancellationToken::new(),
            abandoning: CancellationToken::new(),
            cause: Mutex::default(),
            core: Mutex::new(Core { scaler, rng }),
            log_limiter: Mutex::new(LogLimiter::new(LOG_INTERVAL)),
            attempts: Mutex::new(Attempts::new(limits)),
        }
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Returns the present state without a depth.
    pub(super) fn state(&self) -> QueryState {
        let (mode, (active, total), is_idle, is_paused) = self.with_core(|core, _| {
            let scaler = &core.scaler;
            let (is_idle, is_paused) = (scaler.is_idle(), scaler.is_paused());
            (scaler.mode(), scaler.active(), is_idle, is_paused)
        });
        QueryState {
            mode,
            current_queue_depth: None,
            active_dequeue_tasks: active,
            total_dequeue_tasks: total,
            is_idle,
            is_paused,
            stats: *lock(&self.counters.stats),
        }
    }

    /// Calls `f` with the locked core and the present time.
    pub(super) fn with_core<T>(&self, f: impl FnOnce(&mut Core, Tick) -> T) -> T {
        f(&mut self.core(), self.clock.now())
    }

    /// Returns the locked records of single messages; this lock is a leaf as well.
    pub(super) fn attempts(&self) -> MutexGuard<'_, Attempts> {
        lock(&self.attempts)
    }

    /// Notes the queue's depth, which was read just now.
    pub(super) fn note_depth(&self, depth: u64) {
        *lock(&self.counters.depth) = Some((depth, self.clock.now()));
    }

    /// Stops getting messages.
    pub(super) fn stop(&self) {
        self.with_core(|core, _| core.scaler.stop());
        self.stopping.cancel();
    }

    /// Wakes the supervisor, and, if a task was `woken_early`, the sleeping tasks.
    pub(super) fn notify_changed(&self, woken_early: bool) {
        if woken_early {
            self.sleep_changed.notify_waiters();
        }
        self.changed.notify_one();
    }

    /// Messages become visible after `delay`, and no other process reports them.
    pub(super) fn report_hidden(&self, delay: Duration) {
        // A queue that counts whole seconds may show a message a second late.
        let shown = delay.saturating_add(self.queue.limits().resolution);
        self.with_core(|core, now| core.scaler.add_hidden(shown, now));
        self.changed.notify_one();
    }

    /// Counts an error, and passes it to the hooks and the rate-limited log.
    pub(super) fn report_error(
        &self,
        action: Action,
        message_id: Option<&MessageId>,
        error: Error,
    ) {
        self.counters.add(|stats| stats.errors += 1);
        let now = self.clock.now();
        let silent = lock(&self.log_limiter).count(action as usize, now);
        if let Some(silent) = silent {
            let queue = &self.queue;
            let id = message_id.map(MessageId::as_str);
            tracing::warn!(%queue, %action, id, silent, %error, "a call failed; the listener continues");
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
    /// Returns a random number, uniform in 0..1.
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
