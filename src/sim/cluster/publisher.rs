//! Publishers: a message is put, and a relay is notified. Without an OK, another relay is.

use std::{sync::Arc, time::Duration};

use super::{
    drain::Draining,
    oracle::Promise,
    plan::Trouble,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    sim::{
        oracle::later,
        queue::{Announced, MessageId},
    },
    types::{Notification, cluster::queue_hash},
};

/// A request for the notification of a message.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) message: MessageId,
    pub(super) relay: usize,
    delay: Duration,
    done: bool,
}

/// A request that a relay has counted and not answered (C8).
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) attempt: usize,
    position: u64,
    /// By the relay's clock.
    until: Tick,
    promise: Promise,
    messages: Vec<MessageId>,
}

/// A relay answers within this time.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);
/// A publisher waits for an answer for this long.
const ANSWER: Duration = Duration::from_secs(3);

impl World {
    /// Puts a message into a queue, and notifies a relay of it.
    pub(super) fn put(&mut self, queue: usize, delay: Duration) {
        let message = self.put_without_notification(queue, delay);
        self.expect_looks(message);
        self.notify(message, delay);
    }

    /// Puts a message, and notifies this relay of it.
    pub(super) fn put_at(&mut self, queue: usize, relay: usize, delay: Duration) -> MessageId {
        let message = self.put_without_notification(queue, delay);
        self.expect_looks(message);
        self.notify_at(message, delay, relay);
        message
    }

    pub(super) fn put_without_notification(&mut self, queue: usize, delay: Duration) -> MessageId {
        let (now, visible_at) = (self.now, self.now + delay);
        let by = Announced::Unannounced;
        let message = self.queues.put(queue, now, visible_at, by);
        self.totals.count("messages", 1);
        self.log.note(now, "puts", &[queue as u64, message as u64]);
        message
    }

    fn notify(&mut self, message: MessageId, delay: Duration) {
        let relay = match self.aimed_at.filter(|_| self.rng.bool()) {
            Some(relay) => relay,
            None => self.rng.usize(0..self.relays.len()),
        };
        self.notify_at(message, delay, relay);
    }

    fn notify_at(&mut self, message: MessageId, delay: Duration, relay: usize) {
        let attempt = self.attempts.len();
        self.attempts.push(Attempt {
            message,
            relay,
            delay,
            done: false,
        });
        let transit = self.transit();
        self.after(transit, Event::Notify(attempt));
        self.after(ANSWER, Event::Answer(attempt, false));
    }

    /// A request reaches its relay.
    pub(super) fn notified(&mut self, number: usize) {
        let attempt = &self.attempts[number];
        let (relay, message, delay) = (attempt.relay, attempt.message, attempt.delay);
        let (now, life) = (self.local(relay), self.relays[relay].life);
        let queue = self.queues.messages[message].queue;
        let Some(run) = &mut self.relays[relay].run else {
            return self.send_answer(number, false);
        };
        let draining = run.draining.as_ref();
        if draining.is_some_and(Draining::refuses_notifications) {
            return self.send_answer(number, false);
        }
        let notification = Notification {
            payload_size: message as u64 + 1,
            messages: 1,
            // A relay whose clock runs too fast must not wake too early.
            delay: delay + delay / 50,
            ..Notification::new(self.queues.list[queue].address.clone())
        };
        let publisher: Arc<str> = "publisher".into();
        let counted = run.hub.notify_all(&publisher, &[notification], now);
        counted.expect("there is room");
        run.unanswered.push_back(Unanswered {
            attempt: number,
            position: run.hub.increments.appended(),
            until: now + CONFIRMED_WITHIN,
            promise: Promise {
                due: self.now + later(delay + delay / 25),
                relay,
                life,
                delayed: !delay.is_zero(),
            },
            messages: vec![message],
        });
        self.log
            .note(self.now, "counts", &[relay as u64, message as u64]);
        self.quiet_counted(relay, message);
        let sums = self.oracle.notified.entry(queue).or_default();
        sums.notifications += 1;
        sums.payload_size += message as u64 + 1;
        sums.messages += 1;
        let hash = queue_hash(&self.queues.list[queue].address);
        self.oracle.caused_at.insert(hash, self.now);
        self.after(CONFIRMED_WITHIN * 102 / 100, Event::AnswerDue(relay));
        if self.strikes(Trouble::CrashBeforeFrame) {
            return self.crash_at_once(relay);
        }
        self.answer_publishers(relay);
    }

    /// Answers the requests whose causes are confirmed, and refuses those that wait in vain.
    pub(super) fn answer_publishers(&mut self, relay: usize) {
        let now = self.local(relay);
        loop {
            let Some(run) = &mut self.relays[relay].run else {
                return;
            };
            let Some(front) = run.unanswered.front() else {
                return;
            };
            let confirmed = run.node.confirmed_position() >= front.position;
            let given_up = run.node.link().is_degraded(now) || now >= front.until;
            if !confirmed && !given_up {
                return;
            }
            let front = run.unanswered.pop_front().expect("it was there");
            self.totals.count("confirmed", u64::from(confirmed));
            if confirmed {
                for message in front.messages {
                    let due = front.promise.due.max(self.now);
                    let promise = Promise {
                        due,
                        ..front.promise
                    };
                    self.promised(message, promise);
                }
            }
            self.send_answer(front.attempt, confirmed);
            if confirmed && self.strikes(Trouble::CrashAfterOk) {
                return self.crash_at_once(relay);
            }
        }
    }

    pub(super) fn send_answer(&mut self, attempt: usize, ok: bool) {
        let transit = self.transit();
        self.after(transit, Event::Answer(attempt, ok));
    }

    /// The publisher has an answer, or waits no longer.
    pub(super) fn answered(&mut self, number: usize, ok: bool) {
        let attempt = &mut self.attempts[number];
        if std::mem::replace(&mut attempt.done, true) {
            return;
        }
        let (message, delay) = (attempt.message, attempt.delay);
        let name = if ok { "answered" } else { "refused" };
        self.totals.count(name, 1);
        self.log.note(self.now, name, &[message as u64]);
        if !ok {
            self.within_millis(500, Event::NotifyAgain(message, delay));
        }
    }

    pub(super) fn notify_again(&mut self, message: MessageId, delay: Duration) {
        // The rest of the delay.
        let visible_at = self.queues.messages[message].visible_at;
        let left = delay.min(visible_at.since(self.now));
        self.notify(message, left);
    }
}
