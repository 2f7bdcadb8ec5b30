//! The dequeue tasks of one queue, as a machine.
//!
//! Each cause to look (a wake-up, say) is counted. A task reads that count before its get, and may
//! leave only if the count has not moved when the get came back empty: "check and leave" is one
//! call, under its owner's lock (R17: a task leaves only if no wake-up came since its get). R18:
//! every wake-up ends in a get, so a cause that no get was issued after stays pending. Tasks and
//! calls are its driver's; it says when to start one, to ask for the depth and to report.

mod fewer;
mod places;

use std::time::Duration;

use super::{
    idle::{Idle, IdleBackoff},
    step::{Begin, Rest, Step},
    tasks::{Doing, Task, TaskId, Tasks},
    telling::{Place, Telling},
};
use crate::{
    backoff::Backoff,
    clock::Tick,
    error::ErrorKind,
    fault::{Fault, planted},
    words::LinkState,
};

/// How a listener hears of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ListenerMode {
    /// The relay tells it: no task while there is no work.
    Pushed,
    /// The relay cannot be reached, or cannot hear all publishers: one task stays and looks, less
    /// and less often.
    Polling,
    /// There is no relay: one task stays and looks about once a second.
    PullOnly,
}

/// How the tasks of a queue behave.
#[derive(Debug, Clone)]
pub(crate) struct ScalerConfig {
    /// Tasks at most.
    pub(crate) max_tasks: usize,
    /// The back-off where there is no relay.
    pub(crate) idle: IdleBackoff,
    /// The longest sleep while the relay is away: a thousand listeners must not hammer the queue
    /// because one relay restarts.
    pub(crate) away: Duration,
    /// An empty get means that there was no visible message.
    pub(crate) empty_is_certain: bool,
    pub(crate) fault: Fault,
}

/// The tasks of one queue.
#[derive(Debug)]
pub(crate) struct Scaler {
    config: ScalerConfig,
    mode: ListenerMode,
    tasks: Tasks,
    /// Causes to look so far.
    causes: u64,
    /// The newest cause that a get was issued after.
    looked: u64,
    /// The newest cause whose get was answered by the queue.
    answered: u64,
    /// Tasks that the last look at the depth asked for.
    target: usize,
    /// An armed get found nothing, and there was no cause and no message since: where it stood.
    emptied: Option<Place>,
    /// The last get that was answered found as many messages as it asked for.
    backlog: bool,
    /// Tasks that the policy had at most for the depth that was known last.
    allowed: usize,
    /// Messages were found in this mode.
    found_in_mode: bool,
    /// No task is started any more.
    stopped: bool,
    /// None is until it is resumed.
    paused: bool,
    asking: Asking,
    /// When the depth was known last.
    depth_at: Option<Tick>,
    most_active: usize,
    telling: Telling,
}

/// Whether the depth is being asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asking {
    No,
    Wanted,
    Asked,
}

/// Under steady load the depth is asked this often.
const DEPTH_EVERY: Duration = Duration::from_secs(5);
/// Who starts, and who has come back to its relay, looks within this: the relay's own CATCH_UP
/// usually comes first, and a fleet does not look all at once.
const SETTLE: Duration = Duration::from_secs(2);
/// Waits after errors: soon back when it was a blink, and 12 calls a minute when it was not.
const FAILED: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// And the wait after one that will not pass by itself: wrong credentials, no such queue.
const REFUSED: Duration = Duration::from_secs(30);
/// A hook that sleeps for nothing would keep the thread to itself.
const LEAST_SLEEP: Duration = Duration::from_millis(1);

impl Scaler {
    /// Makes the tasks of a queue; `relay` where there is one to be heard.
    pub(crate) fn new(config: ScalerConfig, relay: bool) -> Self {
        let (mode, causes) = match relay {
            true => (ListenerMode::Polling, 0),
            false => (ListenerMode::PullOnly, 1),
        };
        let telling = Telling::new(config.fault);
        Self {
            config,
            mode,
            tasks: Tasks::default(),
            causes,
            looked: 0,
            answered: 0,
            target: 0,
            emptied: None,
            backlog: false,
            allowed: usize::MAX,
            found_in_mode: false,
            stopped: false,
            paused: false,
            asking: Asking::No,
            depth_at: None,
            most_active: 0,
            telling,
        }
    }

    pub(crate) fn mode(&self) -> ListenerMode {
        self.mode
    }

    /// Returns the tasks that work or wait for work now, and the most that ever did at one time.
    pub(crate) fn active(&self) -> (usize, usize) {
        (self.tasks.count_active(), self.most_active)
    }

    /// Returns what to do next.
    pub(crate) fn step(&mut self, now: Tick, chance: f64) -> Step {
        if let Some((task, until)) = self.appoint(now, chance) {
            return Step::Appoint(task, until);
        }
        if self.wants_task(now) {
            return Step::Start(self.start(now, chance));
        }
        let depth_at = self.look_at_depth_at();
        if self.asking == Asking::Wanted || depth_at.is_some_and(|at| at <= now) {
            self.asking = Asking::Asked;
            return Step::AskDepth;
        }
        if let Some(due) = self.telling.take(now) {
            return Step::Report(due);
        }
        let report = self.telling.next(now).unwrap_or(Tick::NEVER);
        let slow = self
            .tasks
            .all_slow_at()
            .filter(|at| self.is_owed() && *at > now);
        let line = self.waits_in_line_until(now);
        let others = [slow, depth_at, line].into_iter().flatten().min();
        Step::Wait(report.min(others.unwrap_or(Tick::NEVER)))
    }

    /// The relay said that there is work, or may be. Returns whether a sleeping task was roused.
    pub(crate) fn woken(&mut self, sequence: u64, now: Tick) -> bool {
        let forgets = self.paused && planted!(self.config.fault, PauseForgets);
        let roused = !forgets && self.cause(now);
        self.telling.woken(sequence, self.causes);
        roused
    }

    /// The link to the relay moved. Returns whether a sleeping task is to sleep less.
    pub(crate) fn linked(&mut self, link: LinkState, now: Tick, chance: f64) -> bool {
        let connected = link.connection == crate::words::ConnectionState::Connected;
        self.telling.linked(connected, link.welcomes, now);
        let mode = match self.mode {
            ListenerMode::PullOnly => ListenerMode::PullOnly,
            _ if link.is_pushed() => ListenerMode::Pushed,
            // The next stream tells what is notified until it is there.
            ListenerMode::Pushed if link.announced => ListenerMode::Pushed,
            _ if planted!(self.config.fault, NeverPolls) => self.mode,
            _ => ListenerMode::Polling,
        };
        // Who sleeps has slept by the rules of the mode before.
        let latest = match mode {
            ListenerMode::Pushed => SETTLE,
            _ => self.config.away,
        };
        let moved = std::mem::replace(&mut self.mode, mode) != mode;
        self.found_in_mode &= !moved;
        moved && self.tasks.wake_up(now + latest.mul_f64(chance)) > 0
    }

    /// Starts `count` more tasks, so far as there may be so many.
    /// Returns whether a sleeping task was roused.
    pub(crate) fn start_more(&mut self, count: usize, now: Tick) -> bool {
        let roused = self.cause(now);
        self.target = self.tasks.len().saturating_add(count);
        roused
    }

    /// Starts no task any more. It stays as busy as it was told to be: whatever it has not looked
    /// for is somebody else's.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// The policy has so many tasks at most for the depth that is known, however few batches there
    /// are: a task that only looks is none too many.
    pub(crate) fn allow(&mut self, most: usize) {
        self.allowed = most.max(1);
    }

    /// The depth is known: so many tasks are wanted; `None` where it could not be read.
    pub(crate) fn scaled(&mut self, tasks: Option<usize>, now: Tick) {
        (self.asking, self.depth_at) = (Asking::No, Some(now));
        if let Some(tasks) = tasks.filter(|_| self.emptied.is_none()) {
            self.target = tasks;
        }
    }

    /// A task has a slot, and asks what to do. R17: its get covers the causes that are
    /// counted by now.
    pub(crate) fn begin(&mut self, id: TaskId, now: Tick) -> Begin {
        if self.is_one_too_many(id) {
            return self.dismiss(id);
        }
        let surplus = self.emptied.is_some() && !self.is_owed() && self.may_leave(id);
        let others = self.tasks.count_busy_others(id);
        let Some(task) = self.tasks.get_mut(id) else {
            return Begin::Leave;
        };
        if task.looks_beside && !task.holds && others >= self.allowed {
            // The policy has no task for what it would find.
            self.tasks.remove(id);
            return Begin::Leave;
        }
        match task.doing {
            Doing::Starting { .. } if surplus => {
                self.tasks.remove(id);
                return Begin::Leave;
            }
            Doing::Sleeping { until } | Doing::Failing { until } if until > now => {
                return Begin::Sleep(until);
            }
            _ => {}
        }
        task.leaving = false;
        task.doing = Doing::Getting { since: now };
        task.place = self.telling.place(self.causes);
        self.looked = self.causes;
        self.most_active = self.most_active.max(self.tasks.count_active());
        Begin::Get
    }

    /// A get found messages: `full` where it found as many as it asked for. Returns whether this is
    /// work detected after idleness.
    pub(crate) fn found(&mut self, id: TaskId, full: bool, now: Tick) -> bool {
        (self.emptied, self.found_in_mode) = (None, true);
        let Some(task) = self.tasks.get_mut(id) else {
            return false;
        };
        task.doing = Doing::Handling;
        (task.holds, task.full) = (true, full);
        task.idle_count = 0;
        task.failures.reset();
        let (detected, place) = (std::mem::take(&mut task.look), task.place);
        // A get that was issued before says nothing of what a later one left.
        self.backlog = full || (self.backlog && place.cause < self.answered);
        self.answered = self.answered.max(place.cause);
        self.telling.found(place, now);
        // A batch with room left was all that there was: the depth would say nothing new.
        let rest = full || self.mode != ListenerMode::Pushed || !self.config.empty_is_certain;
        let old = full && self.depth_at.is_none_or(|at| now.since(at) >= DEPTH_EVERY);
        if self.asking == Asking::No && rest && (detected || old) {
            self.asking = Asking::Wanted;
        }
        detected
    }

    /// A get found nothing. Returns how often in a row by now, and what is to be done by default.
    pub(crate) fn idle(&mut self, id: TaskId, now: Tick, chance: f64) -> (u32, Idle) {
        let certain = self.mode == ListenerMode::Pushed && self.config.empty_is_certain;
        let backoff = self.backoff();
        let another_looks = self.tasks.another_surely_looks(Some(id), now);
        let Some(task) = self.tasks.get_mut(id) else {
            return (0, Idle::Stop);
        };
        task.idle_count = task.idle_count.saturating_add(1);
        let idle = match certain || (task.holds && another_looks) {
            true => Idle::Stop,
            false => backoff.after(task.idle_count, chance),
        };
        (task.idle_count, idle)
    }

    /// Does what was decided for a task that found nothing. R17: it goes on if there was a cause
    /// since its get was issued. The last task of a queue that is polled stays.
    pub(crate) fn rest(&mut self, id: TaskId, idle: Idle, now: Tick, chance: f64) -> Rest {
        let longest = self.backoff().longest(chance);
        let Some(task) = self.tasks.get_mut(id) else {
            return Rest::Leave;
        };
        (task.look, task.full) = (true, false);
        task.failures.reset();
        let (place, holds) = (task.place, task.holds);
        self.answered = self.answered.max(place.cause);
        if place.cause != self.causes && !planted!(self.config.fault, LeaveUnarmed) {
            task.doing = Doing::Ready;
            return Rest::Again;
        }
        // What it leaves behind is owed no less; the fault forgets that, and reports it as seen.
        let place = match planted!(self.config.fault, LeaveUnarmed) {
            true => {
                (self.looked, self.answered) = (self.causes, self.causes);
                self.telling.place(self.causes)
            }
            false => place,
        };
        (self.emptied, self.backlog, self.target) = (Some(place), false, 0);
        let holds = holds && !planted!(self.config.fault, LeavesWhileHolding);
        let rest = match idle {
            Idle::Stop if holds && self.may_only_handle(id, now) => self.sleep(id, Tick::NEVER),
            Idle::Stop if !holds && self.may_leave(id) => {
                self.tasks.remove(id);
                Rest::Leave
            }
            Idle::Stop => self.sleep(id, now + longest),
            Idle::Sleep(span) => self.sleep(id, now + span.max(LEAST_SLEEP)),
        };
        if self.tasks.nobody_works() || planted!(self.config.fault, DrainedEarly) {
            self.telling.drained(place, now);
        }
        rest
    }

    /// A get failed. The task tries again after a growing wait, unless another one already does.
    /// Where it may have happened all the same, messages come back after `visibility` that nobody
    /// knows of.
    pub(crate) fn failed(
        &mut self,
        id: TaskId,
        kind: ErrorKind,
        visibility: Duration,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Rest {
        let refused = matches!(
            kind,
            ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Invalid | ErrorKind::Unsupported
        );
        let certain = refused || matches!(kind, ErrorKind::Busy | ErrorKind::Exhausted);
        if !certain && !planted!(self.config.fault, LostGetUnsaid) {
            self.telling.hidden(visibility, now);
        }
        let failing = |task: &Task| matches!(task.doing, Doing::Failing { .. });
        if self.tasks.any(failing) {
            if self.tasks.get(id).is_some_and(|task| task.holds) {
                return self.sleep(id, Tick::NEVER);
            }
            self.tasks.remove(id);
            return Rest::Leave;
        }
        let Some(task) = self.tasks.get_mut(id) else {
            return Rest::Leave;
        };
        // What was wanted for the depth would fail as well.
        self.target = 0;
        let wait = match refused {
            false => task.failures.next(rng),
            true => crate::backoff::about(REFUSED, rng),
        };
        let until = now + wait;
        (task.doing, task.look) = (Doing::Failing { until }, true);
        Rest::Sleep(until)
    }

    /// A task has ended without a word: it panicked. What it was to look for is owed again.
    /// Returns whether a sleeping task was roused for it.
    pub(crate) fn vanished(&mut self, id: TaskId, now: Tick) -> bool {
        self.tasks.remove(id).is_some() && self.cause(now)
    }

    /// Returns until when a task is to sleep, for good where it only handles what it holds; `None`
    /// where it is to look.
    pub(crate) fn sleeps_until(&self, id: TaskId, now: Tick) -> Option<Tick> {
        match self.tasks.get(id)?.doing {
            Doing::Sleeping { until } | Doing::Failing { until } => Some(until),
            Doing::Handling => Some(Tick::NEVER),
            _ => None,
        }
        .filter(|until| *until > now)
    }

    /// Messages become visible after `delay` that nobody else speaks of.
    pub(crate) fn hidden(&mut self, delay: Duration, now: Tick) {
        self.telling.hidden(delay, now);
    }

    /// Returns whether a report waits to be sent or answered.
    pub(crate) fn has_to_say(&self, now: Tick) -> bool {
        self.telling.has_to_say(now)
    }

    /// The report on its way was answered.
    pub(crate) fn answered(&mut self, error: Option<ErrorKind>, now: Tick) {
        self.telling.answered(error, now);
    }

    /// Counts a cause to look; returns whether a sleeping task was roused for it.
    fn cause(&mut self, now: Tick) -> bool {
        self.causes += 1;
        self.emptied = None;
        let holding = !planted!(self.config.fault, HolderNeverRoused);
        self.tasks.wake_up_one(now, holding)
    }

    /// Returns whether there is a cause that no get was issued after, or one only that hangs: a
    /// second one is worth its while, a third would be a storm.
    fn is_owed(&self) -> bool {
        self.looked < self.causes
            || (self.answered < self.causes && self.tasks.count_getting(self.causes) < 2)
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
            // What is owed stays so: whoever is done first looks.
            return false;
        }
        let last_left = self.mode != ListenerMode::Pushed
            && !self.tasks.another_looks(None)
            && count < self.allowed
            && !planted!(self.config.fault, LastTaskLeaves);
        let alone = planted!(self.config.fault, LookerHandles) && count > 0;
        let last_left = last_left && !alone;
        let trusts = planted!(self.config.fault, BusyNeverLooks) && count > 0;
        let look = self.is_owed() && !self.tasks.somebody_will_look(now) && !trusts;
        last_left || look || self.target > count
    }

    fn start(&mut self, now: Tick, chance: f64) -> TaskId {
        // Nothing is owed: it looks because no other task does.
        let unasked = !self.is_owed() && self.target <= self.tasks.len();
        let waits = unasked && self.mode != ListenerMode::Pushed;
        let (until, idle_count) = match waits {
            true => self.first_look(now, chance),
            false => (now, 0),
        };
        let doing = match waits {
            true => Doing::Sleeping { until },
            false => Doing::Starting { since: now },
        };
        let task = Task {
            doing,
            holds: false,
            leaving: false,
            full: false,
            looks_beside: waits && self.tasks.len() > 0,
            idle_count,
            failures: Backoff::new(FAILED.0, FAILED.1),
            look: waits || self.is_owed(),
            place: Place::default(),
        };
        let id = self.tasks.add(task);
        self.most_active = self.most_active.max(self.tasks.count_active());
        id
    }

    fn sleep(&mut self, id: TaskId, until: Tick) -> Rest {
        if let Some(task) = self.tasks.get_mut(id) {
            task.doing = Doing::Sleeping { until };
        }
        Rest::Sleep(until)
    }

    /// Returns whether a task with messages in its hands need not look: another one does, or the relay
    /// tells.
    fn may_only_handle(&self, id: TaskId, now: Tick) -> bool {
        !self.needs_looker() || self.tasks.another_surely_looks(Some(id), now)
    }

    fn may_leave(&self, id: TaskId) -> bool {
        self.mode == ListenerMode::Pushed
            || self.tasks.another_looks(Some(id))
            || planted!(self.config.fault, LastTaskLeaves)
    }

    /// Returns whether no task holds a message, or may come to hold one by a get on its way.
    pub(crate) fn nobody_works(&self) -> bool {
        self.tasks.nobody_works()
    }

    /// Returns the tasks.
    #[cfg(test)]
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }
}
