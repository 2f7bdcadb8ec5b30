//! The handling of messages: the production code decides, the model carries it out.

use std::time::Duration;

use super::{
    super::{
        attempts::{Kind, wall},
        plan::Trouble,
        queue::{Announced, End, MessageId},
        world::{Event, World},
    },
    Happens, InFlight,
};
use crate::{
    listener::{
        poison::{Arrival, Disposition, Settled, Verdict},
        scaling::TaskId,
    },
    queue,
};

/// A message and the receipt of its get.
type Got = (MessageId, u64);

impl World {
    /// Decides how to treat the messages of a get, and starts that.
    pub(super) fn arrive(&mut self, number: usize, queue: usize, task: TaskId, batch: Vec<Got>) {
        let now = wall(self.now);
        let as_got = |(id, receipt): &Got| self.as_got(*id, *receipt);
        let messages: Vec<_> = batch.iter().map(as_got).collect();
        let attempts = &self.scaled(number, queue).attempts;
        let arrivals = messages.iter().map(|one| attempts.on_received(one, now));
        let arrivals: Vec<_> = arrivals.collect();
        let by = (number, self.listeners[number].life);
        for ((got, message), arrival) in batch.into_iter().zip(messages).zip(arrivals) {
            self.log.note(
                self.now,
                "got",
                &[number as u64, queue as u64, got.0 as u64],
            );
            let handles = matches!(arrival, Arrival::Handle(_));
            let one = InFlight {
                message,
                arrival,
                in_doubt: self.queues.messages[got.0].attempts(got.1, by).1,
            };
            self.scaled(number, queue).in_flight.insert(got, one);
            let takes = match handles {
                true => self.hands_over(number, queue, got),
                false => 10,
            };
            let handled = Happens::Handled(task, got.0, got.1);
            self.within_millis(takes, Event::Scaled(number, by.1, queue, handled));
        }
    }

    /// Hands a message to its handler; returns the maximum handling time in milliseconds.
    fn hands_over(&mut self, number: usize, queue: usize, got: Got) -> u64 {
        self.check_handed_over(number, queue, got.0);
        if !self.healed && self.kind_of(got.0) == Kind::Deadly {
            let life = self.listeners[number].life;
            self.after_millis(20, Event::ListenerCrashes(number, life));
        }
        self.handling(number, got)
    }

    /// Chooses the maximum handling time of a message in milliseconds. The message is kept hidden
    /// during the handling, unless another listener has got it.
    fn handling(&mut self, number: usize, (id, receipt): Got) -> u64 {
        // Handlers depend on the same network as the relay.
        let alone = self.listeners[number].alone_since;
        let alone = alone.is_some_and(|since| since <= self.now);
        let hangs = self.may(Trouble::HandlersHang) && (alone || self.rng.u32(0..4) == 0);
        let takes = match hangs {
            // Failed messages must be retried before the end.
            true if self.plan.attempts.is_own() => 30_000,
            // Longer than the longest pause between two polls while the relay is away.
            true => 100_000,
            false if self.healed => 20,
            false => self.plan.listeners[number].handling,
        };
        let visibility = self.plan.listeners[number].visibility;
        let message = &mut self.queues.messages[id];
        if message.gets == receipt {
            message.visible_at = self.now + Duration::from_millis(takes) + visibility;
        }
        takes
    }

    pub(super) fn has_handled(&mut self, number: usize, queue: usize, task: TaskId, got: Got) {
        if let Some(one) = self.scaled(number, queue).in_flight.remove(&got) {
            self.ends(number, queue, got, &one);
        }
        let (now, batch) = (self.now, self.plan.listeners[number].batch);
        let scaled = self.scaled(number, queue);
        if !scaled.has_places(batch) {
            // There was no free place for a poll until now.
            scaled.excused_until = scaled.excused_until.max(now);
        }
        let Some(held) = scaled.held.get_mut(&task) else {
            return;
        };
        held.retain(|(other, _)| *other != got.0);
        if !held.is_empty() {
            return self.places_free(number, queue, task);
        }
        scaled.held.remove(&task);
        // The messages of a get in flight are treated when they arrive.
        if !scaled.scaler.tasks.is_getting(task) {
            let rest = scaled.scaler.done(task, now);
            self.rests(number, queue, task, rest);
        }
    }

    fn ends(&mut self, number: usize, queue: usize, got: Got, one: &InFlight) {
        let attempts = match &one.arrival {
            Arrival::Handle(attempts) => *attempts,
            Arrival::Delete(settled) => {
                return self.deletes(number, queue, got, one, *settled);
            }
            Arrival::Unreadable(error) => {
                self.was_untried(got);
                let attempts = &mut self.scaled(number, queue).attempts;
                let disposition = attempts.on_unreadable(&one.message, error);
                return self.disposes(number, queue, got, one, disposition, None);
            }
            Arrival::PoisonUntried => {
                let disposition = Disposition::Poison;
                return self.disposes(number, queue, got, one, disposition, None);
            }
        };
        let Some(verdict) = self.verdict(got.0) else {
            self.queues.messages[got.0].handled = true;
            self.scaled(number, queue).handled.insert(got.0);
            self.log
                .note(self.now, "done", &[number as u64, got.0 as u64]);
            return self.deletes(number, queue, got, one, Settled::Handled);
        };
        let untried = matches!(verdict, Verdict::Postponed(_));
        match untried {
            true => self.was_untried(got),
            false => self.queues.ended(got, End::Failed),
        }
        let gone = self.queues.messages[got.0].gets != got.1;
        let records = &mut self.scaled(number, queue).attempts;
        if !gone {
            let disposition = records.on_failed(&one.message, attempts, verdict);
            self.disposes(number, queue, got, one, disposition, Some(verdict));
        } else if untried {
            records.uncount(&one.message.id);
        }
    }

    /// Records a get without a try. The queue removes it from its count if it can, and if it is the
    /// newest get.
    fn was_untried(&mut self, got: Got) {
        let gone = self.queues.messages[got.0].gets != got.1;
        let end = match gone || !self.plan.attempts.takes_back {
            true => End::Untaken,
            false => End::Untried,
        };
        self.queues.ended(got, end);
    }

    /// Releases a message of a listener that stops.
    pub(super) fn abandons(&mut self, number: usize, queue: usize, got: Got) {
        let Some(one) = self.scaled(number, queue).in_flight.remove(&got) else {
            // Its get has not been answered.
            return self.gives_back(number, queue, got, Duration::ZERO);
        };
        self.was_untried(got);
        let attempts = &mut self.scaled(number, queue).attempts;
        let disposition = attempts.on_failed(&one.message, 1, Verdict::Postponed(Duration::ZERO));
        self.disposes(number, queue, got, &one, disposition, None);
    }

    /// Carries out the decision about a message that was not handled.
    fn disposes(
        &mut self,
        number: usize,
        queue: usize,
        got: Got,
        one: &InFlight,
        disposition: Disposition,
        verdict: Option<Verdict>,
    ) {
        let mut delay = |wait: Option<Duration>| {
            wait.unwrap_or_else(|| Duration::from_millis(self.rng.u64(0..5_000)))
        };
        match disposition {
            Disposition::ReleaseUncounted(wait) => {
                let delay = delay(wait);
                self.spares(number, queue, got, one, delay);
            }
            Disposition::Retry(wait) => {
                let delay = delay(wait);
                if verdict.is_some() {
                    self.check_tried_again(number, got, one.in_doubt);
                }
                self.gives_back(number, queue, got, delay);
            }
            Disposition::Poison => {
                if self.may(Trouble::CallsFail) && self.rng.u32(0..4) == 0 {
                    // The poison queue is away.
                    return self.gives_back(number, queue, got, Duration::from_secs(1));
                }
                self.check_poisoned(number, got, verdict);
                self.queues.messages[got.0].poisoned = true;
                let numbers = [number as u64, got.0 as u64];
                self.log.note(self.now, "poisoned", &numbers);
                self.deletes(number, queue, got, one, Settled::Poisoned);
            }
        }
    }

    /// Releases a message that was not tried. The call may fail, or its answer may be lost.
    fn spares(&mut self, number: usize, queue: usize, got: Got, one: &InFlight, delay: Duration) {
        self.totals.spared += 1;
        let fails = self.may(Trouble::CallsFail) && self.rng.u32(0..4) == 0;
        if fails && self.rng.bool() {
            self.queues.ended(got, End::Untaken);
            let visibility = self.plan.listeners[number].visibility;
            return self.gives_back(number, queue, got, visibility);
        }
        if self.plan.attempts.takes_back && self.queues.take_back(got) {
            self.queues.ended(got, End::Unheard);
            if !fails {
                let (life, message) = (self.listeners[number].life, one.message.id.clone());
                let heard = Happens::TakenBack(got.0, got.1, message);
                self.within_millis(200, Event::Scaled(number, life, queue, heard));
            }
        }
        self.gives_back(number, queue, got, delay);
    }

    /// A release was answered: the queue has removed the get from its count.
    pub(super) fn taken_back(
        &mut self,
        number: usize,
        queue: usize,
        got: Got,
        id: &queue::MessageId,
    ) {
        self.queues.ended(got, End::Untried);
        self.scaled(number, queue).attempts.count_again(id);
    }

    /// Deletes a settled message. The call may fail, or its answer may be lost.
    fn deletes(&mut self, number: usize, queue: usize, got: Got, one: &InFlight, why: Settled) {
        self.check_deleted(got.0);
        let fails = self.may(Trouble::CallsFail) && self.rng.u32(0..3) == 0;
        let happens = !fails || self.rng.bool();
        let deleted = happens && self.queues.delete(got.0, got.1);
        let attempts = &mut self.scaled(number, queue).attempts;
        match deleted && !fails {
            true => attempts.forget(&one.message.id),
            false => attempts.settle(&one.message, why),
        }
        if !happens {
            let visibility = self.plan.listeners[number].visibility;
            self.gives_back(number, queue, got, visibility);
        }
    }

    /// Releases a message with a delay, and reports it.
    fn gives_back(&mut self, number: usize, queue: usize, got: Got, delay: Duration) {
        let (now, life) = (self.now, self.listeners[number].life);
        if self.queues.release(got.0, got.1, now + delay) {
            self.queues.messages[got.0].announced = Announced::Listener(number, life);
            self.machine(number, queue).reporter.add_hidden(delay, now);
        }
    }
}
