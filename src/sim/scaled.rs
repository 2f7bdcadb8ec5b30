//! Listeners whose dequeue tasks are the production machine: they look, scale, rest, poll and report
//! as the real ones do.
//!
//! A get takes its time on both ways, may fail or hang; handlers fail, hang, or die with their
//! listener. A message that is held is kept hidden, for one time-out at once. Every second listener
//! wraps its queue in what tries again, whose rules are the production's ([`RetryState`]).

use std::{collections::BTreeMap, time::Duration};

use super::{
    plan::Trouble,
    queue::{Announced, MessageId},
    reports::{ANSWER, Answer, Call},
    world::{Event, World},
};
use crate::{
    clock::Tick,
    error::{Error, ErrorKind},
    queue::{
        RetryConfig,
        retry_state::{RetryOn, RetryState},
    },
    scaling::{
        Begin, Due, IdleBackoff, Load, Rest, ScalePolicy, Scaler, ScalerConfig, Step, StepPolicy,
        TaskId,
    },
    words::{ConnectionState, Report},
};

/// One queue of a listener: its machine, and what its tasks hold.
#[derive(Debug)]
pub(super) struct Scaled {
    pub(super) scaler: Scaler,
    held: BTreeMap<TaskId, Vec<(MessageId, u64)>>,
    /// The tries of gets that failed, inside of the wrapper.
    tries: BTreeMap<TaskId, RetryState>,
    tick_at: Option<Tick>,
    /// The report on its way.
    report: Option<u64>,
    /// When the queue was last looked into.
    pub(super) looked_at: Tick,
    hangs_until: Tick,
    /// Its gets fail until then.
    pub(super) excused_until: Tick,
    /// When its depth was known last: where the policy has no task more, that is the look.
    depth_at: Tick,
    /// Its application has paused it until then.
    resumes_at: Tick,
    max_tasks: usize,
}

/// What happens to a queue of such a listener.
#[derive(Debug, Clone)]
pub(super) enum Happens {
    /// The machine's own time has come.
    Step,
    /// A task starts, or has slept.
    Begins(TaskId),
    /// Its get reaches the queue.
    Looks(TaskId),
    /// The answer comes back; the second says whether it found as many as it asked for.
    Got(TaskId, bool, Vec<(MessageId, u64)>),
    Fails(TaskId, ErrorKind),
    Handled(TaskId, MessageId, u64),
    Depth(u64),
    /// The application lets it go on.
    Resumes,
}

/// A pushed listener has looked this long after a cause: one slow get, and what is in between.
pub(super) const LOOKED: Duration = Duration::from_secs(3);
/// A listener that polls has looked within this (W4): its longest sleep, and a get that hangs.
pub(super) const POLLED: Duration = Duration::from_secs(15);
const MAX_TASKS: usize = 4;
/// The longest sleep while the relay is away; outages last longer.
const AWAY: Duration = Duration::from_secs(10);
/// A stream that ended as announced is followed by another within this, or the relay is away.
const ANNOUNCED: Duration = Duration::from_secs(15);
/// A get that hangs.
const HANG: Duration = Duration::from_secs(30);

impl World {
    /// Makes the machines of a listener that starts.
    pub(super) fn scaled_starts(&mut self, number: usize) {
        let listener = &self.listeners[number];
        let queues = (0..self.queues.list.len())
            .filter(|queue| listener.wants(&self.queues.list[*queue].address));
        let scaled: BTreeMap<_, _> = queues.map(|queue| (queue, self.make_scaled())).collect();
        self.listeners[number].scaled = scaled;
        self.scaled_step_all(number);
    }

    /// The link may have moved: tells the machines.
    pub(super) fn scaled_linked(&mut self, number: usize) {
        let (now, chance) = (self.now, self.rng.f64());
        let listener = &mut self.listeners[number];
        let Some(session) = &listener.session else {
            return;
        };
        let link = session.link();
        if std::mem::replace(&mut listener.link, link) == link {
            return;
        }
        listener.alone_since = match link.connection {
            ConnectionState::Connected => None,
            _ if link.announced => listener.alone_since.or(Some(now + ANNOUNCED)),
            _ => listener
                .alone_since
                .map(|since| since.min(now))
                .or(Some(now)),
        };
        for scaled in listener.scaled.values_mut() {
            scaled.scaler.linked(link, now, chance);
        }
        self.scaled_step_all(number);
    }

    /// A wake-up was handed over.
    pub(super) fn scaled_woken(&mut self, number: usize, queue: usize, sequence: u64) {
        let now = self.now;
        if let Some(scaled) = self.listeners[number].scaled.get_mut(&queue) {
            scaled.scaler.woken(sequence, now);
        }
        self.scaled_step(number, queue);
    }

    pub(super) fn scaled_event(
        &mut self,
        number: usize,
        life: u64,
        queue: usize,
        happens: Happens,
    ) {
        let listener = &self.listeners[number];
        if !listener.is_alive(life) || listener.leaving {
            return;
        }
        match happens {
            Happens::Step => {
                if let Some(scaled) = self.listeners[number].scaled.get_mut(&queue) {
                    scaled.tick_at = None;
                }
            }
            Happens::Begins(task) => self.begins(number, queue, task),
            Happens::Looks(task) => self.looks(number, queue, task),
            Happens::Got(task, full, batch) => self.has_got(number, queue, task, full, batch),
            Happens::Fails(task, kind) => self.get_fails(number, queue, task, kind),
            Happens::Handled(task, message, receipt) => {
                self.has_handled(number, queue, task, message, receipt);
            }
            Happens::Resumes => {
                let now = self.now;
                let scaled = self.scaled(number, queue);
                if scaled.resumes_at <= now {
                    scaled.scaler.resume(now);
                }
            }
            Happens::Depth(depth) => {
                let (now, tasks) = (self.now, tasks_for(depth));
                let scaled = self.scaled(number, queue);
                scaled.depth_at = now;
                scaled.scaler.allow(tasks);
                scaled.scaler.scaled(Some(tasks), now);
            }
        }
        self.scaled_step(number, queue);
    }

    /// A listener's application pauses it.
    pub(super) fn scaled_gets_pause(&mut self, number: usize, until: Tick) {
        let listener = &mut self.listeners[number];
        let (life, queues) = (listener.life, listener.scaled.keys().copied());
        for queue in queues.collect::<Vec<_>>() {
            let scaled = self.scaled(number, queue);
            scaled.scaler.pause();
            scaled.resumes_at = scaled.resumes_at.max(until);
            scaled.excused_until = scaled.excused_until.max(until);
            self.at(until, Event::Scaled(number, life, queue, Happens::Resumes));
        }
        self.scaled_step_all(number);
    }

    /// A listener's application changes how many tasks there may be.
    pub(super) fn scaled_task_limit(&mut self, number: usize) {
        let (now, most) = (self.now, self.rng.usize(1..=MAX_TASKS));
        for scaled in self.listeners[number].scaled.values_mut() {
            scaled.max_tasks = most;
            scaled.scaler.set_max_tasks(most, now);
        }
        self.scaled_step_all(number);
    }

    /// Somebody starts a task by hand: it may find what nobody was told of.
    pub(super) fn looks_by_hand(&mut self, queue: usize) {
        let (now, mut who) = (self.now, 0..self.listeners.len());
        let found = who.find(|number| {
            let listener = &self.listeners[*number];
            listener.scaled.contains_key(&queue) && listener.paused_until <= now
        });
        if let Some(number) = found {
            self.machine(number, queue).start_more(1, now);
            self.scaled_step(number, queue);
        }
    }

    /// Who is frozen keeps nothing hidden: what its tasks hold comes back within one time-out.
    pub(super) fn scaled_paused(&mut self, number: usize) {
        let comes_back = self.now + self.plan.listeners[number].visibility;
        let listener = &self.listeners[number];
        if listener.paused_until <= comes_back {
            return;
        }
        let held = listener.scaled.values().flat_map(|s| s.held.values());
        for (id, receipt) in held.flatten() {
            let message = &mut self.queues.messages[*id];
            if message.gets == *receipt {
                message.visible_at = message.visible_at.min(comes_back);
            }
        }
    }

    /// What the tasks of a listener that dies hold comes back within one time-out.
    pub(super) fn scaled_lost(&mut self, number: usize) {
        let comes_back = self.now + self.plan.listeners[number].visibility;
        let scaled = std::mem::take(&mut self.listeners[number].scaled);
        for (id, receipt) in scaled.into_values().flat_map(|s| s.held).flat_map(|h| h.1) {
            let message = &mut self.queues.messages[id];
            if message.gets == receipt {
                message.visible_at = message.visible_at.min(comes_back);
                // Its stream ended before it did, and it has kept them hidden since: what the relay
                // knows is too early by then. The sentinel's.
                if matches!(message.announced, Announced::Due(_)) {
                    message.announced = Announced::Nobody;
                }
            }
        }
    }

    /// Leaves in good order: gives back what it holds, and says so (R10).
    pub(super) fn scaled_leaves(&mut self, number: usize) {
        let queues: Vec<usize> = self.listeners[number].scaled.keys().copied().collect();
        for queue in queues {
            let scaled = self.listeners[number].scaled.get_mut(&queue);
            let held = scaled.map(|scaled| {
                scaled.scaler.stop();
                std::mem::take(&mut scaled.held)
            });
            for (message, receipt) in held.unwrap_or_default().into_values().flatten() {
                self.gives_back(number, queue, message, receipt, Duration::ZERO);
            }
            self.scaled_step(number, queue);
        }
    }

    /// A report was answered.
    pub(super) fn scaled_reported(&mut self, call: &Call, answer: Answer) {
        let (number, queue, now) = (call.listener, call.queue, self.now);
        let Some(scaled) = self.listeners[number].scaled.get_mut(&queue) else {
            return;
        };
        if scaled.report != Some(call.number) {
            return;
        }
        scaled.report = None;
        let error = match answer {
            Answer::Accepted => None,
            Answer::Refused => Some(ErrorKind::NotFound),
            Answer::Full => Some(ErrorKind::Exhausted),
            Answer::Late => Some(ErrorKind::Timeout),
        };
        scaled.scaler.answered(error, now);
        self.scaled_step(number, queue);
    }

    /// The relay knows when messages of this queue are visible again.
    pub(super) fn scaled_hidden_known(&mut self, call: &Call, delay: Duration) {
        let (now, due) = (self.now, self.now + super::oracle::later(delay));
        for id in self.queues.list[call.queue].messages.clone() {
            let message = &mut self.queues.messages[id];
            let waits = match message.announced {
                Announced::Listener(number, _) => number == call.listener,
                Announced::Nobody => true,
                _ => false,
            };
            if waits && message.holder.is_none() && message.visible_at <= now + delay {
                message.announced = Announced::Due(due);
            }
        }
    }

    /// What is promised of these listeners besides (R8, R18, W4).
    pub(super) fn check_scaled(&mut self, number: usize) {
        let (now, listener) = (self.now, &self.listeners[number]);
        if listener.session.is_none() || listener.leaving || listener.paused_until > now {
            return;
        }
        let from = listener.paused_until.max(listener.started_at);
        let alone = listener.alone_since.map(|since| since.max(from));
        let mut wrong = None;
        for (queue, scaled) in &listener.scaled {
            let seen = scaled.looked_at.max(scaled.excused_until);
            let seen = seen.max(scaled.hangs_until).max(scaled.depth_at);
            let batch = self.plan.listeners[number].batch;
            if let Some(alone) = alone
                && scaled.has_places(batch)
                && now > alone.max(seen) + POLLED
            {
                wrong = Some(format!(
                    "W4: listener {number} has no stream, and does not look into queue {queue}: \
                     {:?}",
                    scaled.scaler
                ));
            }
            if let Some(message) = self.held_in_secret(number, *queue, scaled) {
                wrong = Some(format!(
                    "R8: listener {number} holds message {message} of queue {queue}, and the relay \
                     takes it to be idle: {:?}",
                    scaled.scaler
                ));
            }
        }
        if let Some(wrong) = wrong {
            self.violate(|| wrong);
        }
    }

    /// Returns a message that is held for long although the relay does not know of it.
    fn held_in_secret(&self, number: usize, queue: usize, scaled: &Scaled) -> Option<MessageId> {
        const LONG: Duration = Duration::from_millis(2_500);
        let listener = &self.listeners[number];
        let quiet = self.plan.may(Trouble::ReportsLost)
            || !self.is_well(number)
            || self.was_full()
            || self.now < listener.ok_from + LONG
            || self.now < listener.partition_until + ANSWER + LONG
            || self.now < listener.stalled_until.max(self.relay.paused_until) + LONG;
        if quiet {
            return None;
        }
        let stream = self.relay.streams.get(&listener.conn?)?;
        let place = stream.places.get(&queue).copied().unwrap_or_default();
        if place.is_busy(stream, self.now) {
            return None;
        }
        let held = scaled.held.values().flatten();
        held.map(|(id, _)| *id)
            .find(|id| self.now > self.queues.messages[*id].got_at + LONG)
    }

    fn make_scaled(&self) -> Scaled {
        let config = ScalerConfig {
            max_tasks: MAX_TASKS,
            idle: IdleBackoff::default(),
            away: AWAY,
            empty_is_certain: true,
            fault: self.fault,
        };
        Scaled {
            scaler: Scaler::new(config, true),
            held: BTreeMap::new(),
            tries: BTreeMap::new(),
            tick_at: None,
            report: None,
            looked_at: self.now,
            excused_until: self.now,
            hangs_until: self.now,
            depth_at: self.now,
            resumes_at: self.now,
            max_tasks: MAX_TASKS,
        }
    }

    fn scaled(&mut self, number: usize, queue: usize) -> &mut Scaled {
        let scaled = self.listeners[number].scaled.get_mut(&queue);
        scaled.expect("it has a machine")
    }

    fn machine(&mut self, number: usize, queue: usize) -> &mut Scaler {
        &mut self.scaled(number, queue).scaler
    }

    /// Returns whether a get of this queue hangs: two at a time never do.
    fn is_hanging(&self, number: usize, queue: usize) -> bool {
        let scaled = self.listeners[number].scaled.get(&queue);
        scaled.is_some_and(|scaled| scaled.hangs_until > self.now)
    }

    fn scaled_step_all(&mut self, number: usize) {
        let queues: Vec<usize> = self.listeners[number].scaled.keys().copied().collect();
        for queue in queues {
            self.scaled_step(number, queue);
        }
    }

    /// Does what the machine says until it waits.
    fn scaled_step(&mut self, number: usize, queue: usize) {
        loop {
            let (now, chance) = (self.now, self.rng.f64());
            let listener = &mut self.listeners[number];
            let life = listener.life;
            let Some(scaled) = listener.scaled.get_mut(&queue) else {
                return;
            };
            let event = |happens| Event::Scaled(number, life, queue, happens);
            match scaled.scaler.step(now, chance) {
                Step::Start(task) => self.within_millis(2, event(Happens::Begins(task))),
                Step::Appoint(task, until) => self.at(until, event(Happens::Begins(task))),
                Step::AskDepth => {
                    let depth = self.queues.list[queue].messages.len() as u64;
                    self.within_millis(20, event(Happens::Depth(depth)));
                }
                Step::Report(due) => self.scaled_report(number, queue, due),
                Step::Wait(at) => {
                    if at != Tick::NEVER && scaled.tick_at.is_none_or(|earlier| at < earlier) {
                        scaled.tick_at = Some(at);
                        self.at(at, event(Happens::Step));
                    }
                    return self.rouse(number, queue);
                }
            }
        }
    }

    /// Lets those look that are to sleep no longer: a sleeping task asks again now and then.
    fn rouse(&mut self, number: usize, queue: usize) {
        let (now, listener) = (self.now, &self.listeners[number]);
        let life = listener.life;
        let Some(scaled) = listener.scaled.get(&queue) else {
            return;
        };
        for task in scaled.scaler.tasks().roused(now) {
            let event = Event::Scaled(number, life, queue, Happens::Begins(task));
            self.at(now, event);
        }
    }

    fn begins(&mut self, number: usize, queue: usize, task: TaskId) {
        let (now, life) = (self.now, self.listeners[number].life);
        let event = |happens| Event::Scaled(number, life, queue, happens);
        if self.machine(number, queue).tasks().works(task) {
            // It was roused, and this is when it would have risen.
            return;
        }
        let batch = self.plan.listeners[number].batch;
        let scaled = self.scaled(number, queue);
        if scaled
            .held
            .get(&task)
            .is_some_and(|held| held.len() >= batch)
        {
            scaled.scaler.only_handles(task);
            return;
        }
        match self.machine(number, queue).begin(task, now) {
            Begin::Leave => {}
            Begin::Sleep(until) => self.at(until, event(Happens::Begins(task))),
            Begin::Get => {
                let may = self.may(Trouble::GetsHang) && !self.is_hanging(number, queue);
                let hangs = may && self.rng.u32(0..10) == 0;
                if hangs {
                    self.scaled(number, queue).hangs_until = now + HANG;
                }
                let after = if hangs {
                    HANG
                } else {
                    Duration::from_millis(5)
                };
                self.after(after, event(Happens::Looks(task)));
            }
        }
    }

    fn looks(&mut self, number: usize, queue: usize, task: TaskId) {
        let (now, life) = (self.now, self.listeners[number].life);
        let event = |happens| Event::Scaled(number, life, queue, happens);
        let fails = self.may(Trouble::GetsFail) && self.rng.u32(0..4) == 0;
        if fails && self.rng.bool() {
            // Turned away, or never arrived.
            let kind = match self.rng.bool() {
                true => ErrorKind::Exhausted,
                false => ErrorKind::Unavailable,
            };
            return self.failed_inside(number, queue, task, kind);
        }
        let (visibility, batch) = {
            let plan = &self.plan.listeners[number];
            (plan.visibility, plan.batch)
        };
        let by = (number, life);
        let held = self.scaled(number, queue).held.get(&task);
        let asked = batch - held.map_or(0, Vec::len);
        let got: Vec<_> = (0..asked)
            .map_while(|_| self.queues.get(queue, by, now, now + visibility))
            .collect();
        for (message, _) in &got {
            let message = &mut self.queues.messages[*message];
            (message.announced, message.got_at) = (Announced::Listener(number, life), now);
        }
        if fails {
            // The answer is lost: nobody holds them, and nobody knows.
            for (message, _) in got {
                self.queues.messages[message].holder = None;
            }
            return self.failed_inside(number, queue, task, ErrorKind::Unavailable);
        }
        let scaled = self.scaled(number, queue);
        scaled.tries.remove(&task);
        scaled.looked_at = now;
        // From now on they are its: they come back only if it dies or gives them back.
        if !got.is_empty() {
            scaled.held.entry(task).or_default().extend(&got);
        }
        // A long way back is when most may come in between (R17).
        let back = 10 + 2 * self.plan.listeners[number].latency;
        let full = got.len() >= asked;
        self.within_millis(back, event(Happens::Got(task, full, got)));
    }

    /// A get failed: what tries again sees it first, where there is such a wrapper.
    fn failed_inside(&mut self, number: usize, queue: usize, task: TaskId, kind: ErrorKind) {
        let (now, life, fault) = (self.now, self.listeners[number].life, self.fault);
        let event = |happens| Event::Scaled(number, life, queue, happens);
        let wait = number.is_multiple_of(2).then(|| {
            let scaled = self.listeners[number].scaled.get_mut(&queue);
            let tries = scaled.expect("it has a machine").tries.entry(task);
            let config = RetryConfig::default();
            let tries = tries.or_insert_with(|| RetryState::new(&config, RetryOn::Refusals, fault));
            tries.next_wait(&Error::new(kind, "the get failed"), &mut self.rng)
        });
        match wait.flatten() {
            Some(wait) => {
                let excused_until = now + wait + Duration::from_secs(5);
                let scaled = self.scaled(number, queue);
                scaled.excused_until = scaled.excused_until.max(excused_until);
                self.after(wait, event(Happens::Looks(task)));
            }
            None => {
                self.scaled(number, queue).tries.remove(&task);
                self.within_millis(10, event(Happens::Fails(task, kind)));
            }
        }
    }

    fn has_got(
        &mut self,
        number: usize,
        queue: usize,
        task: TaskId,
        full: bool,
        batch: Vec<(MessageId, u64)>,
    ) {
        let (now, life, chance) = (self.now, self.listeners[number].life, self.rng.f64());
        let event = |happens| Event::Scaled(number, life, queue, happens);
        if batch.is_empty() {
            self.log.note(now, "empty", &[number as u64, queue as u64]);
            let scaled = self.scaled(number, queue);
            if !scaled.held.contains_key(&task) {
                scaled.scaler.holds_nothing(task);
            }
            let (_, idle) = scaled.scaler.idle(task, now, chance);
            let rest = scaled.scaler.rest(task, idle, now, chance);
            return self.rests(number, queue, task, rest);
        }
        self.machine(number, queue).found(task, full, now);
        for (message, receipt) in batch {
            self.log
                .note(now, "got", &[number as u64, queue as u64, message as u64]);
            let takes = self.handling(number, message);
            self.within_millis(takes, event(Happens::Handled(task, message, receipt)));
        }
        self.places_free(number, queue, task);
        if self.may(Trouble::CrashHolding) && self.rng.u32(0..8) == 0 {
            let within = self.plan.listeners[number].handling * 2;
            self.within_millis(within, Event::ListenerCrashes(number, life));
        }
    }

    /// Has a task do what it is to do next.
    fn rests(&mut self, number: usize, queue: usize, task: TaskId, rest: Rest) {
        let event = Event::Scaled(
            number,
            self.listeners[number].life,
            queue,
            Happens::Begins(task),
        );
        match rest {
            Rest::Again => self.at(self.now, event),
            Rest::Sleep(until) if until != Tick::NEVER => self.at(until, event),
            Rest::Sleep(_) | Rest::Leave => {}
        }
    }

    /// Lets a task use the places that it has left.
    fn places_free(&mut self, number: usize, queue: usize, task: TaskId) {
        let (now, batch) = (self.now, self.plan.listeners[number].batch);
        let held = self.scaled(number, queue).held.get(&task);
        let held = held.map_or(0, Vec::len);
        if held == 0 || held >= batch {
            return;
        }
        let (half, chance) = (held * 2 <= batch, self.rng.f64());
        let scaled = self.scaled(number, queue);
        scaled.scaler.places_free(task, half, now, chance);
        if scaled.scaler.tasks().works(task) {
            return;
        }
        let until = scaled.scaler.sleeps_until(task, now).unwrap_or(now);
        self.rests(number, queue, task, Rest::Sleep(until));
    }

    /// Chooses how long a message is handled at most, in milliseconds; it is kept hidden meanwhile.
    fn handling(&mut self, number: usize, message: MessageId) -> u64 {
        // Handlers need what the relay is behind as well.
        let alone = self.listeners[number].alone_since;
        let alone = alone.is_some_and(|since| since <= self.now);
        let hangs = self.may(Trouble::HandlersHang) && (alone || self.rng.u32(0..4) == 0);
        let takes = match hangs {
            // Longer than a listener whose relay is away may go without a look.
            true => 100_000,
            false if self.healed => 20,
            false => self.plan.listeners[number].handling,
        };
        let visibility = self.plan.listeners[number].visibility;
        self.queues.messages[message].visible_at =
            self.now + Duration::from_millis(takes) + visibility;
        takes
    }

    fn get_fails(&mut self, number: usize, queue: usize, task: TaskId, kind: ErrorKind) {
        let now = self.now;
        let visibility = self.plan.listeners[number].visibility;
        let scaled = self.listeners[number].scaled.get_mut(&queue);
        let scaled = scaled.expect("it has a machine");
        scaled.excused_until = now + Duration::from_secs(5);
        if !scaled.held.contains_key(&task) {
            scaled.scaler.holds_nothing(task);
        }
        let machine = &mut scaled.scaler;
        let rest = machine.failed(task, kind, visibility, now, &mut self.rng);
        self.rests(number, queue, task, rest);
    }

    fn has_handled(
        &mut self,
        number: usize,
        queue: usize,
        task: TaskId,
        message: MessageId,
        receipt: u64,
    ) {
        let fails = !self.healed && self.rng.u32(0..8) == 0;
        if fails {
            let delay = Duration::from_millis(self.rng.u64(0..5_000));
            self.gives_back(number, queue, message, receipt, delay);
        } else {
            self.queues.delete(message, receipt);
            self.log
                .note(self.now, "done", &[number as u64, message as u64]);
        }
        let (now, batch) = (self.now, self.plan.listeners[number].batch);
        let scaled = self.scaled(number, queue);
        if !scaled.has_places(batch) {
            // There was no room to look for anything.
            scaled.hangs_until = scaled.hangs_until.max(now);
        }
        let Some(held) = scaled.held.get_mut(&task) else {
            return;
        };
        held.retain(|(other, _)| *other != message);
        if !held.is_empty() {
            return self.places_free(number, queue, task);
        }
        scaled.held.remove(&task);
        // What its get on the way brings is looked at when it is there.
        if !scaled.scaler.tasks().is_getting(task) {
            let rest = scaled.scaler.done(task, now);
            self.rests(number, queue, task, rest);
        }
    }

    /// Shows a message again after `delay`, and has it said.
    fn gives_back(
        &mut self,
        number: usize,
        queue: usize,
        message: MessageId,
        receipt: u64,
        delay: Duration,
    ) {
        let (now, life) = (self.now, self.listeners[number].life);
        if self.queues.release(message, receipt, now + delay) {
            self.queues.messages[message].announced = Announced::Listener(number, life);
            self.machine(number, queue).hidden(delay, now);
        }
    }

    fn scaled_report(&mut self, number: usize, queue: usize, due: Due) {
        let now = self.now;
        let address = self.queues.list[queue].address.clone();
        let listener = &mut self.listeners[number];
        let (life, session) = (listener.life, listener.session.as_mut());
        let scaled = listener.scaled.get_mut(&queue).expect("it has a machine");
        let (active, total) = scaled.scaler.active();
        let mut report = Report {
            state: due.state,
            sequence: due.sequence,
            visible_in: due.visible_in,
            active_dequeue_tasks: u32::try_from(active).expect("few"),
            total_dequeue_tasks: u32::try_from(total).expect("few"),
            ..Report::new(address)
        };
        let Some(Ok(subscription)) = session.map(|session| session.report(&mut report)) else {
            scaled.scaler.answered(Some(ErrorKind::Unavailable), now);
            return;
        };
        scaled.report = Some(report.number);
        let call = Call::scaled(number, life, subscription, report, queue);
        self.send_report(call);
    }
}

impl Scaled {
    /// Returns whether there is room for one more message.
    fn has_places(&self, batch: usize) -> bool {
        let full = |held: &&Vec<_>| held.len() >= batch;
        self.held.values().filter(full).count() < self.max_tasks
    }

    /// Returns whether no slot is free for another task.
    pub(super) fn is_full(&self) -> bool {
        self.scaler.active().0 >= self.max_tasks
    }

    /// Returns whether the queue was looked into since, or need not or cannot be now: it was when the
    /// message was due, by tasks that have work since, no task has a place left, or the queue fails, or
    /// one has work, or there may be one only, and the next get hangs.
    pub(super) fn has_looked(&self, batch: usize, due: Tick, from: Tick, now: Tick) -> bool {
        let stuck = now < self.hangs_until && (!self.held.is_empty() || self.is_full());
        let seen = !self.held.is_empty() && self.looked_at >= due;
        self.looked_at >= from
            || seen
            || !self.has_places(batch)
            || stuck
            || now < self.excused_until + LOOKED
    }
}

/// Returns how many tasks a depth needs.
fn tasks_for(depth: u64) -> usize {
    let policy = StepPolicy::new([(2, 1), (4, 2)], MAX_TASKS).expect("it ascends");
    policy.tasks(&Load {
        depth,
        ..Load::default()
    })
}

impl super::listener::Listener {
    pub(super) fn is_scaled(&self) -> bool {
        !self.scaled.is_empty()
    }
}
