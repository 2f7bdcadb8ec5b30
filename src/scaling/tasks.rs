//! The tasks of a queue, and what each of them does.
//!
//! Plain data: the machine decides.

use std::{collections::BTreeMap, time::Duration};

use super::telling::Place;
use crate::{backoff::Backoff, clock::Tick};

/// One dequeue task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskId(u64);

/// The tasks of one queue.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    list: BTreeMap<TaskId, Task>,
    started: u64,
}

/// What is known of a task.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) doing: Doing,
    /// It holds messages, whatever else it does.
    pub(super) holds: bool,
    /// It gets nothing more, and ends when it holds nothing.
    pub(super) leaving: bool,
    /// Its last get found as many messages as it asked for.
    pub(super) full: bool,
    /// It was started only because no other task looked.
    pub(super) looks_beside: bool,
    /// Gets in a row that found nothing, and that failed.
    pub(super) idle_count: u32,
    pub(super) failures: Backoff,
    /// Its next find is one after idleness: the depth is asked.
    pub(super) look: bool,
    /// Where it stood among the causes when it issued its get.
    pub(super) place: Place,
}

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// Waits for its first slot: not active yet.
    Starting {
        since: Tick,
    },
    /// Is about to get.
    Ready,
    Getting {
        since: Tick,
    },
    /// Has no place left, or looks no more before all that it holds is handled.
    Handling,
    /// Looks again then; [`Tick::NEVER`] of a task that holds messages and has places left, while
    /// another one looks or the relay tells.
    Sleeping {
        until: Tick,
    },
    /// Sleeps after an error. A cause rouses it no sooner, or an outage would be a storm.
    Failing {
        until: Tick,
    },
}

/// A get that takes longer holds up no cause: another task looks.
const SLOW_GET: Duration = Duration::from_secs(1);
/// A task that has waited longer for a slot may do so for as long as others' messages take.
const IN_LINE: Duration = Duration::from_secs(1);

impl Tasks {
    /// Adds a task; returns its name.
    pub(super) fn add(&mut self, task: Task) -> TaskId {
        self.started += 1;
        let id = TaskId(self.started);
        self.list.insert(id, task);
        id
    }

    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task> {
        self.list.remove(&id)
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Task> {
        self.list.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        self.list.get_mut(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether no task was ever started.
    pub(super) fn is_first(&self) -> bool {
        self.started == 0
    }

    pub(super) fn any(&self, test: impl FnMut(&Task) -> bool) -> bool {
        self.list.values().any(test)
    }

    /// Counts the gets on their way that were issued after this cause.
    pub(super) fn count_getting(&self, cause: u64) -> usize {
        let gets =
            |task: &&Task| matches!(task.doing, Doing::Getting { .. }) && task.place.cause == cause;
        self.list.values().filter(gets).count()
    }

    /// Returns the tasks that are to sleep no longer.
    #[cfg(test)]
    pub(crate) fn roused(&self, now: Tick) -> Vec<TaskId> {
        let over = |task: &Task| matches!(task.doing, Doing::Sleeping { until } if until <= now);
        let tasks = self.list.iter();
        tasks.filter(|(_, t)| over(t)).map(|(id, _)| *id).collect()
    }

    /// Returns whether a task is at work: it has a batch or waits for one.
    #[cfg(test)]
    pub(crate) fn works(&self, id: TaskId) -> bool {
        let doing = self.list.get(&id).map(|task| task.doing);
        matches!(doing, Some(Doing::Getting { .. } | Doing::Handling))
    }

    /// Returns whether a get of a task is on its way.
    #[cfg(test)]
    pub(crate) fn is_getting(&self, id: TaskId) -> bool {
        let doing = self.list.get(&id).map(|task| task.doing);
        matches!(doing, Some(Doing::Getting { .. }))
    }

    /// Returns whether a task will issue a get soon, by itself.
    pub(super) fn somebody_will_look(&self, now: Tick) -> bool {
        self.list.values().any(|task| match task.doing {
            Doing::Starting { .. } | Doing::Ready | Doing::Failing { .. } => true,
            Doing::Sleeping { until } => until <= now,
            Doing::Getting { since } => now.since(since) < SLOW_GET,
            Doing::Handling => false,
        })
    }

    /// Returns when all gets on their way are slow.
    pub(super) fn all_slow_at(&self) -> Option<Tick> {
        let getting = self.list.values().filter_map(|task| match task.doing {
            Doing::Getting { since } => Some(since + SLOW_GET),
            _ => None,
        });
        getting.max()
    }

    /// Lets a task that sleeps look now, and reckon its idleness from then on: the one that sleeps
    /// longest of those that hold no message, or else, where `holding` says so, one that has places
    /// left.
    pub(super) fn wake_up_one(&mut self, now: Tick, holding: bool) -> bool {
        let tasks = self.list.values_mut().filter(|task| holding || !task.holds);
        let sleeping = tasks.filter_map(|task| match task.doing {
            Doing::Sleeping { until } => Some((!task.holds, until, task)),
            _ => None,
        });
        let Some((_, until, task)) = sleeping.max_by_key(|(idle, until, _)| (*idle, *until)) else {
            return false;
        };
        let until = now.min(until);
        (task.doing, task.idle_count) = (Doing::Sleeping { until }, 0);
        true
    }

    /// Returns whether a task other than `id` looks by itself, now or later.
    pub(super) fn another_looks(&self, id: Option<TaskId>) -> bool {
        let mut others = self.list.iter().filter(|(other, _)| Some(**other) != id);
        others.any(|(_, task)| match task.doing {
            Doing::Handling => false,
            Doing::Sleeping { until } => until != Tick::NEVER,
            _ => true,
        })
    }

    /// The same, but for those that have waited for their slot for long: it may be long in coming.
    pub(super) fn another_surely_looks(&self, id: Option<TaskId>, now: Tick) -> bool {
        let mut others = self.list.iter().filter(|(other, _)| Some(**other) != id);
        others.any(|(_, task)| match task.doing {
            Doing::Handling => false,
            Doing::Sleeping { until: Tick::NEVER } => false,
            Doing::Sleeping { .. } if task.holds => true,
            Doing::Starting { since: from } | Doing::Sleeping { until: from } => {
                now < from + IN_LINE
            }
            _ => true,
        })
    }

    /// Returns when the first of the tasks that may wait for a slot has done so for long.
    pub(super) fn in_line_until(&self, now: Tick) -> Option<Tick> {
        let tasks = self.list.values().filter(|task| !task.holds);
        let until = tasks.filter_map(|task| match task.doing {
            Doing::Starting { since: from } | Doing::Sleeping { until: from } => {
                Some(from + IN_LINE)
            }
            _ => None,
        });
        until.filter(|until| *until > now).min()
    }

    /// Counts the tasks other than `id` that hold messages, or have a get on its way.
    pub(super) fn count_busy_others(&self, id: TaskId) -> usize {
        let busy = |(other, task): &(&TaskId, &Task)| {
            **other != id && (task.holds || matches!(task.doing, Doing::Getting { .. }))
        };
        self.list.iter().filter(busy).count()
    }

    /// Has tasks that were to end go on with the places that they have left; returns whether there are
    /// any.
    pub(super) fn keep_leaving(&mut self, now: Tick) -> bool {
        let leaving = self.list.values_mut().filter(|task| task.leaving);
        let kept = leaving.map(|task| {
            task.leaving = false;
            task.doing = Doing::Sleeping { until: now };
        });
        kept.count() > 0
    }

    /// Counts the tasks other than `id` that are not about to end.
    pub(super) fn count_staying_others(&self, id: TaskId) -> usize {
        let stays = |(other, task): &(&TaskId, &Task)| **other != id && !task.leaving;
        self.list.iter().filter(stays).count()
    }

    /// Counts the tasks that are not about to end.
    pub(super) fn count_staying(&self) -> usize {
        self.list.values().filter(|task| !task.leaving).count()
    }

    /// Returns a task that has places left, and does not look by itself; where `leaving` says so, also
    /// one that was to end and may have some.
    pub(super) fn with_places(&mut self, leaving: bool) -> Option<(TaskId, &mut Task)> {
        let never = Doing::Sleeping { until: Tick::NEVER };
        let has = |task: &Task| task.holds && (task.doing == never || (leaving && task.leaving));
        let found = self.list.iter_mut().find(|(_, task)| has(task));
        found.map(|(id, task)| (*id, task))
    }

    /// Returns a task that gets nothing more and ends when it holds nothing.
    pub(super) fn leaving(&mut self) -> Option<(TaskId, &mut Task)> {
        let found = self.list.iter_mut().find(|(_, task)| task.leaving);
        found.map(|(id, task)| (*id, task))
    }

    /// Lets no task that looks by itself sleep longer than until then; returns how many would have.
    pub(super) fn wake_up(&mut self, latest: Tick) -> usize {
        let tasks = self.list.values_mut();
        let longer = tasks.filter_map(|task| match &mut task.doing {
            Doing::Sleeping { until } if *until > latest && *until != Tick::NEVER => Some(until),
            _ => None,
        });
        longer.map(|until| *until = latest).count()
    }

    pub(super) fn count_active(&self) -> usize {
        let active = |task: &&Task| !matches!(task.doing, Doing::Starting { .. });
        self.list.values().filter(active).count()
    }

    /// Returns whether no task holds a message or may come to hold one by a get on its way.
    pub(super) fn nobody_works(&self) -> bool {
        let works = |task: &Task| {
            task.holds
                || matches!(
                    task.doing,
                    Doing::Getting { .. } | Doing::Handling | Doing::Ready
                )
        };
        !self.list.values().any(works)
    }
}
