//! The steps that the scaling machine returns to its driver.

use super::{reporter::PendingReport, tasks::TaskId};
use crate::base::clock::Tick;

/// The driver's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Start a task; it calls [`Scaler::begin`] when it has a slot.
    Start(TaskId),
    /// Have a sleeping task poll at this time; its sleep was changed.
    WakeTask(TaskId, Tick),
    /// Read the queue's depth, ask the policy for a number of tasks, then call
    /// [`Scaler::on_depth`].
    QueryDepth,
    /// Send a report, then call [`Scaler::on_report_answered`].
    Report(PendingReport),
    /// Wait until this time or until the next event.
    Wait(Tick),
}

/// The action of a task that got a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Get a batch.
    Get,
    /// Release the slot and sleep until this time.
    Sleep(Tick),
    /// End: the work that it was started for is gone. The machine has removed the task.
    Leave,
}

/// The action of a task after an empty get, a failed get, or when all its messages are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterEmpty {
    /// Poll again at once: a wake arrived since the get.
    Again,
    /// Release the slot and sleep until this time, or until an earlier wake.
    Sleep(Tick),
    /// End. The machine has removed the task.
    Leave,
}
