//! Whether a task notifies the relay at present: one at a time, and none for a commit is missed.

use std::sync::{Arc, Mutex};

use crate::base::sync::lock;

/// The state of the task.
#[derive(Debug, Default)]
pub(super) struct NotifyState(Mutex<Running>);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Running {
    #[default]
    No,
    Yes,
    /// Another commit came: the task must look again.
    Again,
}

/// The task's part. Dropped before its end, by the runtime, it lets another task start.
#[derive(Debug)]
pub(super) struct Ending {
    state: Arc<NotifyState>,
    has_ended: bool,
}

impl NotifyState {
    /// Returns whether the caller must start the task.
    pub(super) fn begin(&self) -> bool {
        let mut running = lock(&self.0);
        let is_idle = *running == Running::No;
        *running = if is_idle {
            Running::Yes
        } else {
            Running::Again
        };
        is_idle
    }

    /// Returns the part of the task that [`NotifyState::begin`] asked for.
    pub(super) fn ending(this: &Arc<Self>) -> Ending {
        Ending {
            state: Arc::clone(this),
            has_ended: false,
        }
    }
}

impl Ending {
    /// Returns whether another commit came since the last call. If not, the task must end.
    pub(super) fn goes_on(&mut self) -> bool {
        let mut running = lock(&self.state.0);
        let again = *running == Running::Again;
        *running = if again { Running::Yes } else { Running::No };
        self.has_ended = !again;
        again
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.has_ended {
            *lock(&self.state.0) = Running::No;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_during_a_pass_makes_the_task_look_again() {
        let state = Arc::new(NotifyState::default());
        assert!(state.begin());
        let mut task = NotifyState::ending(&state);
        assert!(!state.begin(), "one task at a time");
        assert!(task.goes_on());
        assert!(!task.goes_on());
        assert!(state.begin(), "the task has ended");
        drop(task);
        assert!(
            !state.begin(),
            "the end of the first task does not end the second"
        );
        drop(NotifyState::ending(&state));
        assert!(state.begin(), "a task that was dropped has ended");
    }
}
