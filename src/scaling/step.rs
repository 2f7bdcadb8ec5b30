//! What the machine of a queue's tasks tells its driver to do.

use super::{tasks::TaskId, telling::Due};
use crate::clock::Tick;

/// What the driver does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Start a task: it calls [`Scaler::begin`] when it has a slot.
    Start(TaskId),
    /// Let a task that sleeps look then: nothing else would have had it look.
    Appoint(TaskId, Tick),
    /// Ask the queue for its depth, and the policy for a number; then [`Scaler::scaled`].
    AskDepth,
    /// Send a report; then [`Scaler::answered`].
    Report(Due),
    /// Nothing before then, unless something happens.
    Wait(Tick),
}

/// What a task does when it has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Get a batch.
    Get,
    /// Sleep until then, without the slot.
    Sleep(Tick),
    /// End: it was started for work that is gone. It is no task any more.
    Leave,
}

/// What a task does after it has found nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Look again at once: there was a cause meanwhile.
    Again,
    /// Sleep until then, or until it is roused, without the slot.
    Sleep(Tick),
    /// End. It is no task any more.
    Leave,
}
