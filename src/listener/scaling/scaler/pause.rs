//! Fewer tasks at run time: none while the listener is paused, and no more than a lowered limit.
//!
//! A surplus task without messages ends at its next [`Scaler::begin`]. A surplus task with messages
//! gets no more before they are handled.

use super::{
    super::{
        step::Begin,
        tasks::{TaskId, TaskState},
    },
    DepthQuery, Scaler,
};
use crate::base::clock::Tick;

impl Scaler {
    /// Starts no task and issues no get until it is resumed. Wakes are still counted.
    pub(crate) fn pause(&mut self) {
        self.paused = true;
    }

    /// Resumes and polls at once, with or without wake-ups during the pause. Returns whether a
    /// sleeping task was woken early.
    pub(crate) fn resume(&mut self, now: Tick) -> bool {
        if !std::mem::take(&mut self.paused) {
            return false;
        }
        let kept = self.tasks.cancel_leaving(now);
        self.count_wake(now) || kept
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns whether it is paused, holds no message, and has nothing to report. Then the relay
    /// can wake other listeners instead.
    pub(crate) fn is_pause_complete(&self, now: Tick) -> bool {
        self.paused && self.tasks.is_idle() && !self.reporter.has_pending_report(now)
    }

    /// Sets the maximum number of tasks, at least 1. Returns whether a sleeping task was woken
    /// early.
    pub(crate) fn set_max_tasks(&mut self, most: usize, now: Tick) -> bool {
        let more = most > self.config.max_tasks;
        self.config.max_tasks = most;
        if more && self.tasks.len() > 0 && self.depth_query == DepthQuery::Idle {
            // There may be work for more tasks.
            self.depth_query = DepthQuery::Wanted;
        }
        more && self.tasks.cancel_leaving(now)
    }

    /// Returns whether a task must not get messages: the listener is paused, or there are enough
    /// other tasks.
    pub(super) fn is_surplus(&self, id: TaskId) -> bool {
        self.paused || self.tasks.count_staying_others(id) >= self.config.max_tasks
    }

    /// Ends a task, now or when its messages are handled.
    pub(super) fn dismiss(&mut self, id: TaskId) -> Begin {
        match self.tasks.get_mut(id).filter(|task| task.holds) {
            Some(task) => {
                (task.leaving, task.state) = (true, TaskState::Handling);
                Begin::Sleep(Tick::NEVER)
            }
            None => {
                self.tasks.remove(id);
                Begin::Leave
            }
        }
    }
}
