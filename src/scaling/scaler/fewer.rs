//! Fewer tasks at run time: none while the listener is paused, and no more than a limit that was
//! lowered.
//!
//! A task that is one too many ends when it asks what to do and holds nothing; one that holds messages
//! gets nothing more before they are handled.

use super::{
    super::{
        step::Begin,
        tasks::{Doing, TaskId},
    },
    Asking, Scaler,
};
use crate::{clock::Tick, fault::planted};

impl Scaler {
    /// Starts no task and issues no get until it is resumed. Causes to look are counted meanwhile.
    pub(crate) fn pause(&mut self) {
        self.paused = true;
    }

    /// Goes on: looks at once, whatever was told meanwhile. Returns whether a sleeping task was roused.
    pub(crate) fn resume(&mut self, now: Tick) -> bool {
        let forgets = planted!(self.config.fault, PauseForgets);
        if !std::mem::take(&mut self.paused) || forgets {
            return false;
        }
        let kept = self.keep_leaving(now);
        self.cause(now) || kept
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns whether it is paused, holds nothing, and has nothing to report: others are to be told
    /// of work instead.
    pub(crate) fn is_at_rest(&self, now: Tick) -> bool {
        self.paused && self.tasks.nobody_works() && !self.telling.has_to_say(now)
    }

    /// There may be so many tasks at most from now on, at least one. Returns whether a sleeping task was
    /// roused.
    pub(crate) fn set_max_tasks(&mut self, most: usize, now: Tick) -> bool {
        let more = most > self.config.max_tasks;
        self.config.max_tasks = most;
        if more && self.tasks.len() > 0 && self.asking == Asking::No {
            // There may be work for them.
            self.asking = Asking::Wanted;
        }
        more && self.keep_leaving(now)
    }

    fn keep_leaving(&mut self, now: Tick) -> bool {
        !planted!(self.config.fault, LeavingStays) && self.tasks.keep_leaving(now)
    }

    /// Returns whether a task is not to get anything: it is paused, or there are enough others.
    pub(super) fn is_one_too_many(&self, id: TaskId) -> bool {
        self.paused || self.tasks.count_staying_others(id) >= self.config.max_tasks
    }

    /// Has a task get nothing more.
    pub(super) fn dismiss(&mut self, id: TaskId) -> Begin {
        let drops = planted!(self.config.fault, DismissedWhileHolding);
        match self.tasks.get_mut(id).filter(|task| task.holds && !drops) {
            Some(task) => {
                (task.leaving, task.doing) = (true, Doing::Handling);
                Begin::Sleep(Tick::NEVER)
            }
            None => {
                self.tasks.remove(id);
                Begin::Leave
            }
        }
    }
}
