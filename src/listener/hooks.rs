//! Hooks: a program observes its listener and may decide what an idle task does.

use std::{fmt, time::Duration};

use super::handler::HandlerError;
use crate::{
    error::Error,
    listener::scaling::{Idle, ListenerMode},
    queue::{Message, MessageId},
    types::WorkDetected,
};

/// Observes a listener. Every method has a default. A method must not block: it delays the task
/// that calls it.
#[expect(unused_variables, reason = "most defaults do nothing")]
pub trait Hooks: Send + Sync + 'static {
    /// Decides what a task does after `idle_count` empty gets in a row. `proposed` is the decision
    /// without this hook. `Stop` ends the task, unless a wake-up arrived since its get, or it is
    /// the last task and no relay sends wake-ups.
    fn on_queue_empty(&self, idle_count: u32, proposed: Idle) -> Idle {
        proposed
    }

    /// There is work: a wake-up arrived, or, with `None`, a get found messages after an idle
    /// period.
    fn on_work_detected(&self, work: Option<&WorkDetected>) {}

    /// The listener's mode changed, or the reason why it polls, as the relay stated it or as the client
    /// found it. `None`: it is pushed, or no reason is known.
    fn on_mode_changed(&self, mode: ListenerMode, cause: Option<&str>) {}

    /// A handler receives a message.
    fn on_start(&self, message: &Message) {}

    /// The handling of a message ended, before the message is deleted or released; without an error
    /// it was handled. An error may also mean that it was postponed, or given up at a shutdown.
    fn on_end(&self, message: &Message, error: Option<&HandlerError>, took: Duration) {}

    /// A message was moved to the poison queue, for this reason.
    fn on_poisoned(&self, message: &Message, error: &HandlerError) {}

    /// An action failed, for this message if it concerns a single one. The listener continues, and its
    /// log lines are rate-limited.
    fn on_error(&self, action: Action, message_id: Option<&MessageId>, error: &Error) {}
}

/// An action of a listener that may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Getting a batch.
    Get,
    /// Handling a message: the handler's error or panic, or it took too long.
    Handle,
    /// Deleting a handled message.
    Delete,
    /// Keeping a message hidden while it is handled.
    Renew,
    /// Releasing a message.
    Release,
    /// Moving a message to the poison queue.
    Poison,
    /// Reading the depth.
    Depth,
    /// Reporting to the relay.
    Report,
    /// Receiving wake-ups: the relay, or a proxy before it, refused the subscription.
    Listen,
}

pub(super) struct NoHooks;

impl Hooks for NoHooks {}

impl Action {
    /// The number of actions, for counters by action.
    pub(super) const COUNT: usize = 9;
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}
