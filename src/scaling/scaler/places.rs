//! The places of tasks that hold messages, and which task looks where no relay tells of work.
//!
//! A task that has places left sleeps like an idle one, with messages in its hands: for good where
//! another task looks, or the relay tells.

use std::time::Duration;

use super::{
    super::{
        idle::{Idle, IdleBackoff},
        step::Rest,
        tasks::{Doing, TaskId},
    },
    Asking, ListenerMode, SETTLE, Scaler,
};
use crate::{clock::Tick, fault::planted};

/// So many gets in a row found nothing that the back-off is at its longest.
const LONG_IDLE: u32 = 64;

impl Scaler {
    /// A task that holds messages has places left, `half` of them at least or fewer. It looks at
    /// once where half of them are free and there was more than it had places for; else by the
    /// back-off, where no other task looks and none will be told to.
    pub(crate) fn places_free(&mut self, id: TaskId, half: bool, now: Tick, chance: f64) {
        let owed = self.is_owed() && !self.tasks.somebody_will_look(now);
        let looks = self.needs_looker() && !self.tasks.another_surely_looks(Some(id), now);
        let (more, backoff) = (self.emptied.is_none(), self.backoff());
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if planted!(self.config.fault, PlacesWaitForAll) {
            return;
        }
        let until = match task.doing {
            Doing::Handling | Doing::Sleeping { .. } if owed || (half && task.full && more) => now,
            Doing::Handling if looks => now + sleep_of(&backoff, task.idle_count, chance),
            Doing::Handling => Tick::NEVER,
            _ => return,
        };
        task.doing = Doing::Sleeping { until };
    }

    /// A task looks no more before all that it holds is handled.
    pub(crate) fn only_handles(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get_mut(id).filter(|task| task.holds) {
            task.doing = Doing::Handling;
        }
    }

    /// All messages that a task held are handled, while it got others. What the get brings is
    /// another matter.
    pub(crate) fn holds_nothing(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.holds = false;
        }
    }

    /// A task has done with all that it held. It issues one more get, unless its last get found
    /// nothing and there was no cause since (R17: only then may a task leave), or it sleeps until
    /// then.
    pub(crate) fn done(&mut self, id: TaskId, now: Tick) -> Rest {
        let certain = self.mode == ListenerMode::Pushed && self.config.empty_is_certain;
        let emptied = self.emptied;
        let Some(task) = self.tasks.get_mut(id) else {
            return Rest::Leave;
        };
        task.holds = false;
        let spent = certain && task.idle_count > 0 && emptied == Some(task.place);
        let rest = match task.doing {
            Doing::Sleeping { until } | Doing::Failing { until } if until != Tick::NEVER => {
                Rest::Sleep(until)
            }
            _ if spent => {
                self.tasks.remove(id);
                Rest::Leave
            }
            _ => {
                task.doing = Doing::Ready;
                Rest::Again
            }
        };
        if let Some(place) = emptied
            && self.tasks.nobody_works()
        {
            self.telling.drained(place, now);
        }
        rest
    }

    /// Returns whether a task has to look by the back-off: no relay tells of work, or messages were
    /// left that there was no place for, or may have been left by a get that was answered in part.
    pub(super) fn needs_looker(&self) -> bool {
        let in_part = !self.config.empty_is_certain && self.emptied.is_none();
        self.mode != ListenerMode::Pushed || self.backlog || in_part
    }

    /// Returns when the depth is to be asked for because nobody looks: all tasks that the policy had
    /// for the last one hold messages without a place left, and it may have more for the next.
    pub(super) fn look_at_depth_at(&self) -> Option<Tick> {
        let count = self.tasks.len();
        let nobody_looks = !self.stopped
            && !self.paused
            && self.asking == Asking::No
            && self.mode != ListenerMode::Pushed
            && (self.allowed..self.config.max_tasks).contains(&count)
            && !self.tasks.another_looks(None)
            && !planted!(self.config.fault, DepthNotAskedAgain);
        let depth_at = self.depth_at.filter(|_| nobody_looks)?;
        Some(depth_at + self.backoff().longest(0.5))
    }

    /// Returns when a task that waits for its slot counts as one that looks no longer, where one that
    /// has places left would look instead.
    pub(super) fn waits_in_line_until(&mut self, now: Tick) -> Option<Tick> {
        let may = !self.stopped && !self.paused && self.needs_looker();
        let until = self.tasks.in_line_until(now).filter(|_| may)?;
        self.tasks.with_places(false).is_some().then_some(until)
    }

    /// Has a task that holds messages and has places left look by the back-off, where no other task
    /// does.
    pub(super) fn appoint(&mut self, now: Tick, chance: f64) -> Option<(TaskId, Tick)> {
        let idle = self.stopped
            || self.paused
            || !self.needs_looker()
            || planted!(self.config.fault, LookerHandles);
        if idle || self.tasks.another_surely_looks(None, now) {
            return self.keep_for_cause(now);
        }
        let (until, idle_count) = self.first_look(now, chance);
        let room = self.tasks.count_staying() < self.config.max_tasks;
        let (id, task) = self.tasks.with_places(room)?;
        task.leaving = false;
        (task.doing, task.idle_count) = (Doing::Sleeping { until }, idle_count);
        Some((id, until))
    }

    /// Has a task that was to end look for what is owed, where it is one too many no more and no other
    /// one may be started.
    fn keep_for_cause(&mut self, now: Tick) -> Option<(TaskId, Tick)> {
        let owed = self.is_owed() && !self.tasks.somebody_will_look(now);
        let full = self.tasks.len() >= self.config.max_tasks;
        let room = self.tasks.count_staying() < self.config.max_tasks;
        let may = !self.stopped && !self.paused && !planted!(self.config.fault, LeavingStays);
        if !(may && owed && full && room) {
            return None;
        }
        let (id, task) = self.tasks.leaving()?;
        (task.leaving, task.doing) = (false, Doing::Sleeping { until: now });
        Some((id, now))
    }

    /// Returns when a task looks first that was not told to, and where its back-off begins: soon,
    /// unless the relay has just gone away, because it may be back before, and a fleet must not look
    /// all at once.
    pub(super) fn first_look(&self, now: Tick, chance: f64) -> (Tick, u32) {
        if self.mode != ListenerMode::Polling || self.found_in_mode {
            return (now + sleep_of(&self.backoff(), 0, chance), 0);
        }
        let longest = match self.tasks.is_first() {
            true => SETTLE,
            false => self.config.away,
        };
        (now + longest.mul_f64(chance), LONG_IDLE)
    }
}

/// Returns how long a task sleeps that looks again, whatever its back-off says of leaving.
fn sleep_of(backoff: &IdleBackoff, idle_count: u32, chance: f64) -> Duration {
    match backoff.after(idle_count, chance) {
        Idle::Sleep(span) => span,
        Idle::Stop => backoff.longest(chance),
    }
}
