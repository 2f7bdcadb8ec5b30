//! The gets of a task: the decision before a get, and the effects of its result.

use std::time::Duration;

use super::{
    super::{
        idle::Idle,
        step::{AfterEmpty, Begin},
        tasks::{Task, TaskId, TaskState},
    },
    DepthQuery, ListenerMode, Scaler,
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
        let idle = match certain || (task.holds && another_polls) {
            true => Idle::Stop,
            false => backoff.after(task.idle_count, chance),
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
        if planted!(LeaveUnarmed) {
            self.serve_all_wakes(id);
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
        let holds = self.stays_for_messages(id);
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
        if self.is_drained() {
            self.reporter.drained(snapshot, now);
        }
        next
    }

    /// Treats a pending wake as served by this task's get: a planted fault.
    fn serve_all_wakes(&mut self, id: TaskId) {
        let snapshot = self.reporter.snapshot(self.wake_count);
        if let Some(task) = self.tasks.get_mut(id) {
            task.snapshot = snapshot;
            (self.issued_wake, self.answered_wake) = (self.wake_count, self.wake_count);
        }
    }

    /// Returns whether a task holds messages, and so cannot end.
    fn stays_for_messages(&self, id: TaskId) -> bool {
        self.tasks.get(id).is_some_and(|task| task.holds)
    }

    /// Returns whether an empty get shows that the queue is drained: no task holds messages.
    fn is_drained(&self) -> bool {
        if planted!(DrainedEarly) {
            return true;
        }
        self.tasks.is_idle()
    }

    /// A get with an unknown outcome may have hidden messages: they become visible after
    /// `visibility`, and only this listener can report them.
    fn add_lost_get(&mut self, visibility: Duration, now: Tick) {
        if planted!(LostGetUnsaid) {
            return;
        }
        self.reporter.add_hidden(visibility, now);
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
        if !certain {
            self.add_lost_get(visibility, now);
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
        let wait = match refused {
            false => task.failures.next(rng),
            true => about(RETRY_AFTER_REFUSAL, rng),
        };
        let until = now + wait;
        (task.state, task.was_idle) = (TaskState::Failing { until }, true);
        AfterEmpty::Sleep(until)
    }
}
