//! The gets of such a listener's tasks: they take their time, fail, hang, and bring messages.

use std::time::Duration;

use super::{
    super::{
        plan::Trouble,
        queue::{Announced, MessageId},
        world::{Event, World},
    },
    HANG, Happens,
};
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind},
    listener::scaling::{TaskAction, TaskId},
    queue::{RetryConfig, RetryOn, RetryState},
};

impl World {
    pub(super) fn begins(&mut self, number: usize, queue: usize, task: TaskId) {
        let (now, life) = (self.now, self.listeners[number].life);
        let event = |happens| Event::Scaled(number, life, queue, happens);
        if self.machine(number, queue).tasks.works(task) {
            // The task was woken early; this is its old deadline.
            return;
        }
        let batch = self.plan.listeners[number].batch;
        let scaled = self.scaled(number, queue);
        if scaled
            .held
            .get(&task)
            .is_some_and(|held| held.len() >= batch)
        {
            scaled.scaler.stop_polling(task);
            return;
        }
        match self.machine(number, queue).begin(task, now) {
            TaskAction::Leave => {}
            TaskAction::Sleep(until) => self.at(until, event(Happens::Begins(task))),
            TaskAction::Get => {
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

    pub(super) fn looks(&mut self, number: usize, queue: usize, task: TaskId) {
        let (now, life) = (self.now, self.listeners[number].life);
        let event = |happens| Event::Scaled(number, life, queue, happens);
        let fails = self.may(Trouble::GetsFail) && self.rng.u32(0..4) == 0;
        if fails && self.rng.bool() {
            // Refused, or never arrived.
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
            // The answer is lost: no listener holds the messages or knows of them.
            for (message, _) in got {
                self.queues.messages[message].holder = None;
            }
            return self.failed_inside(number, queue, task, ErrorKind::Unavailable);
        }
        let scaled = self.scaled(number, queue);
        scaled.tries.remove(&task);
        scaled.looked_at = now;
        // From now on the listener holds them: they return only if it crashes or releases them.
        if !got.is_empty() {
            scaled.held.entry(task).or_default().extend(&got);
        }
        // During a long way back most events can happen in between, such as a wake-up since the get
        // (R17: then the task stays).
        let back = 10 + 2 * self.plan.listeners[number].latency;
        let full = got.len() >= asked;
        self.within_millis(back, event(Happens::Got(task, full, got)));
    }

    /// A get failed: the retrying wrapper sees the error first, if there is one.
    fn failed_inside(&mut self, number: usize, queue: usize, task: TaskId, kind: ErrorKind) {
        let (now, life) = (self.now, self.listeners[number].life);
        let event = |happens| Event::Scaled(number, life, queue, happens);
        let wait = number.is_multiple_of(2).then(|| {
            let scaled = self.listeners[number].scaled.get_mut(&queue);
            let tries = scaled.expect("it has a machine").tries.entry(task);
            let config = RetryConfig::default();
            let tries = tries.or_insert_with(|| RetryState::new(&config, RetryOn::Refusals));
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

    pub(super) fn has_got(
        &mut self,
        number: usize,
        queue: usize,
        task: TaskId,
        full: bool,
        batch: Vec<(MessageId, u64)>,
    ) {
        let (now, life, chance) = (self.now, self.listeners[number].life, self.rng.f64());
        if batch.is_empty() {
            self.log.note(now, "empty", &[number as u64, queue as u64]);
            let scaled = self.scaled(number, queue);
            if !scaled.held.contains_key(&task) {
                scaled.scaler.holds_nothing(task);
            }
            let (_, idle) = scaled.scaler.idle(task, now, chance);
            let rest = scaled.scaler.after_empty(task, idle, now, chance);
            return self.rests(number, queue, task, rest);
        }
        self.machine(number, queue).found(task, full, now);
        self.arrive(number, queue, task, batch);
        self.places_free(number, queue, task);
        if self.may(Trouble::CrashHolding) && self.rng.u32(0..8) == 0 {
            let within = self.plan.listeners[number].handling * 2;
            self.within_millis(within, Event::ListenerCrashes(number, life));
        }
    }

    /// Carries out the scaler's decision for a task.
    pub(super) fn rests(&mut self, number: usize, queue: usize, task: TaskId, rest: TaskAction) {
        let event = Event::Scaled(
            number,
            self.listeners[number].life,
            queue,
            Happens::Begins(task),
        );
        match rest {
            TaskAction::Get => self.at(self.now, event),
            TaskAction::Sleep(until) if until != Tick::NEVER => self.at(until, event),
            TaskAction::Sleep(_) | TaskAction::Leave => {}
        }
    }

    /// Lets a task use its free places.
    pub(super) fn places_free(&mut self, number: usize, queue: usize, task: TaskId) {
        let (now, batch) = (self.now, self.plan.listeners[number].batch);
        let held = self.scaled(number, queue).held.get(&task);
        let held = held.map_or(0, Vec::len);
        if held == 0 || held >= batch {
            return;
        }
        let (half, chance) = (held * 2 <= batch, self.rng.f64());
        let scaled = self.scaled(number, queue);
        scaled.scaler.places_free(task, half, now, chance);
        if scaled.scaler.tasks.works(task) {
            return;
        }
        let until = scaled.scaler.sleeps_until(task, now).unwrap_or(now);
        self.rests(number, queue, task, TaskAction::Sleep(until));
    }

    pub(super) fn get_fails(&mut self, number: usize, queue: usize, task: TaskId, kind: ErrorKind) {
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

    /// Returns whether a get of this queue hangs: two at a time never do.
    fn is_hanging(&self, number: usize, queue: usize) -> bool {
        let scaled = self.listeners[number].scaled.get(&queue);
        scaled.is_some_and(|scaled| scaled.hangs_until > self.now)
    }
}
