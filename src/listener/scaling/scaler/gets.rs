//! The gets of a task: the decision before a get, the effects of its result, and which task polls when no
//! relay sends wake-ups.
//!
//! A task with messages and free places sleeps like an idle task; without a time limit while another task
//! polls or the relay sends wake-ups.

use std::time::Duration;

use super::{
    super::{
        idle::{Idle, IdleBackoff},
        tasks::{Task, TaskId, TaskState},
    },
    AfterEmpty, Begin, DepthQuery, ListenerMode, SETTLE, Scaler,
};
use crate::{
    base::{backoff::about, clock::Tick, fault::planted},
    error::ErrorKind,
};

/// Under steady load the depth is read this often.
const DEPTH_INTERVAL: Duration = Duration::from_secs(5);
/// Wait after an error that does not pass by itself: wrong credentials, missing queue.
const RETRY_AFTER_REFUSAL: Duration = Duration::from_secs(30);
/// A hook that returns a sleep of zero would block the thread.
const LEAST_SLEEP: Duration = Duration::from_millis(1);

/// An idle count at which the back-off has reached its maximum.
const LONG_IDLE: u32 = 64;

impl Scaler {
    /// A task got a slot. R17: its get covers all wakes that are counted by now.
    pub(crate) fn begin(&mut self, id: TaskId, now: Tick) -> Begin {
        if self.is_surplus(id) {
            return self.dismiss(id);
        }
        let surplus = self.emptied.is_some() && !self.has_unserved_wake() && self.may_leave(id);
        let others = self.tasks.count_busy_others(id);
        let Some(task) = self.tasks.get_mut(id) else {
            return Begin::Leave;
        };
        if task.extra_poller && !task.holds && others >= self.policy_limit {
            // The policy allows no task for messages that it would find.
            self.tasks.remove(id);
            return Begin::Leave;
        }
        match task.state {
            TaskState::Starting { .. } if surplus => {
                self.tasks.remove(id);
                return Begin::Leave;
            }
            TaskState::Sleeping { until } | TaskState::Failing { until } if until > now => {
                return Begin::Sleep(until);
            }
            _ => {}
        }
        task.leaving = false;
        task.state = TaskState::Getting { since: now };
        task.snapshot = self.reporter.snapshot(self.wake_count);
        self.issued_wake = self.wake_count;
        self.most_active = self.most_active.max(self.tasks.count_active());
        Begin::Get
    }

    /// A get found messages; `full` where it found as many as requested. Returns whether they end
    /// an idle period.
    pub(crate) fn found(&mut self, id: TaskId, full: bool, now: Tick) -> bool {
        (self.emptied, self.found_in_mode) = (None, true);
        if full && self.wanted > 0 {
            self.believed = self.believed.saturating_mul(2);
            self.believe();
        }
        let Some(task) = self.tasks.get_mut(id) else {
            return false;
        };
        task.state = TaskState::Handling;
        (task.holds, task.full) = (true, full);
        task.idle_count = 0;
        task.failures.reset();
        let (detected, snapshot) = (std::mem::take(&mut task.was_idle), task.snapshot);
        // A get that was issued earlier proves nothing about messages that a later get left.
        self.backlog = full || (self.backlog && snapshot.wake_count < self.answered_wake);
        self.answered_wake = self.answered_wake.max(snapshot.wake_count);
        self.reporter.found(snapshot, now);
        // A batch that is not full emptied the queue: the depth would be of no use.
        let may_have_more =
            full || self.mode != ListenerMode::Pushed || !self.config.empty_is_certain;
        let old = full
            && self
                .depth_at
                .is_none_or(|at| now.since(at) >= DEPTH_INTERVAL);
        if self.depth_query == DepthQuery::Idle && may_have_more && (detected || old) {
            self.depth_query = DepthQuery::Wanted;
        }
        detected
    }

    /// A get found nothing. Returns the number of empty gets in a row, and the default action.
    pub(crate) fn idle(&mut self, id: TaskId, now: Tick, chance: f64) -> (u32, Idle) {
        let certain = self.mode == ListenerMode::Pushed && self.config.empty_is_certain;
        let backoff = self.backoff();
        let another_polls = self.tasks.another_polls_soon(Some(id), now);
        let Some(task) = self.tasks.get_mut(id) else {
            return (0, Idle::Stop);
        };
        task.idle_count = task.idle_count.saturating_add(1);
        let idle = if certain || (task.holds && another_polls) {
            Idle::Stop
        } else {
            backoff.after(task.idle_count, chance)
        };
        (task.idle_count, idle)
    }

    /// Applies the decision for a task whose get was empty. R17: the task goes on if a wake arrived
    /// since its get was issued. The last task of a polled queue stays.
    pub(crate) fn after_empty(
        &mut self,
        id: TaskId,
        idle: Idle,
        now: Tick,
        chance: f64,
    ) -> AfterEmpty {
        if planted!(LeaveUnarmed)
            && let Some(task) = self.tasks.get_mut(id)
        {
            task.snapshot = self.reporter.snapshot(self.wake_count);
            (self.issued_wake, self.answered_wake) = (self.wake_count, self.wake_count);
        }
        let longest = self.backoff().longest(chance);
        let Some(task) = self.tasks.get_mut(id) else {
            return AfterEmpty::Leave;
        };
        (task.was_idle, task.full) = (true, false);
        task.failures.reset();
        let snapshot = task.snapshot;
        self.answered_wake = self.answered_wake.max(snapshot.wake_count);
        if snapshot.wake_count != self.wake_count {
            task.state = TaskState::Ready;
            return AfterEmpty::Again;
        }
        let holds = task.holds;
        (self.emptied, self.backlog, self.target) = (Some(snapshot), false, 0);
        (self.wanted, self.believed) = (0, 1);
        let next = match idle {
            Idle::Stop if holds && self.may_only_handle(id, now) => self.sleep(id, Tick::NEVER),
            Idle::Stop if !holds && self.may_leave(id) => {
                self.tasks.remove(id);
                AfterEmpty::Leave
            }
            Idle::Stop => self.sleep(id, now + longest),
            Idle::Sleep(span) => self.sleep(id, now + span.max(LEAST_SLEEP)),
        };
        // No task holds messages.
        if self.tasks.is_idle() || planted!(DrainedEarly) {
            self.reporter.drained(snapshot, now);
        }
        next
    }

    /// A get failed. The task tries again after a growing wait, unless another task already does.
    pub(crate) fn failed(
        &mut self,
        id: TaskId,
        kind: ErrorKind,
        visibility: Duration,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> AfterEmpty {
        let refused = matches!(
            kind,
            ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Invalid | ErrorKind::Unsupported
        );
        let certain = refused || matches!(kind, ErrorKind::Busy | ErrorKind::Exhausted);
        // It may have hidden messages, and only this listener can report them.
        if !certain && !planted!(LostGetUnsaid) {
            self.reporter.add_hidden(visibility, now);
        }
        let failing = |task: &Task| matches!(task.state, TaskState::Failing { .. });
        if self.tasks.any(failing) {
            if self.tasks.get(id).is_some_and(|task| task.holds) {
                return self.sleep(id, Tick::NEVER);
            }
            self.tasks.remove(id);
            return AfterEmpty::Leave;
        }
        let Some(task) = self.tasks.get_mut(id) else {
            return AfterEmpty::Leave;
        };
        // More tasks would fail as well.
        self.target = 0;
        let wait = if refused {
            about(RETRY_AFTER_REFUSAL, rng)
        } else {
            task.failures.next(rng)
        };
        let until = now + wait;
        (task.state, task.was_idle) = (TaskState::Failing { until }, true);
        AfterEmpty::Sleep(until)
    }

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
        let longest = if self.tasks.is_first() {
            SETTLE
        } else {
            self.config.away
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
