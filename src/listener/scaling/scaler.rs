//! The dequeue tasks of one queue, as a machine.
//!
//! Each wake (a wake-up, a resume, new tasks) is counted. A task reads that count before its get,
//! and may leave only if the count is unchanged when the get returns empty: "check and leave" is
//! one call, under its owner's lock (R17: a task leaves only if no wake-up came since its get).
//! R18: every wake-up ends in a get, so a wake without a later get stays pending. The driver owns
//! tasks and calls; this machine decides when to start a task, to read the depth and to report.

mod gets;

use std::time::Duration;

use super::{
    idle::IdleBackoff,
    push_or_poll::ListenerMode,
    reporter::{PendingReport, Reporter, Snapshot},
    tasks::{Task, TaskId, TaskState, Tasks},
};
use crate::{
    base::{backoff::Backoff, clock::Tick, fault::planted},
    error::ErrorKind,
    types::LinkState,
};

/// Settings of a queue's tasks.
#[derive(Debug, Clone)]
pub(crate) struct ScalerConfig {
    /// The maximum number of tasks.
    pub(crate) max_tasks: usize,
    /// The back-off without a relay.
    pub(crate) idle: IdleBackoff,
    /// The longest sleep while the relay is away: a thousand listeners must not overload the queue
    /// when one relay restarts.
    pub(crate) away: Duration,
    /// An empty get proves that no message was visible.
    pub(crate) empty_is_certain: bool,
}

/// The tasks of one queue.
#[derive(Debug)]
pub(crate) struct Scaler {
    config: ScalerConfig,
    mode: ListenerMode,
    tasks: Tasks,
    /// Number of wakes so far.
    wake_count: u64,
    /// The wake count at the newest get that was issued.
    issued_wake: u64,
    /// The wake count at the newest get that the queue answered.
    answered_wake: u64,
    /// The number of tasks wanted, as far as the depth is believed.
    target: usize,
    /// The number of tasks for the last depth since an empty get.
    wanted: usize,
    /// How many more tasks a depth may start. A depth counts messages that are not visible yet: after
    /// an empty get one, and twice as many after each full get.
    believed: usize,
    /// The snapshot of the last empty get, if no wake and no message came since it was issued.
    emptied: Option<Snapshot>,
    /// The last answered get returned as many messages as requested.
    backlog: bool,
    /// The policy's number of tasks for the last known depth.
    policy_limit: usize,
    /// Messages were found in this mode.
    found_in_mode: bool,
    /// No task is started any more.
    stopped: bool,
    /// No task is started until it is resumed.
    paused: bool,
    depth_query: DepthQuery,
    /// The time of the last depth query.
    depth_at: Option<Tick>,
    most_active: usize,
    reporter: Reporter,
}

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

/// The state of the depth query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DepthQuery {
    Idle,
    Wanted,
    Running,
}

/// A listener that starts or reconnects to its relay polls within this time. The relay's CATCH_UP
/// usually comes first, and a fleet does not poll all at once.
const SETTLE: Duration = Duration::from_secs(2);
/// Waits after errors: short after a brief outage, and 12 calls a minute during a long one.
const RETRY_AFTER_ERROR: (Duration, Duration) =
    (Duration::from_millis(200), Duration::from_secs(5));

impl Scaler {
    /// Makes the tasks of a queue; `relay` says whether there are wake-ups.
    pub(crate) fn new(config: ScalerConfig, relay: bool) -> Self {
        let (mode, wake_count) = if relay {
            (ListenerMode::Polling, 0)
        } else {
            (ListenerMode::PullOnly, 1)
        };
        let reporter = Reporter::new();
        Self {
            config,
            mode,
            tasks: Tasks::default(),
            wake_count,
            issued_wake: 0,
            answered_wake: 0,
            target: 0,
            wanted: 0,
            believed: usize::MAX,
            emptied: None,
            backlog: false,
            policy_limit: usize::MAX,
            found_in_mode: false,
            stopped: false,
            paused: false,
            depth_query: DepthQuery::Idle,
            depth_at: None,
            most_active: 0,
            reporter,
        }
    }

    pub(crate) fn mode(&self) -> ListenerMode {
        self.mode
    }

    /// Returns the number of tasks that work or wait for work now, and the highest number so far.
    pub(crate) fn active(&self) -> (usize, usize) {
        (self.tasks.count_active(), self.most_active)
    }

    /// Returns the next step.
    pub(crate) fn step(&mut self, now: Tick, chance: f64) -> Step {
        if let Some((task, until)) = self.assign_poller(now, chance) {
            return Step::WakeTask(task, until);
        }
        if self.wants_task(now) {
            return Step::Start(self.start(now, chance));
        }
        let depth_at = self.next_depth_query_at();
        if self.depth_query == DepthQuery::Wanted || depth_at.is_some_and(|at| at <= now) {
            self.depth_query = DepthQuery::Running;
            return Step::QueryDepth;
        }
        if let Some(due) = self.reporter.take(now) {
            return Step::Report(due);
        }
        let report = self.reporter.next(now).unwrap_or(Tick::NEVER);
        let slow = self
            .tasks
            .all_slow_at()
            .filter(|at| self.has_unserved_wake() && *at > now);
        let slot_wait = self.slot_wait_ends_at(now);
        let others = [slow, depth_at, slot_wait].into_iter().flatten().min();
        Step::Wait(report.min(others.unwrap_or(Tick::NEVER)))
    }

    /// A wake-up arrived. Returns whether a sleeping task was woken early.
    pub(crate) fn on_wake_up(&mut self, sequence: u64, now: Tick) -> bool {
        let woken_early = self.count_wake(now);
        self.reporter.on_wake_up(sequence, self.wake_count);
        woken_early
    }

    /// The link to the relay changed. Returns whether the sleep of a task was shortened.
    pub(crate) fn on_link_changed(&mut self, link: &LinkState, now: Tick, chance: f64) -> bool {
        let connected = link.connection == crate::types::ConnectionState::Connected;
        self.reporter.on_link_changed(connected, link.welcomes, now);
        let mode = self.mode.after(link);
        // Sleeping tasks follow the rules of the previous mode.
        let latest = match mode {
            ListenerMode::Pushed => SETTLE,
            _ => self.config.away,
        };
        let moved = std::mem::replace(&mut self.mode, mode) != mode;
        self.found_in_mode &= !moved;
        moved && self.tasks.wake_up(now + latest.mul_f64(chance)) > 0
    }

    /// Starts `count` more tasks, up to the limit.
    /// Returns whether a sleeping task was woken early.
    pub(crate) fn start_more(&mut self, count: usize, now: Tick) -> bool {
        let woken_early = self.count_wake(now);
        self.target = self.tasks.len().saturating_add(count);
        woken_early
    }

    /// Starts no more tasks. The reported state stays: another listener gets the remaining
    /// messages.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Sets the policy's number of tasks for the known depth. It may exceed the number of batches:
    /// a task that only polls stays allowed.
    pub(crate) fn set_policy_limit(&mut self, most: usize) {
        self.policy_limit = most.max(1);
    }

    /// The depth query ended: `tasks` are wanted; `None` where the depth could not be read.
    pub(crate) fn on_depth(&mut self, tasks: Option<usize>, now: Tick) {
        (self.depth_query, self.depth_at) = (DepthQuery::Idle, Some(now));
        if let Some(tasks) = tasks.filter(|_| self.emptied.is_none()) {
            self.wanted = tasks;
            self.believe();
        }
    }

    /// Sets the target by the last depth.
    fn believe(&mut self) {
        let most = self.tasks.len().saturating_add(self.believed);
        self.target = self.wanted.min(most);
    }

    /// A task ended without leaving, mostly by a panic: its pending poll becomes a new wake. No
    /// effect for a task that left. Returns whether a sleeping task was woken early.
    pub(crate) fn on_task_panicked(&mut self, id: TaskId, now: Tick) -> bool {
        self.tasks.remove(id).is_some() && self.count_wake(now)
    }

    /// Returns the end of a task's sleep, [`Tick::NEVER`] while it only handles its messages;
    /// `None` if it must poll now.
    pub(crate) fn sleeps_until(&self, id: TaskId, now: Tick) -> Option<Tick> {
        match self.tasks.get(id)?.state {
            TaskState::Sleeping { until } | TaskState::Failing { until } => Some(until),
            TaskState::Handling => Some(Tick::NEVER),
            _ => None,
        }
        .filter(|until| *until > now)
    }

    /// Messages become visible after `delay`, and no other process reports them.
    pub(crate) fn add_hidden(&mut self, delay: Duration, now: Tick) {
        self.reporter.add_hidden(delay, now);
    }

    /// Returns whether a report waits to be sent or answered.
    pub(crate) fn has_pending_report(&self, now: Tick) -> bool {
        self.reporter.has_pending_report(now)
    }

    /// The report in flight was answered.
    pub(crate) fn on_report_answered(&mut self, error: Option<ErrorKind>, now: Tick) {
        self.reporter.on_answered(error, now);
    }

    /// Counts a wake; returns whether a sleeping task was woken early for it.
    fn count_wake(&mut self, now: Tick) -> bool {
        self.wake_count += 1;
        self.emptied = None;
        self.tasks.wake_up_one(now)
    }

    /// Returns whether a wake has no later get, or only a get that hangs. A second get is worthwhile;
    /// a third one would add load to a slow queue.
    fn has_unserved_wake(&self) -> bool {
        self.issued_wake < self.wake_count
            || (self.answered_wake < self.wake_count
                && self.tasks.count_getting(self.wake_count) < 2)
    }

    fn backoff(&self) -> IdleBackoff {
        match self.mode {
            ListenerMode::Polling => IdleBackoff {
                most: self.config.away,
                ..self.config.idle
            },
            _ => self.config.idle,
        }
    }

    /// Returns whether one more task is to be started.
    fn wants_task(&self, now: Tick) -> bool {
        let count = self.tasks.len();
        if self.stopped || self.paused || count >= self.config.max_tasks {
            // The wake stays pending: the first task that is done polls.
            return false;
        }
        self.lacks_poller(count) || self.has_waiting_wake(count, now) || self.target > count
    }

    fn lacks_poller(&self, count: usize) -> bool {
        self.mode != ListenerMode::Pushed
            && !self.tasks.another_polls(None)
            && count < self.policy_limit
    }

    fn has_waiting_wake(&self, count: usize, now: Tick) -> bool {
        if count > 0 && planted!(BusyNeverLooks) {
            return false;
        }
        self.has_unserved_wake() && !self.tasks.will_poll_soon(now)
    }

    fn start(&mut self, now: Tick, chance: f64) -> TaskId {
        // No wake is pending: this task polls because no other task does.
        let no_reason = !self.has_unserved_wake() && self.target <= self.tasks.len();
        let waits = no_reason && self.mode != ListenerMode::Pushed;
        let (until, idle_count) = if waits {
            self.first_poll(now, chance)
        } else {
            (now, 0)
        };
        let state = if waits {
            TaskState::Sleeping { until }
        } else {
            TaskState::Starting { since: now }
        };
        let task = Task {
            state,
            holds: false,
            leaving: false,
            full: false,
            extra_poller: waits && self.tasks.len() > 0,
            idle_count,
            failures: Backoff::new(RETRY_AFTER_ERROR.0, RETRY_AFTER_ERROR.1),
            was_idle: waits || self.has_unserved_wake(),
            snapshot: Snapshot::default(),
        };
        let id = self.tasks.add(task);
        self.most_active = self.most_active.max(self.tasks.count_active());
        id
    }

    fn sleep(&mut self, id: TaskId, until: Tick) -> AfterEmpty {
        if let Some(task) = self.tasks.get_mut(id) {
            task.state = TaskState::Sleeping { until };
        }
        AfterEmpty::Sleep(until)
    }

    /// Returns whether a task that holds messages need not poll: another task polls, or the relay
    /// sends wake-ups.
    fn may_only_handle(&self, id: TaskId, now: Tick) -> bool {
        !self.needs_poller() || self.tasks.another_polls_soon(Some(id), now)
    }

    fn may_leave(&self, id: TaskId) -> bool {
        self.mode == ListenerMode::Pushed || self.tasks.another_polls(Some(id))
    }

    /// Returns whether no task holds a message or may receive one from a get in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.tasks.is_idle()
    }

    #[cfg(test)]
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    #[cfg(test)]
    pub(crate) fn target(&self) -> usize {
        self.target
    }
}

/// Fewer tasks at run time: none while the listener is paused, and no more than a lowered limit. A surplus
/// task without messages ends at its next [`Scaler::begin`]; one with messages gets no more before they are
/// handled.
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
    fn is_surplus(&self, id: TaskId) -> bool {
        self.paused || self.tasks.count_staying_others(id) >= self.config.max_tasks
    }

    /// Ends a task, now or when its messages are handled.
    fn dismiss(&mut self, id: TaskId) -> Begin {
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
