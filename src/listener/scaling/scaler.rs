//! The dequeue tasks of one queue, as a machine.
//!
//! Each wake (a wake-up, or new tasks) is counted. A task reads that count before its get,
//! and may leave only if the count is unchanged when the get returns empty: "check and leave" is
//! one call, under its owner's lock (R17: a task leaves only if no wake-up came since its get).
//! R18: every wake-up ends in a get, so a wake without a later get stays pending. The driver owns
//! tasks and calls; this machine decides when to start a task, to read the depth and to report.

use std::time::Duration;

use super::{
    idle::{Idle, IdleBackoff},
    push_or_poll::ListenerMode,
    reporter::{PendingReport, Reporter, Snapshot},
    tasks::{Task, TaskId, TaskState, Tasks},
};
use crate::{
    base::{
        backoff::{Backoff, about},
        clock::Tick,
        fault::planted,
    },
    error::ErrorKind,
    types::{ConnectionState, LinkState},
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
    pub(crate) tasks: Tasks,
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
    depth_query: DepthQuery,
    /// The time of the last depth query.
    depth_at: Option<Tick>,
    most_active: usize,
    pub(crate) reporter: Reporter,
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
    /// Send a report, then call [`Reporter::on_answered`].
    Report(PendingReport),
    /// Wait until this time or until the next event.
    Wait(Tick),
}

/// The action of a task that got a slot, after an empty get, after a failed get, or when all its messages
/// are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskAction {
    /// Get a batch now.
    Get,
    /// Release the slot and sleep until this time, or until an earlier wake.
    Sleep(Tick),
    /// End. The machine has removed the task.
    Leave,
}

/// The state of the depth query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DepthQuery {
    Idle,
    Wanted,
    Running,
}

impl DepthQuery {
    /// Asks for a query, unless one is running.
    pub(crate) fn want(&mut self) {
        if *self == Self::Idle {
            *self = Self::Wanted;
        }
    }
}

/// A listener that starts or reconnects to its relay polls within this time. The relay's CATCH_UP
/// usually comes first, and a fleet does not poll all at once.
const SETTLE: Duration = Duration::from_secs(2);
/// Waits after errors: short after a brief outage, and 12 calls a minute during a long one.
const RETRY_AFTER_ERROR: (Duration, Duration) =
    (Duration::from_millis(200), Duration::from_secs(5));
/// Under steady load the depth is read this often.
const DEPTH_INTERVAL: Duration = Duration::from_secs(5);
/// Wait after an error that does not pass by itself: wrong credentials, missing queue.
const RETRY_AFTER_REFUSAL: Duration = Duration::from_secs(30);
/// A hook that returns a sleep of zero would block the thread.
const LEAST_SLEEP: Duration = Duration::from_millis(1);
/// An idle count at which the back-off has reached its maximum.
const LONG_IDLE: u32 = 64;

impl Scaler {
    /// Makes the tasks of a queue; `relay` says whether there are wake-ups.
    pub(crate) fn new(config: ScalerConfig, relay: bool) -> Self {
        let (mode, wake_count) = if relay {
            (ListenerMode::Polling, 0)
        } else {
            (ListenerMode::PullOnly, 1)
        };
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
            depth_query: DepthQuery::Idle,
            depth_at: None,
            most_active: 0,
            reporter: Reporter::default(),
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
        let slow = self.tasks.all_slow_at();
        let slow = slow.filter(|at| self.has_unserved_wake() && *at > now);
        let slot_wait = self.slot_wait_ends_at(now);
        let next = [self.reporter.next(now), slow, depth_at, slot_wait];
        Step::Wait(next.into_iter().flatten().min().unwrap_or(Tick::NEVER))
    }

    /// A wake-up arrived. Returns whether a sleeping task was woken early.
    pub(crate) fn on_wake_up(&mut self, sequence: u64, now: Tick) -> bool {
        let woken_early = self.count_wake(now);
        self.reporter.on_wake_up(sequence, self.wake_count);
        woken_early
    }

    /// The link to the relay changed. Returns whether the sleep of a task was shortened.
    pub(crate) fn on_link_changed(&mut self, link: &LinkState, now: Tick, chance: f64) -> bool {
        let connected = link.connection == ConnectionState::Connected;
        self.reporter.on_link_changed(connected, link.welcomes, now);
        let mode = self.mode.after(link);
        // Sleeping tasks follow the rules of the previous mode.
        let latest = match mode {
            ListenerMode::Pushed => SETTLE,
            _ => self.config.away,
        };
        let moved = std::mem::replace(&mut self.mode, mode) != mode;
        self.found_in_mode &= !moved;
        moved && self.tasks.wake_up(now + latest.mul_f64(chance))
    }

    /// Starts `count` more tasks, up to the limit.
    /// Returns whether a sleeping task was woken early.
    pub(crate) fn start_more(&mut self, count: usize, now: Tick) -> bool {
        let woken_early = self.count_wake(now);
        self.target = self.tasks.list.len().saturating_add(count);
        woken_early
    }

    /// Starts no more tasks. The reported state stays: another listener gets the remaining
    /// messages.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// The depth query ended: `tasks` are wanted, and the policy allows `most`, which may exceed the number
    /// of batches: a task that only polls stays allowed. `None` where the depth could not be read.
    pub(crate) fn on_depth(&mut self, wanted: Option<(usize, usize)>, now: Tick) {
        (self.depth_query, self.depth_at) = (DepthQuery::Idle, Some(now));
        let Some((tasks, most)) = wanted else { return };
        self.policy_limit = most.max(1);
        if self.emptied.is_none() {
            self.wanted = tasks;
            self.believe();
        }
    }

    /// Sets the target by the last depth.
    fn believe(&mut self) {
        let most = self.tasks.list.len().saturating_add(self.believed);
        self.target = self.wanted.min(most);
    }

    /// A task ended without leaving, mostly by a panic: its pending poll becomes a new wake. No
    /// effect for a task that left. Returns whether a sleeping task was woken early.
    pub(crate) fn on_task_panicked(&mut self, id: TaskId, now: Tick) -> bool {
        self.tasks.list.remove(&id).is_some() && self.count_wake(now)
    }

    /// Returns the end of a task's sleep, [`Tick::NEVER`] while it only handles its messages;
    /// `None` if it must poll now.
    pub(crate) fn sleeps_until(&self, id: TaskId, now: Tick) -> Option<Tick> {
        match self.tasks.list.get(&id)?.state {
            TaskState::Sleeping { until } | TaskState::Failing { until } => Some(until),
            TaskState::Handling => Some(Tick::NEVER),
            _ => None,
        }
        .filter(|until| *until > now)
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
        let count = self.tasks.list.len();
        if self.stopped || count >= self.config.max_tasks {
            // The wake stays pending: the first task that is done polls.
            return false;
        }
        let lacks_poller = self.mode != ListenerMode::Pushed
            && !self.tasks.another_polls(None)
            && count < self.policy_limit;
        let looks = count == 0 || !planted!(BusyNeverLooks);
        lacks_poller || (looks && self.has_waiting_wake(now)) || self.target > count
    }

    /// Returns whether a wake needs a get that no task issues soon.
    fn has_waiting_wake(&self, now: Tick) -> bool {
        self.has_unserved_wake() && !self.tasks.will_poll_soon(now)
    }

    fn start(&mut self, now: Tick, chance: f64) -> TaskId {
        // No wake is pending: this task polls because no other task does.
        let no_reason = !self.has_unserved_wake() && self.target <= self.tasks.list.len();
        let waits = no_reason && self.mode != ListenerMode::Pushed;
        let (state, idle_count) = if waits {
            let (until, idle_count) = self.first_poll(now, chance);
            (TaskState::Sleeping { until }, idle_count)
        } else {
            (TaskState::Starting { since: now }, 0)
        };
        let task = Task {
            state,
            holds: false,
            full: false,
            extra_poller: waits && !self.tasks.list.is_empty(),
            idle_count,
            failures: Backoff::new(RETRY_AFTER_ERROR.0, RETRY_AFTER_ERROR.1),
            was_idle: waits || self.has_unserved_wake(),
            snapshot: Snapshot::default(),
        };
        let id = self.tasks.add(task);
        self.most_active = self.most_active.max(self.tasks.count_active());
        id
    }

    fn sleep(&mut self, id: TaskId, until: Tick) -> TaskAction {
        if let Some(task) = self.tasks.list.get_mut(&id) {
            task.state = TaskState::Sleeping { until };
        }
        TaskAction::Sleep(until)
    }

    fn leave(&mut self, id: TaskId) -> TaskAction {
        self.tasks.list.remove(&id);
        TaskAction::Leave
    }

    /// Returns whether a task that holds messages need not poll: another task polls, or the relay
    /// sends wake-ups.
    fn may_only_handle(&self, id: TaskId, now: Tick) -> bool {
        !self.needs_poller() || self.tasks.another_polls_soon(Some(id), now)
    }

    fn may_leave(&self, id: TaskId) -> bool {
        self.mode == ListenerMode::Pushed || self.tasks.another_polls(Some(id))
    }

    #[cfg(test)]
    pub(crate) fn target(&self) -> usize {
        self.target
    }
}

/// The gets of a task, and which task polls when no relay sends wake-ups. A task with messages and free
/// places sleeps like an idle task; without a time limit while another task polls or the relay sends
/// wake-ups.
impl Scaler {
    /// A task got a slot. R17: its get covers all wakes that are counted by now.
    pub(crate) fn begin(&mut self, id: TaskId, now: Tick) -> TaskAction {
        let surplus = self.emptied.is_some() && !self.has_unserved_wake() && self.may_leave(id);
        let busy = |task: &&Task| task.holds || task.is_getting();
        let busy_others = self.tasks.others(Some(id)).filter(busy).count();
        let Some(task) = self.tasks.list.get_mut(&id) else {
            return TaskAction::Leave;
        };
        if task.extra_poller && !task.holds && busy_others >= self.policy_limit {
            // The policy allows no task for messages that it would find.
            return self.leave(id);
        }
        match task.state {
            // The work that it was started for is gone.
            TaskState::Starting { .. } if surplus => return self.leave(id),
            TaskState::Sleeping { until } | TaskState::Failing { until } if until > now => {
                return TaskAction::Sleep(until);
            }
            _ => {}
        }
        task.state = TaskState::Getting { since: now };
        task.snapshot = self.reporter.snapshot(self.wake_count);
        self.issued_wake = self.wake_count;
        self.most_active = self.most_active.max(self.tasks.count_active());
        TaskAction::Get
    }

    /// A get found messages; `full` where it found as many as requested. Returns whether they end
    /// an idle period.
    pub(crate) fn found(&mut self, id: TaskId, full: bool, now: Tick) -> bool {
        (self.emptied, self.found_in_mode) = (None, true);
        if full && self.wanted > 0 {
            self.believed = self.believed.saturating_mul(2);
            self.believe();
        }
        let Some(task) = self.tasks.list.get_mut(&id) else {
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
        if may_have_more && (detected || old) {
            self.depth_query.want();
        }
        detected
    }

    /// A get found nothing. Returns the number of empty gets in a row, and the default action.
    pub(crate) fn idle(&mut self, id: TaskId, now: Tick, chance: f64) -> (u32, Idle) {
        let certain = self.mode == ListenerMode::Pushed && self.config.empty_is_certain;
        let backoff = self.backoff();
        let another_polls = self.tasks.another_polls_soon(Some(id), now);
        let Some(task) = self.tasks.list.get_mut(&id) else {
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
    ) -> TaskAction {
        if planted!(LeaveUnarmed)
            && let Some(task) = self.tasks.list.get_mut(&id)
        {
            task.snapshot = self.reporter.snapshot(self.wake_count);
            (self.issued_wake, self.answered_wake) = (self.wake_count, self.wake_count);
        }
        let longest = self.backoff().longest(chance);
        let Some(task) = self.tasks.list.get_mut(&id) else {
            return TaskAction::Leave;
        };
        (task.was_idle, task.full) = (true, false);
        task.failures.reset();
        let snapshot = task.snapshot;
        self.answered_wake = self.answered_wake.max(snapshot.wake_count);
        if snapshot.wake_count != self.wake_count {
            task.state = TaskState::Ready;
            return TaskAction::Get;
        }
        let holds = task.holds;
        (self.emptied, self.backlog, self.target) = (Some(snapshot), false, 0);
        (self.wanted, self.believed) = (0, 1);
        let next = match idle {
            Idle::Stop if holds && self.may_only_handle(id, now) => self.sleep(id, Tick::NEVER),
            Idle::Stop if !holds && self.may_leave(id) => self.leave(id),
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
    ) -> TaskAction {
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
        if self.tasks.list.values().any(failing) {
            if self.tasks.list.get(&id).is_some_and(|task| task.holds) {
                return self.sleep(id, Tick::NEVER);
            }
            return self.leave(id);
        }
        let Some(task) = self.tasks.list.get_mut(&id) else {
            return TaskAction::Leave;
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
        TaskAction::Sleep(until)
    }

    /// A task that holds messages has free places; `half` if at least half of its places are free.
    /// The task polls at once if `half` and its last get was full. Otherwise it polls by the
    /// back-off, if no other task polls and no wake-ups come.
    pub(crate) fn places_free(&mut self, id: TaskId, half: bool, now: Tick, chance: f64) {
        let pending = self.has_waiting_wake(now);
        let must_poll = self.needs_poller() && !self.tasks.another_polls_soon(Some(id), now);
        let (more, backoff) = (self.emptied.is_none(), self.backoff());
        let Some(task) = self.tasks.list.get_mut(&id) else {
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
        if let Some(task) = self.tasks.list.get_mut(&id).filter(|task| task.holds) {
            task.state = TaskState::Handling;
        }
    }

    /// All messages of a task are handled while its next get is in flight. Messages of that get are
    /// not counted here.
    pub(crate) fn holds_nothing(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.list.get_mut(&id) {
            task.holds = false;
        }
    }

    /// A task has handled all its messages. It issues one more get, unless its last get found
    /// nothing and no wake arrived since (R17: only then may a task leave), or it still sleeps.
    pub(crate) fn done(&mut self, id: TaskId, now: Tick) -> TaskAction {
        let certain = self.mode == ListenerMode::Pushed && self.config.empty_is_certain;
        let emptied = self.emptied;
        let Some(task) = self.tasks.list.get_mut(&id) else {
            return TaskAction::Leave;
        };
        task.holds = false;
        let spent = certain && task.idle_count > 0 && emptied == Some(task.snapshot);
        let next = match task.state {
            TaskState::Sleeping { until } | TaskState::Failing { until }
                if until != Tick::NEVER =>
            {
                TaskAction::Sleep(until)
            }
            _ if spent => self.leave(id),
            _ => {
                task.state = TaskState::Ready;
                TaskAction::Get
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
    fn needs_poller(&self) -> bool {
        let in_part = !self.config.empty_is_certain && self.emptied.is_none();
        self.mode != ListenerMode::Pushed || self.backlog || in_part
    }

    /// Returns when to read the depth because no task polls: all tasks that the policy allowed are
    /// full, and the policy may allow more for the present depth.
    fn next_depth_query_at(&self) -> Option<Tick> {
        let count = self.tasks.list.len();
        let none_polls = !self.stopped
            && self.depth_query == DepthQuery::Idle
            && self.mode != ListenerMode::Pushed
            && (self.policy_limit..self.config.max_tasks).contains(&count)
            && !self.tasks.another_polls(None);
        let depth_at = self.depth_at.filter(|_| none_polls)?;
        Some(depth_at + self.backoff().longest(0.5))
    }

    /// Returns when a task that waits for a slot no longer counts as polling, if a task with free
    /// places could poll instead.
    fn slot_wait_ends_at(&mut self, now: Tick) -> Option<Tick> {
        let may = !self.stopped && self.needs_poller();
        let until = self.tasks.slot_wait_ends_at(now).filter(|_| may)?;
        self.tasks.with_free_places().is_some().then_some(until)
    }

    /// Makes a task with messages and free places poll by the back-off, if no other task polls.
    fn assign_poller(&mut self, now: Tick, chance: f64) -> Option<(TaskId, Tick)> {
        let none_needed = self.stopped || !self.needs_poller();
        if none_needed || self.tasks.another_polls_soon(None, now) {
            return None;
        }
        let (until, idle_count) = self.first_poll(now, chance);
        let (id, task) = self.tasks.with_free_places()?;
        (task.state, task.idle_count) = (TaskState::Sleeping { until }, idle_count);
        Some((id, until))
    }

    /// Returns the first poll of a task that was started without a wake, and its initial idle
    /// count. The poll is soon, unless the relay has just gone away: the relay may return first,
    /// and a fleet must not poll all at once.
    fn first_poll(&self, now: Tick, chance: f64) -> (Tick, u32) {
        if self.mode != ListenerMode::Polling || self.found_in_mode {
            return (now + sleep_of(&self.backoff(), 0, chance), 0);
        }
        let longest = if self.tasks.started == 0 {
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
