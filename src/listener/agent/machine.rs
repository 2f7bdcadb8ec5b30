//! Which workers run on this machine, and what the relay is told of it. Pure: the driver runs workers,
//! reads depths and sends reports; this machine decides.
//!
//! Work is either in the hands of a worker that runs here, or the relay has it. A wake-up that no slot
//! can take is returned at once: a timer that is due now wakes a member that has room. So the relay
//! holds what waits for room, and gives it to the first member that has some again.
//!
//! A worker covers the wake-ups before its start if it ends and says that the queue was empty. Later
//! ones need another look, by a worker that began after them.

use std::{sync::Arc, time::Duration};

use super::{AgentConfig, WorkerEnd};
use crate::{
    base::{
        backoff::{Backoff, about, jitter},
        clock::Tick,
        fault::planted,
    },
    error::ErrorKind,
    listener::scaling::{DepthQuery, Load, PendingReport, Reporter, Snapshot},
    types::{ConnectionState, LinkState, ReportState},
};

/// The machine of one agent.
#[derive(Debug)]
pub(crate) struct AgentMachine {
    config: AgentConfig,
    has_depth: bool,
    rng: fastrand::Rng,
    queues: Vec<Queue>,
    slots: Vec<Slot>,
    is_pushed: bool,
    /// The epoch of the newest stream's relay.
    epoch: Option<Arc<str>>,
    room: Room,
    stopped: bool,
}

/// The driver's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Start a worker in the slot, then call [`AgentMachine::on_ended`] at its end.
    Start { slot: usize, queue: usize },
    /// Ask the worker in the slot to end.
    End { slot: usize },
    /// Find out whether there is room for a worker, then call [`AgentMachine::on_room`].
    AskRoom,
    /// Read the queue's depth, then call [`AgentMachine::on_depth`].
    QueryDepth { queue: usize },
    /// Send a report, then call [`AgentMachine::on_answered`].
    Report { queue: usize, report: AgentReport },
    /// Wait until this time or until the next event.
    Wait(Tick),
}

/// A report on one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AgentReport {
    pub(crate) pending: PendingReport,
    /// The stream that it is for.
    pub(crate) stream: u64,
    /// Messages that the agent can take.
    pub(crate) capacity: u32,
    pub(crate) running: usize,
    pub(crate) slots: usize,
    pub(crate) depth: Option<(u64, Tick)>,
    /// When the oldest worker began.
    pub(crate) since: Option<Tick>,
}

#[derive(Debug)]
struct Queue {
    reporter: Reporter,
    /// Counts wake-ups, and looks without one.
    newest: u64,
    /// Wake-ups up to this one are covered by a worker that found the queue empty.
    covered: Snapshot,
    /// Those up to this one were returned to the relay.
    returned: u64,
    /// Messages for which a worker is to be started.
    unclaimed: u64,
    /// The capacity that the relay knows.
    told: u32,
    /// When the relay is told again that workers run.
    renew_at: Tick,
    depth: Option<(u64, Tick)>,
    query: DepthQuery,
    /// When the next look without a wake-up is due.
    look_at: Tick,
    /// When messages are visible that the relay may have forgotten.
    visible_at: Tick,
    /// The depth before the run that ended last, until the next reading.
    before: Option<u64>,
    /// When the depth starts workers again after runs that left no fewer messages.
    again_at: Tick,
    pauses: Backoff,
}

#[derive(Debug)]
struct Slot {
    worker: Option<Worker>,
    /// Free from then on.
    from: Tick,
    failures: Backoff,
}

#[derive(Debug, Clone, Copy)]
struct Worker {
    queue: usize,
    began: Tick,
    /// The wake-ups that it covers when it ends well.
    covers: Snapshot,
    /// Messages that it can still take on.
    credit: u64,
    /// Messages that it took on after its start.
    late: u64,
    depth: Option<u64>,
    /// The newest wake-up of its queue.
    woken_at: Tick,
    ending: bool,
    /// It was told to end although its queue may have messages.
    is_cut: bool,
}

/// Whether the machine has room for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Known at this time.
    Yes(Tick),
    Asking {
        had_room: bool,
    },
    /// Until it is asked again.
    No(Tick),
}

/// Least time between two starts in a slot.
const DWELL: Duration = Duration::from_secs(1);
/// The first and the longest wait after a worker that failed.
const FAILED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// BUSY is a lease of 30 s (R14).
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// The depth is not read more often while workers run.
const DEPTH_EVERY: Duration = Duration::from_secs(5);
/// How long the machine's signals are believed, and how long a machine without room waits.
const ROOM_FOR: Duration = Duration::from_secs(1);
const NO_ROOM_FOR: Duration = Duration::from_secs(5);

impl AgentMachine {
    /// Makes the machine of an agent for so many queues. `has_depth`: the depths of its queues can be read.
    /// `has_signals`: signals of the machine decide whether there is room for a worker.
    pub(crate) fn new(
        config: AgentConfig,
        (has_depth, has_signals): (bool, bool),
        queues: usize,
        now: Tick,
        rng: fastrand::Rng,
    ) -> Self {
        let slot = || Slot {
            worker: None,
            from: Tick::default(),
            failures: Backoff::new(FAILED.0, FAILED.1),
        };
        let queue = || Queue {
            reporter: Reporter::default(),
            newest: 0,
            covered: Snapshot::default(),
            returned: 0,
            unclaimed: 0,
            told: config.nominal(),
            renew_at: Tick::NEVER,
            depth: None,
            query: DepthQuery::Idle,
            look_at: Tick::NEVER,
            visible_at: Tick::NEVER,
            before: None,
            again_at: Tick::NEVER,
            pauses: Backoff::new(FAILED.0, FAILED.1),
        };
        let mut machine = Self {
            slots: (0..config.max).map(|_| slot()).collect(),
            queues: (0..queues).map(|_| queue()).collect(),
            is_pushed: false,
            epoch: None,
            room: if has_signals {
                Room::No(now)
            } else {
                Room::Yes(Tick::NEVER)
            },
            stopped: false,
            rng,
            has_depth,
            config,
        };
        machine.plan_looks(now);
        machine
    }

    /// Returns the next step.
    pub(crate) fn step(&mut self, now: Tick) -> Step {
        self.look_where_due(now);
        self.renew(now);
        if let Some(slot) = self.next_end(now) {
            let is_cut = self.stopped;
            let worker = self.slots[slot].worker.as_mut().expect("it runs");
            (worker.ending, worker.is_cut) = (true, is_cut);
            let queue = &self.queues[worker.queue];
            worker.covers = queue.reporter.snapshot(queue.newest);
            return Step::End { slot };
        }
        while let Some(queue) = self.queue_to_start() {
            let slot = self.free_slot(now).filter(|_| !self.stopped);
            let has_room = !matches!(self.room, Room::No(_));
            match slot.filter(|(_, from)| has_room && *from <= now + DWELL) {
                Some((slot, from)) if from <= now => match self.room {
                    Room::Yes(at) if now <= at + ROOM_FOR => {
                        return self.start(slot, queue, now);
                    }
                    Room::Yes(_) => {
                        self.room = Room::Asking { had_room: true };
                        return Step::AskRoom;
                    }
                    Room::Asking { .. } | Room::No(_) => break,
                },
                Some(_) => break,
                None => self.give_back(queue, now),
            }
        }
        if let Room::No(at) = self.room
            && at <= now
            && !self.stopped
        {
            self.room = Room::Asking { had_room: false };
            return Step::AskRoom;
        }
        if let Some(queue) = self
            .queues
            .iter()
            .position(|one| one.query == DepthQuery::Wanted)
        {
            self.queues[queue].query = DepthQuery::Running;
            return Step::QueryDepth { queue };
        }
        let capacity = self.capacity(now);
        for queue in 0..self.queues.len() {
            let news = self.is_news(queue, capacity);
            let one = &mut self.queues[queue];
            let is_due = one.reporter.next(now).is_some_and(|at| at <= now);
            if news {
                one.reporter.request(now);
            }
            if let Some(mut pending) = one.reporter.take(now) {
                if !is_due && pending.state == ReportState::Drained {
                    // It is no news, and may be of an earlier stream.
                    pending.state = ReportState::Unspecified;
                }
                one.told = capacity;
                let report = self.report(queue, pending, capacity);
                return Step::Report { queue, report };
            }
        }
        Step::Wait(self.next_event(now))
    }

    /// The link to the relay changed.
    pub(crate) fn on_link(&mut self, link: &LinkState, now: Tick) {
        let connected = link.connection == ConnectionState::Connected;
        let nominal = self.config.nominal();
        let is_pushed = link.is_pushed() || link.announced;
        let mut is_new = false;
        for queue in &mut self.queues {
            let reporter = &mut queue.reporter;
            if reporter.on_link_changed(connected, link.welcomes, now) {
                // A new stream has the capacity of its subscription.
                (queue.told, is_new) = (nominal, true);
            }
        }
        if is_new && self.epoch.as_ref() != Some(&link.epoch) {
            self.epoch = Some(Arc::clone(&link.epoch));
            // It may have restarted, and forgotten when hidden messages become visible: those of
            // workers that died are visible after the time-out.
            let span = self.config.visibility_timeout;
            for queue in self
                .queues
                .iter_mut()
                .filter(|_| !planted!(AgentTrustsTimers))
            {
                queue.visible_at = now + span + jitter(span / 2, &mut self.rng);
            }
        }
        if std::mem::replace(&mut self.is_pushed, is_pushed) != is_pushed {
            self.plan_looks(now);
        }
    }

    /// A wake-up of a queue arrived, for so many messages.
    pub(crate) fn on_wake_up(&mut self, queue: usize, sequence: u64, messages: u64, now: Tick) {
        let newest = self.count_look(queue, now);
        let one = &mut self.queues[queue];
        one.reporter.on_wake_up(sequence, newest);
        if messages > 0 {
            one.forget_pauses();
        }
        self.claim(queue, messages, now);
    }

    /// A worker ended, or could not be started.
    pub(crate) fn on_ended(&mut self, slot: usize, end: &WorkerEnd, now: Tick) {
        let Some(worker) = self.slots[slot].worker.take() else {
            return;
        };
        let of_slot = &mut self.slots[slot];
        of_slot.from = worker.began + DWELL;
        match end {
            // It may also have left messages in its hands.
            WorkerEnd::Done if worker.is_cut => self.failed(worker.queue, now),
            WorkerEnd::Done => {
                of_slot.failures.reset();
                self.drained(worker, now);
            }
            WorkerEnd::Unfinished => {
                if now.since(worker.began) >= DWELL {
                    of_slot.failures.reset();
                } else {
                    of_slot.from = of_slot.from.max(now + of_slot.failures.next(&mut self.rng));
                }
                self.left(worker.queue);
                self.give_back(worker.queue, now);
            }
            WorkerEnd::Failed(_) => {
                of_slot.from = now + of_slot.failures.next(&mut self.rng);
                self.failed(worker.queue, now);
            }
        }
    }

    /// The depth of a queue was read, or could not be.
    pub(crate) fn on_depth(&mut self, queue: usize, depth: Option<u64>, now: Tick) {
        let running = self.running(queue);
        let one = &mut self.queues[queue];
        one.query = DepthQuery::Idle;
        let Some(depth) = depth else {
            // A look by a worker shows what the depth does not.
            if running == 0 && one.newest > one.covered.wake_count.max(one.returned) {
                one.unclaimed = one.unclaimed.max(1);
            }
            return self.put_off_ends(queue, now);
        };
        let last = one.depth.replace((depth, now)).map(|(last, _)| last);
        match one.before.take() {
            // The messages may be in other hands: they are looked for, less and less often.
            Some(before) if depth >= before && depth > 0 => {
                if one.again_at == Tick::NEVER {
                    one.again_at = now + one.pauses.next(&mut self.rng);
                }
            }
            // More than at the last reading are new ones.
            None if depth > 0 && last.is_none_or(|last| depth <= last) => {}
            _ => one.forget_pauses(),
        }
        if one.again_at == Tick::NEVER {
            let wanted = self.wanted(depth).saturating_sub(running);
            let messages = (wanted as u64).saturating_mul(self.config.per.into());
            let one = &mut self.queues[queue];
            one.unclaimed = one.unclaimed.max(messages);
        }
        if depth > 0 {
            self.put_off_ends(queue, now);
        }
    }

    /// The machine has room for a worker, or has none.
    pub(crate) fn on_room(&mut self, has_room: bool, now: Tick) {
        self.room = if has_room {
            Room::Yes(now)
        } else {
            Room::No(now + about(NO_ROOM_FOR, &mut self.rng))
        };
    }

    /// The report on a queue, for this stream, was answered.
    pub(crate) fn on_answered(
        &mut self,
        queue: usize,
        stream: u64,
        error: Option<ErrorKind>,
        now: Tick,
    ) {
        let one = &mut self.queues[queue];
        if stream != one.reporter.stream {
            // An earlier stream's answer came late.
            return;
        }
        one.reporter.on_answered(error, now);
        if error.is_some_and(|kind| kind != ErrorKind::Invalid) {
            // It may not know the capacity.
            one.told = u32::MAX;
        }
    }

    /// Starts no more workers, and ends those that run. What waits for one is returned.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Returns whether a worker runs, or a report waits to be sent or answered.
    pub(crate) fn is_at_work(&self, now: Tick) -> bool {
        let reports = |one: &Queue| one.unclaimed > 0 || one.reporter.has_pending_report(now);
        self.workers().next().is_some() || self.queues.iter().any(reports)
    }

    /// Returns the number of workers.
    pub(crate) fn active(&self) -> usize {
        self.workers().count()
    }

    fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.slots.iter().filter_map(|slot| slot.worker.as_ref())
    }

    /// Returns the workers that were not told to end.
    fn serving(&self) -> impl Iterator<Item = &Worker> {
        self.workers().filter(|one| !one.ending)
    }

    fn running(&self, queue: usize) -> usize {
        self.serving().filter(|one| one.queue == queue).count()
    }

    fn wanted(&self, depth: u64) -> usize {
        let wanted = match &self.config.policy {
            _ if depth == 0 => 0,
            Some(policy) => policy.tasks(&Load {
                depth,
                ..Load::default()
            }),
            None => usize::try_from(depth.div_ceil(self.config.per.into())).unwrap_or(usize::MAX),
        };
        wanted.min(self.config.max)
    }

    /// Counts a wake-up, or a look without one.
    fn count_look(&mut self, queue: usize, now: Tick) -> u64 {
        let look_at = self.next_look(now);
        let one = &mut self.queues[queue];
        one.look_at = look_at;
        one.newest += 1;
        one.newest
    }

    /// Gives messages to workers that run and can take them on; the rest needs more workers. Without any
    /// one worker looks, whatever else waits for one.
    fn claim(&mut self, queue: usize, messages: u64, now: Tick) {
        let (is_look, messages) = (messages == 0, messages.max(1));
        let serves = self.config.idle.is_some();
        let per = u64::from(self.config.per);
        let mut left = messages;
        for worker in workers_of(&mut self.slots, queue).filter(|one| !one.ending) {
            worker.woken_at = now;
            let taken = left.min(if serves { per } else { worker.credit });
            worker.credit = worker.credit.saturating_sub(taken);
            worker.late += taken;
            left -= taken;
        }
        let one = &mut self.queues[queue];
        one.unclaimed = if is_look {
            one.unclaimed.max(left)
        } else {
            one.unclaimed.saturating_add(left)
        };
        if left < messages {
            // Its work on them is this agent's to watch.
            let snapshot = one.reporter.snapshot(one.newest);
            one.reporter.found(snapshot, now);
        }
        let is_old = one.depth.is_none_or(|(_, at)| at + DEPTH_EVERY <= now);
        if self.has_depth && is_old {
            one.query.want();
        }
    }

    fn start(&mut self, slot: usize, queue: usize, now: Tick) -> Step {
        let per = u64::from(self.config.per);
        let one = &mut self.queues[queue];
        let claimed = one.unclaimed.min(per);
        one.unclaimed -= claimed;
        let covers = one.reporter.snapshot(one.newest);
        one.reporter.found(covers, now);
        one.renew_at = one.renew_at.min(now + RENEW_EVERY);
        self.slots[slot].worker = Some(Worker {
            queue,
            began: now,
            covers,
            credit: per - claimed,
            late: 0,
            depth: one.depth.map(|(depth, _)| depth),
            woken_at: now,
            ending: false,
            is_cut: false,
        });
        Step::Start { slot, queue }
    }

    fn drained(&mut self, worker: Worker, now: Tick) {
        let queue = worker.queue;
        let newest = self.queues[queue].newest;
        let others = || self.workers().filter(|other| other.queue == queue);
        let is_busy = others().next().is_some();
        let looks = others().any(|other| other.covers.wake_count >= newest);
        let one = &mut self.queues[queue];
        if worker.covers.wake_count >= one.covered.wake_count {
            one.covered = worker.covers;
        }
        let covers_all = one.covered.wake_count >= newest;
        if covers_all || planted!(AgentForgetsLate) {
            one.unclaimed = 0;
        } else {
            // It may have read the queue before these came.
            one.unclaimed = one.unclaimed.saturating_add(worker.late);
            if newest > one.returned && !looks {
                // A worker must look that begins after the newest wake-up.
                one.unclaimed = one.unclaimed.max(1);
            }
        }
        if covers_all && !is_busy {
            one.reporter.drained(one.covered, now);
        }
        self.left(queue);
        if self.has_depth && self.config.idle.is_none() {
            let one = &mut self.queues[queue];
            one.before = worker.depth;
            one.query.want();
        }
    }

    /// A worker ended with messages in its hands, as far as is known.
    fn failed(&mut self, queue: usize, now: Tick) {
        self.left(queue);
        let visible = self.config.visibility_timeout;
        self.queues[queue].reporter.add_hidden(visible, now);
        self.give_back(queue, now);
    }

    /// A worker of the queue is gone.
    fn left(&mut self, queue: usize) {
        if !self.workers().any(|other| other.queue == queue) {
            let one = &mut self.queues[queue];
            one.renew_at = Tick::NEVER;
            one.reporter.release();
        }
    }

    /// Returns the work that waits for a worker: a member with room is woken for it.
    fn give_back(&mut self, queue: usize, now: Tick) {
        let one = &mut self.queues[queue];
        (one.unclaimed, one.returned) = (0, one.newest);
        one.reporter.add_hidden(Duration::ZERO, now);
    }

    /// Looks without a wake-up: the relay is away, or a check is due.
    fn look_where_due(&mut self, now: Tick) {
        for queue in 0..self.queues.len() {
            let one = &mut self.queues[queue];
            if self.stopped || one.next_look() > now {
                continue;
            }
            for at in [&mut one.visible_at, &mut one.again_at] {
                if *at <= now {
                    *at = Tick::NEVER;
                }
            }
            self.count_look(queue, now);
            if self.has_depth {
                self.queues[queue].query.want();
            } else {
                self.claim(queue, 0, now);
            }
        }
    }

    fn plan_looks(&mut self, now: Tick) {
        for at in 0..self.queues.len() {
            self.queues[at].look_at = self.next_look(now);
        }
    }

    fn next_look(&mut self, now: Tick) -> Tick {
        let every = match self.is_pushed {
            false => Some(self.config.poll),
            true => self.config.check,
        };
        let Some(every) = every else {
            return Tick::NEVER;
        };
        // Agents of one relay lose it at the same time.
        let half = every / 2;
        now + half + jitter(every, &mut self.rng)
    }

    /// Tells the relay again that workers run.
    fn renew(&mut self, now: Tick) {
        for one in &mut self.queues {
            if one.renew_at <= now {
                one.renew_at = now + RENEW_EVERY;
                let covered = one.reporter.covered;
                one.reporter.found(covered, now);
            }
        }
    }

    /// Returns a worker that is to end: it serves, and had no wake-up for long.
    fn next_end(&mut self, now: Tick) -> Option<usize> {
        if self.stopped {
            let runs = |slot: &Slot| slot.worker.is_some_and(|one| !one.ending);
            return self.slots.iter().position(runs);
        }
        let idle = self.config.idle?;
        let is_due = |one: &Worker| !one.ending && one.woken_at + idle <= now;
        let slot = self
            .slots
            .iter()
            .position(|slot| slot.worker.as_ref().is_some_and(is_due))?;
        let worker = self.slots[slot].worker.as_ref().expect("it runs");
        if !self.has_depth {
            return Some(slot);
        }
        // Only when the queue is empty, by a reading since the worker became idle.
        let (queue, since) = (worker.queue, worker.woken_at + idle);
        let one = &mut self.queues[queue];
        match one.depth {
            Some((0, at)) if at >= since => Some(slot),
            _ => {
                one.query.want();
                None
            }
        }
    }

    /// The queue is not known to be empty: its workers serve for longer.
    fn put_off_ends(&mut self, queue: usize, now: Tick) {
        workers_of(&mut self.slots, queue).for_each(|worker| worker.woken_at = now);
    }

    /// Returns a queue that needs a worker: the one that has the fewest.
    fn queue_to_start(&self) -> Option<usize> {
        let needs = |at: &usize| self.queues[*at].unclaimed > 0;
        let all = 0..self.queues.len();
        all.filter(needs).min_by_key(|at| self.running(*at))
    }

    /// Returns the slot that is free first, and since or from when.
    fn free_slot(&self, now: Tick) -> Option<(usize, Tick)> {
        let slots = self.slots.iter().enumerate();
        let free = slots.filter(|(_, slot)| slot.worker.is_none());
        free.min_by_key(|(at, slot)| (slot.from.max(now), *at))
            .map(|(at, slot)| (at, slot.from))
    }

    /// Returns how many messages the agent can take now.
    fn capacity(&self, now: Tick) -> u32 {
        let no_room = matches!(self.room, Room::No(_) | Room::Asking { had_room: false });
        if no_room || self.stopped {
            return 0;
        }
        let is_free = |slot: &&Slot| slot.worker.is_none() && slot.from <= now + DWELL;
        let free = self.slots.iter().filter(is_free).count();
        u32::try_from(free)
            .unwrap_or(u32::MAX)
            .saturating_mul(self.config.per)
            .min(self.config.nominal())
    }

    /// Returns whether the relay must know the capacity at once.
    fn is_news(&self, queue: usize, capacity: u32) -> bool {
        let one = &self.queues[queue];
        let known = (one.told > 0) == (capacity > 0) && one.told <= self.config.nominal();
        !known && one.reporter.has_stream()
    }

    fn report(&self, queue: usize, pending: PendingReport, capacity: u32) -> AgentReport {
        let of_queue = |one: &&Worker| one.queue == queue;
        let workers = || self.workers().filter(of_queue);
        AgentReport {
            pending,
            stream: self.queues[queue].reporter.stream,
            capacity,
            running: workers().count(),
            slots: self.config.max,
            depth: self.queues[queue].depth,
            since: workers().map(|one| one.began).min(),
        }
    }

    fn next_event(&self, now: Tick) -> Tick {
        let of_queue = |one: &Queue| {
            let report = one.reporter.next(now).unwrap_or(Tick::NEVER);
            let look = Some(one.next_look()).filter(|_| !self.stopped);
            report.min(look.unwrap_or(Tick::NEVER)).min(one.renew_at)
        };
        let queues = self.queues.iter().map(of_queue).min();
        let free = self.slots.iter().filter(|slot| slot.worker.is_none());
        // A slot counts for the capacity a little before it is free.
        let free = free.flat_map(|slot| [slot.from, slot.from - DWELL]);
        let idle = self.config.idle.filter(|_| !self.stopped);
        let ends = self.serving().filter_map(|one| Some(one.woken_at + idle?));
        let room = match self.room {
            Room::No(at) => Some(at),
            _ => None,
        };
        let later = free.chain(ends).chain(room).filter(|at| *at > now);
        later.chain(queues).min().unwrap_or(Tick::NEVER)
    }
}

fn workers_of(slots: &mut [Slot], queue: usize) -> impl Iterator<Item = &mut Worker> {
    let workers = slots.iter_mut().filter_map(|slot| slot.worker.as_mut());
    workers.filter(move |worker| worker.queue == queue)
}

impl Queue {
    /// Returns when a look without a wake-up is due.
    fn next_look(&self) -> Tick {
        self.look_at.min(self.visible_at).min(self.again_at)
    }

    fn forget_pauses(&mut self) {
        self.again_at = Tick::NEVER;
        self.pauses.reset();
    }
}
