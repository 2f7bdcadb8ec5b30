//! What a program hears of its listener, and may decide.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use super::handler::HandlerError;
use crate::{
    error::Error,
    queue::{Message, MessageId},
    scaling::{Idle, ListenerMode},
    words::WorkDetected,
};

/// Hears what a listener does. Every method has a default; none may block, or it holds up the task
/// that calls it.
pub trait Hooks: Send + Sync + 'static {
    /// A get found nothing, for the `idle_count`th time in a row: decides what its task does next.
    /// `proposed` is what happens without this hook. `Stop` ends the task, unless there was a cause
    /// to look since its get, or it is the last one and no relay tells of work.
    fn on_queue_empty(&self, idle_count: u32, proposed: Idle) -> Idle {
        let _ = idle_count;
        proposed
    }

    /// There is work: the relay said so, or, with `None`, a get found some after idleness.
    fn on_work_detected(&self, work: Option<&WorkDetected>) {
        let _ = work;
    }

    /// It hears of work in another way than before.
    fn on_mode_changed(&self, mode: ListenerMode) {
        let _ = mode;
    }

    /// A handler is handed a message; one of a batch joins it.
    fn on_start(&self, message: &Message) {
        let _ = message;
    }

    /// The handler is done with a message that it had begun with, before it is deleted or given back:
    /// how that ended, and after how long.
    fn on_end(&self, message: &Message, end: &HandlingEnd<'_>, duration: Duration) {
        let _ = (message, end, duration);
    }

    /// A message went to the poison queue, for this reason.
    fn on_poisoned(&self, message: &Message, error: &HandlerError) {
        let _ = (message, error);
    }

    /// Something failed. The listener goes on, and what is said to the log is bounded.
    fn on_error(&self, error: &ListenerError) {
        let _ = error;
    }
}

/// How the handling of a message ended.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum HandlingEnd<'a> {
    /// The handler returned `Ok`.
    Handled,
    /// It returned this error, panicked, or took too long. The error may say more of what becomes of
    /// the message: [`Rejected`](super::Rejected), [`RetryAfter`](super::RetryAfter).
    Failed(&'a HandlerError),
    /// It did not try: it said [`Postponed`](super::Postponed), or the listener had no time left.
    NotTried,
}

/// What failed, and at which message.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ListenerError {
    /// What the listener was about to do.
    pub action: Action,
    /// With which message; `None` where it was none in particular.
    pub message_id: Option<MessageId>,
    /// Why it failed.
    pub error: Error,
}

/// What a listener does that may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Getting a batch.
    Get,
    /// Handling a message: the handler's error or panic, or it took too long.
    Handle,
    /// Deleting a message that was handled.
    Delete,
    /// Keeping a message hidden while it is handled.
    Renew,
    /// Giving a message back.
    Release,
    /// Moving a message to the poison queue.
    Poison,
    /// Asking for the depth.
    Depth,
    /// Reporting to the relay.
    Report,
    /// Hearing wake-ups: the relay, or something before it, has refused the subscription.
    Listen,
}

/// Hooks whose panics go no further: the listener must not end by a program's mistake.
pub(super) struct Caught<H>(H);

impl<H> Caught<H> {
    pub(super) fn new(hooks: H) -> Self {
        Self(hooks)
    }

    fn call<T>(&self, name: &str, otherwise: T, call: impl FnOnce(&H) -> T) -> T {
        catch_unwind(AssertUnwindSafe(|| call(&self.0))).unwrap_or_else(|_| {
            tracing::error!(hook = name, "a hook panicked; the listener goes on");
            otherwise
        })
    }
}

impl<H: Hooks> Hooks for Caught<H> {
    fn on_queue_empty(&self, idle_count: u32, proposed: Idle) -> Idle {
        self.call("on_queue_empty", proposed, |hooks| {
            hooks.on_queue_empty(idle_count, proposed)
        })
    }

    fn on_work_detected(&self, work: Option<&WorkDetected>) {
        self.call("on_work_detected", (), |hooks| hooks.on_work_detected(work));
    }

    fn on_mode_changed(&self, mode: ListenerMode) {
        self.call("on_mode_changed", (), |hooks| hooks.on_mode_changed(mode));
    }

    fn on_start(&self, message: &Message) {
        self.call("on_start", (), |hooks| hooks.on_start(message));
    }

    fn on_end(&self, message: &Message, end: &HandlingEnd<'_>, duration: Duration) {
        self.call("on_end", (), |hooks| hooks.on_end(message, end, duration));
    }

    fn on_poisoned(&self, message: &Message, error: &HandlerError) {
        self.call("on_poisoned", (), |hooks| hooks.on_poisoned(message, error));
    }

    fn on_error(&self, error: &ListenerError) {
        self.call("on_error", (), |hooks| hooks.on_error(error));
    }
}

/// No hooks.
#[derive(Debug, Default)]
pub(super) struct NoHooks;

impl Hooks for NoHooks {}

pub(super) type AnyHooks = Arc<dyn Hooks>;

impl Action {
    /// Every action, for whoever counts by it.
    pub(super) const COUNT: usize = 9;

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Handle => "handle",
            Self::Delete => "delete",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Poison => "poison",
            Self::Depth => "depth",
            Self::Report => "report",
            Self::Listen => "listen",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for ListenerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.action, self.error)
    }
}
