//! The tasks of a queue and their states.
//!
//! Plain data: the [`Scaler`](super::Scaler) decides.

use std::{collections::BTreeMap, time::Duration};

use super::reporter::Snapshot;
use crate::base::{backoff::Backoff, clock::Tick};

/// One dequeue task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskId(u64);

/// The tasks of one queue.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    pub(super) list: BTreeMap<TaskId, Task>,
    /// The number of tasks so far.
    pub(super) started: u64,
}

/// The state of one task.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) state: TaskState,
    /// It holds messages, in any state.
    pub(super) holds: bool,
    /// Its last get returned as many messages as requested.
    pub(super) full: bool,
    /// It was started only because no other task polled.
    pub(super) extra_poller: bool,
    /// Empty gets in a row, and the back-off after failed gets.
    pub(super) idle_count: u32,
    pub(super) failures: Backoff,
    /// The next messages that it finds end an idle period: the depth is read then.
    pub(super) was_idle: bool,
    /// The wake-up counters when it issued its last get.
    pub(super) snapshot: Snapshot,
}

/// The activity of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskState {
    /// Waits for its first slot: not active yet.
    Starting {
        since: Tick,
    },
    /// Is about to get.
    Ready,
    Getting {
        since: Tick,
    },
    /// Has no free place, or polls no more before all its messages are handled.
    Handling,
    /// Polls again at this time. [`Tick::NEVER`] for a task with messages and free places, while
    /// another task polls or the relay sends wake-ups.
    Sleeping {
        until: Tick,
    },
    /// Sleeps after an error. A wake does not shorten this sleep: gets would flood the queue during
    /// an outage.
    Failing {
        until: Tick,
    },
}

/// A slower get blocks no wake: another task polls.
const SLOW_GET: Duration = Duration::from_secs(1);
/// After this wait for a slot, a task may have to wait until other queues' messages are handled.
const LONG_SLOT_WAIT: Duration = Duration::from_secs(1);

impl Task {
    pub(super) fn is_getting(&self) -> bool {
        matches!(self.state, TaskState::Getting { .. })
    }

    /// Returns whether it will poll without a wake, now or later.
    fn polls(&self) -> bool {
        let never = TaskState::Sleeping { until: Tick::NEVER };
        self.state != never && self.state != TaskState::Handling
    }

    /// Returns when a task that may wait for a slot has waited long.
    fn slot_wait_ends_at(&self) -> Option<Tick> {
        match self.state {
            TaskState::Starting { since: from } | TaskState::Sleeping { until: from } => {
                (!self.holds).then_some(from + LONG_SLOT_WAIT)
            }
            _ => None,
        }
    }
}

impl Tasks {
    /// Adds a task; returns its id.
    pub(super) fn add(&mut self, task: Task) -> TaskId {
        self.started += 1;
        let id = TaskId(self.started);
        self.list.insert(id, task);
        id
    }

    /// Returns the tasks other than `id`.
    pub(super) fn others(&self, id: Option<TaskId>) -> impl Iterator<Item = &Task> {
        let others = self
            .list
            .iter()
            .filter(move |(other, _)| Some(**other) != id);
        others.map(|(_, task)| task)
    }

    /// Counts the gets in flight that were issued at this wake count.
    pub(super) fn count_getting(&self, wake_count: u64) -> usize {
        let gets = |task: &&Task| task.is_getting() && task.snapshot.wake_count == wake_count;
        self.list.values().filter(gets).count()
    }

    /// Returns the tasks whose sleep is over.
    #[cfg(test)]
    pub(crate) fn due(&self, now: Tick) -> Vec<TaskId> {
        let over =
            |task: &Task| matches!(task.state, TaskState::Sleeping { until } if until <= now);
        let tasks = self.list.iter();
        tasks.filter(|(_, t)| over(t)).map(|(id, _)| *id).collect()
    }

    /// Returns whether a task is working: it holds a batch or waits for one.
    #[cfg(test)]
    pub(crate) fn works(&self, id: TaskId) -> bool {
        let state = self.list.get(&id).map(|task| task.state);
        matches!(state, Some(TaskState::Getting { .. } | TaskState::Handling))
    }

    /// Returns whether a get of the task is in flight.
    #[cfg(test)]
    pub(crate) fn is_getting(&self, id: TaskId) -> bool {
        self.list.get(&id).is_some_and(Task::is_getting)
    }

    /// Returns whether some task will issue a get soon without a wake.
    pub(super) fn will_poll_soon(&self, now: Tick) -> bool {
        self.list.values().any(|task| match task.state {
            TaskState::Starting { .. } | TaskState::Ready | TaskState::Failing { .. } => true,
            TaskState::Sleeping { until } => until <= now,
            TaskState::Getting { since } => now.since(since) < SLOW_GET,
            TaskState::Handling => false,
        })
    }

    /// Returns when the last get in flight becomes slow.
    pub(super) fn all_slow_at(&self) -> Option<Tick> {
        let getting = self.list.values().filter_map(|task| match task.state {
            TaskState::Getting { since } => Some(since + SLOW_GET),
            _ => None,
        });
        getting.max()
    }

    /// Ends the sleep of one task now, and resets its idle count: the task without messages that
    /// sleeps longest, or else a task with messages and free places.
    pub(super) fn wake_up_one(&mut self, now: Tick) -> bool {
        let sleeping = self.list.values_mut().filter_map(|task| match task.state {
            TaskState::Sleeping { until } => Some((!task.holds, until, task)),
            _ => None,
        });
        let Some((_, until, task)) = sleeping.max_by_key(|(idle, until, _)| (*idle, *until)) else {
            return false;
        };
        let until = now.min(until);
        (task.state, task.idle_count) = (TaskState::Sleeping { until }, 0);
        true
    }

    /// Returns whether a task other than `id` will poll without a wake, now or later.
    pub(super) fn another_polls(&self, id: Option<TaskId>) -> bool {
        self.others(id).any(Task::polls)
    }

    /// As [`Self::another_polls`], without tasks that have waited long for a slot.
    pub(super) fn another_polls_soon(&self, id: Option<TaskId>, now: Tick) -> bool {
        let is_soon = |task: &Task| task.slot_wait_ends_at().is_none_or(|at| now < at);
        self.others(id).any(|task| task.polls() && is_soon(task))
    }

    /// Returns when the first of the tasks that may wait for a slot has waited long.
    pub(super) fn slot_wait_ends_at(&self, now: Tick) -> Option<Tick> {
        let waits = self.list.values().filter_map(Task::slot_wait_ends_at);
        waits.filter(|until| *until > now).min()
    }

    /// Returns a task with messages and free places that does not poll.
    pub(super) fn with_free_places(&mut self) -> Option<(TaskId, &mut Task)> {
        let never = TaskState::Sleeping { until: Tick::NEVER };
        let mut tasks = self.list.iter_mut();
        let found = tasks.find(|(_, task)| task.holds && task.state == never);
        found.map(|(id, task)| (*id, task))
    }

    /// Limits all timed sleeps to `latest`; returns whether one was longer.
    pub(super) fn wake_up(&mut self, latest: Tick) -> bool {
        let mut was_longer = false;
        for task in self.list.values_mut() {
            if let TaskState::Sleeping { until } = &mut task.state
                && (latest..Tick::NEVER).contains(until)
            {
                (*until, was_longer) = (latest, true);
            }
        }
        was_longer
    }

    pub(super) fn count_active(&self) -> usize {
        let active = |task: &&Task| !matches!(task.state, TaskState::Starting { .. });
        self.list.values().filter(active).count()
    }

    /// Returns whether no task holds a message or may receive one from a get in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.list.values().all(|task| {
            !task.holds
                && !matches!(
                    task.state,
                    TaskState::Getting { .. } | TaskState::Handling | TaskState::Ready
                )
        })
    }
}
