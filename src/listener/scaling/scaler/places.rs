//! The places of tasks that hold messages, and which task polls when no relay sends wake-ups.
//!
//! A task with messages and free places sleeps like an idle task; without a time limit while
//! another task polls or the relay sends wake-ups.

use std::time::Duration;

use super::{
    super::{
        idle::{Idle, IdleBackoff},
        step::AfterEmpty,
        tasks::{TaskId, TaskState},
    },
    DepthQuery, ListenerMode, SETTLE, Scaler,
};
use crate::base::clock::Tick;

/// An idle count at which the back-off has reached its maximum.
const LONG_IDLE: u32 = 64;

impl Scaler {
    /// A task that holds messages has free places; `half` if at least half of its places are free.
    /// The task polls at once if `half` and its last get was full. Otherwise it polls by the
    /// back-off, if no other task polls and no wake-ups come.
    pub(crate) fn places_free(&mut self, id: TaskId, half: bool, now: Tick, chance: f64) {
        let pending = self.has_unserved_wake() && !self.tasks.will_poll_soon(now);
        let must_poll = self.needs_poller() && !self.tasks.another_polls_soon(Some(id), now);
        let (more, backoff) = (self.emptied.is_none(), self.backoff());
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let until = match task.state {
            TaskState::Handling | TaskState::Sleeping { .. }
                if pending || (half && task.full && more) =>
            {
                now
            }
            TaskState::Handling if must_poll => now + sleep_of(&backoff, task.idle_count, chance),
            TaskState::Handling => Tick::NEVER,
            _ => return,
        };
        task.state = TaskState::Sleeping { until };
    }

    /// A task polls no more before all its messages are handled.
    pub(crate) fn stop_polling(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get_mut(id).filter(|task| task.holds) {
            task.state = TaskState::Handling;
        }
    }

    /// All messages of a task are handled while its next get is in flight. Messages of that get are
    /// not counted here.
    pub(crate) fn holds_nothing(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.holds = false;
        }
    }

    /// A task has handled all its messages. It issues one more get, unless its last get found
    /// nothing and no wake arrived since (R17: only then may a task leave), or it still sleeps.
    pub(crate) fn done(&mut self, id: TaskId, now: Tick) -> AfterEmpty {
        let certain = self.mode == ListenerMode::Pushed && self.config.empty_is_certain;
        let emptied = self.emptied;
        let Some(task) = self.tasks.get_mut(id) else {
            return AfterEmpty::Leave;
        };
        task.holds = false;
        let spent = certain && task.idle_count > 0 && emptied == Some(task.snapshot);
        let next = match task.state {
            TaskState::Sleeping { until } | TaskState::Failing { until }
                if until != Tick::NEVER =>
            {
                AfterEmpty::Sleep(until)
            }
            _ if spent => {
                self.tasks.remove(id);
                AfterEmpty::Leave
            }
            _ => {
                task.state = TaskState::Ready;
                AfterEmpty::Again
            }
        };
        if let Some(snapshot) = emptied
            && self.tasks.is_idle()
        {
            self.reporter.drained(snapshot, now);
        }
        next
    }

    /// Returns whether a task has to poll by the back-off: no wake-ups come, the last get was full,
    /// or an answer of the queue may have been partial.
    pub(super) fn needs_poller(&self) -> bool {
        let in_part = !self.config.empty_is_certain && self.emptied.is_none();
        self.mode != ListenerMode::Pushed || self.backlog || in_part
    }

    /// Returns when to read the depth because no task polls: all tasks that the policy allowed are
    /// full, and the policy may allow more for the present depth.
    pub(super) fn next_depth_query_at(&self) -> Option<Tick> {
        let count = self.tasks.len();
        let none_polls = !self.stopped
            && !self.paused
            && self.depth_query == DepthQuery::Idle
            && self.mode != ListenerMode::Pushed
            && (self.policy_limit..self.config.max_tasks).contains(&count)
            && !self.tasks.another_polls(None);
        let depth_at = self.depth_at.filter(|_| none_polls)?;
        Some(depth_at + self.backoff().longest(0.5))
    }

    /// Returns when a task that waits for a slot no longer counts as polling, if a task with free
    /// places could poll instead.
    pub(super) fn slot_wait_ends_at(&mut self, now: Tick) -> Option<Tick> {
        let may = !self.stopped && !self.paused && self.needs_poller();
        let until = self.tasks.slot_wait_ends_at(now).filter(|_| may)?;
        self.tasks
            .with_free_places(false)
            .is_some()
            .then_some(until)
    }

    /// Makes a task with messages and free places poll by the back-off, if no other task polls.
    pub(super) fn assign_poller(&mut self, now: Tick, chance: f64) -> Option<(TaskId, Tick)> {
        let none_needed = self.stopped || self.paused || !self.needs_poller();
        if none_needed || self.tasks.another_polls_soon(None, now) {
            return self.keep_for_wake(now);
        }
        let (until, idle_count) = self.first_poll(now, chance);
        let room = self.tasks.count_staying() < self.config.max_tasks;
        let (id, task) = self.tasks.with_free_places(room)?;
        task.leaving = false;
        (task.state, task.idle_count) = (TaskState::Sleeping { until }, idle_count);
        Some((id, until))
    }

    /// Keeps a task that was about to end for a pending wake, if it is no longer surplus and no
    /// other task can be started.
    fn keep_for_wake(&mut self, now: Tick) -> Option<(TaskId, Tick)> {
        let pending = self.has_unserved_wake() && !self.tasks.will_poll_soon(now);
        let full = self.tasks.len() >= self.config.max_tasks;
        let room = self.tasks.count_staying() < self.config.max_tasks;
        let may = !self.stopped && !self.paused;
        if !(may && pending && full && room) {
            return None;
        }
        let (id, task) = self.tasks.leaving()?;
        (task.leaving, task.state) = (false, TaskState::Sleeping { until: now });
        Some((id, now))
    }

    /// Returns the first poll of a task that was started without a wake, and its initial idle
    /// count. The poll is soon, unless the relay has just gone away: the relay may return first,
    /// and a fleet must not poll all at once.
    pub(super) fn first_poll(&self, now: Tick, chance: f64) -> (Tick, u32) {
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

/// Returns how long a task sleeps that must stay; `Stop` of the back-off becomes the longest sleep.
fn sleep_of(backoff: &IdleBackoff, idle_count: u32, chance: f64) -> Duration {
    match backoff.after(idle_count, chance) {
        Idle::Sleep(span) => span,
        Idle::Stop => backoff.longest(chance),
    }
}
