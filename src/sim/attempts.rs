//! Attempts: listeners that share one queue and its counts, and a poison queue.
//!
//! Listeners decide by the production's [`Attempts`](crate::listener::poison::Attempts). The
//! model's expectation follows from the ends of all gets of a message, by any listener. A message
//! goes to the poison queue after its maximum of attempts, or after a rejection, or after so
//! many gets that it may crash its process each time. Every other message is handled, and none is
//! deleted before.

use std::time::{Duration, SystemTime};

use super::{
    plan::{ListenerPlan, Plan, Trouble, Work, address, seconds},
    queue::{End, MessageId},
    world::World,
};
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind},
    listener::poison::Verdict,
    queue::{self, Receipt},
    types::{GroupName, Selector},
};

/// A seed's choices for the shared queue and its messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttemptPlan {
    /// Attempts of a message.
    pub(super) max: u32,
    /// The queue removes gets without a try from its count.
    pub(super) takes_back: bool,
    /// Its messages are of several kinds.
    kinds: Option<u64>,
    /// Some messages crash their process.
    deadly: bool,
}

/// The present outages and their ends.
#[derive(Debug, Default)]
pub(super) struct Outages {
    /// The blob store with the bodies of half of the messages.
    pub(super) store: Tick,
    /// A dependency of the handlers: they postpone each message.
    pub(super) handlers: Tick,
}

/// How the handler of a message ends, without outages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Good,
    /// It fails until its last attempt.
    Shaky,
    Bad,
    Rejected,
    /// It crashes its process.
    Deadly,
}

/// With more gets than this many times its attempts, a message may crash its process.
const DEADLY: u32 = 20;

const TROUBLES: [Trouble; 14] = [
    Trouble::Reset,
    Trouble::RelayCrash,
    Trouble::PauseListener,
    Trouble::ListenerCrash,
    Trouble::ListenerLeave,
    Trouble::ListenerLeave,
    Trouble::CrashHolding,
    Trouble::GetsFail,
    Trouble::HandlersHang,
    Trouble::GetsFail,
    Trouble::StoreAway,
    Trouble::Postponing,
    Trouble::CallsFail,
    Trouble::CallsFail,
];

impl Default for AttemptPlan {
    fn default() -> Self {
        Self {
            max: 5,
            takes_back: true,
            kinds: None,
            deadly: false,
        }
    }
}

impl AttemptPlan {
    /// Returns whether a seed is about attempts.
    pub(super) fn is_own(&self) -> bool {
        self.kinds.is_some()
    }
}

impl Plan {
    /// Up to four listeners on one queue, most of whose messages cannot be handled at once.
    pub(super) fn share_queue(&mut self, seed: u64, rng: &mut fastrand::Rng) {
        let deadly = rng.u32(0..4) == 0;
        let fleet = (seed % 32 == 12).then(|| GroupName::new("fleet").expect("a name"));
        let queue = address("l0-0");
        let visibility = seconds(if deadly { 2 } else { rng.u64(2..8) });
        let listener = |_| {
            let mut plan = ListenerPlan::new(vec![Selector::from(&queue)], rng);
            (plan.scaled, plan.mute, plan.visibility) = (true, false, visibility);
            (plan.group, plan.capacity) = (fleet.clone(), rng.u32(1..=6));
            (plan.batch, plan.handling) = (rng.usize(1..=4), [20, 500, 2_000][rng.usize(0..3)]);
            plan
        };
        self.listeners = (0..1 + seed / 16 % 4).map(listener).collect();
        self.queues = vec![queue];
        self.works = vec![Work::Put, Work::PutTwice, Work::PutDelayed, Work::PutBatch];
        let some = |_: &Trouble| rng.bool();
        self.troubles = TROUBLES.into_iter().filter(some).collect();
        (self.work_gap, self.trouble_gap) = (4_000, 8_000);
        (self.active, self.steady) = (seconds(rng.u64(60..120)), None);
        self.cursors = None;
        self.attempts = AttemptPlan {
            max: if deadly { 1 } else { rng.u32(1..=4) },
            takes_back: rng.bool(),
            kinds: Some(seed),
            deadly,
        };
    }
}

impl World {
    /// Returns how a message's handler ends: a part of the seed's choice, like the message itself.
    pub(super) fn kind_of(&self, id: MessageId) -> Kind {
        let plan = self.plan.attempts;
        let Some(seed) = plan.kinds else {
            return Kind::Shaky;
        };
        let mut rng = fastrand::Rng::with_seed(seed ^ (id as u64) << 32);
        match rng.u32(0..20) {
            0..10 => Kind::Good,
            10..14 => Kind::Shaky,
            14..17 => Kind::Bad,
            17 if plan.deadly => Kind::Deadly,
            _ => Kind::Rejected,
        }
    }

    /// Returns a message as a get returned it.
    pub(super) fn as_got(&self, id: MessageId, receipt: u64) -> queue::Message {
        let message = &self.queues.messages[id];
        let name = queue::MessageId::new(&id.to_string());
        let receipt_of_it = Receipt::new(name, &receipt.to_string());
        let count = message.get(receipt).count;
        let put_at = wall(message.put_at);
        let mut got = queue::Message::new(receipt_of_it, Vec::new(), count, put_at);
        if self.outages.store > self.now && id.is_multiple_of(2) {
            let error = Error::new(ErrorKind::Unavailable, "the blob store is away");
            got.fault = Some(error);
        }
        got
    }

    /// Returns how the handler of a message ends; `None`: it is handled.
    pub(super) fn verdict(&mut self, id: MessageId) -> Option<Verdict> {
        if self.plan.attempts.kinds.is_none() {
            return (!self.healed && self.rng.u32(0..8) == 0).then_some(Verdict::Retry);
        }
        let away = self.outages.handlers > self.now;
        if !self.healed && (away || self.may(Trouble::Postponing) && self.rng.u32(0..6) == 0) {
            let delay = Duration::from_millis(self.rng.u64(500..8_000));
            return Some(Verdict::Postponed(delay));
        }
        match self.kind_of(id) {
            Kind::Bad => Some(Verdict::Retry),
            Kind::Shaky => {
                let fails = self.queues.messages[id].failed() + 1 < self.plan.attempts.max;
                fails.then_some(Verdict::Retry)
            }
            Kind::Rejected => Some(Verdict::Rejected),
            Kind::Good | Kind::Deadly => None,
        }
    }

    /// A listener puts a message into the poison queue because of its handler's verdict; `None`:
    /// without an attempt.
    pub(super) fn check_poisoned(
        &mut self,
        number: usize,
        (id, receipt): (MessageId, u64),
        said: Option<Verdict>,
    ) {
        let (message, max) = (&self.queues.messages[id], self.plan.attempts.max);
        let by = (number, self.listeners[number].life);
        let (kind, get) = (self.kind_of(id), message.get(receipt));
        let visibility = self.plan.listeners[number].visibility;
        let (attempts, _) = message.attempts(receipt, by);
        let wrong = match said {
            None => {
                let old_enough = self.now >= message.put_at + visibility * (max * DEADLY);
                (get.count <= max * DEADLY || !old_enough).then_some("without a try")
            }
            Some(Verdict::Rejected) => (kind != Kind::Rejected).then_some("that was not rejected"),
            Some(_) if get.end != End::Failed => Some("whose handler did not fail"),
            Some(_) if attempts < max => Some("that has attempts left"),
            Some(_) => (kind == Kind::Good).then_some("that can be handled"),
        };
        self.totals.poisoned += 1;
        if let Some(wrong) = wrong {
            let gets = message.history.clone();
            self.violate(|| format!("attempts: message {id} is poisoned {wrong}: {gets:?}"));
        }
    }

    /// A listener releases a message after a failed attempt: it had attempts left, as far as the
    /// listener knew at its get.
    pub(super) fn check_tried_again(
        &mut self,
        number: usize,
        (id, receipt): (MessageId, u64),
        in_doubt: u32,
    ) {
        let (message, max) = (&self.queues.messages[id], self.plan.attempts.max);
        let by = (number, self.listeners[number].life);
        let (attempts, _) = message.attempts(receipt, by);
        if attempts >= max + in_doubt {
            let gets = message.history.clone();
            self.violate(|| {
                format!("attempts: message {id} is tried again after {attempts} attempts: {gets:?}")
            });
        }
    }

    /// A message is handed to its handler.
    pub(super) fn check_handed_over(&mut self, number: usize, queue: usize, id: MessageId) {
        if self.listeners[number].scaled[&queue].handled.contains(&id) {
            self.violate(|| {
                format!("attempts: listener {number} handles message {id} again, which it handled")
            });
        }
    }

    /// A message is deleted: it was handled, or is in the poison queue.
    pub(super) fn check_deleted(&mut self, id: MessageId) {
        let message = &self.queues.messages[id];
        if !message.handled && !message.poisoned {
            self.violate(|| format!("attempts: message {id} is deleted, and was not handled"));
        }
    }
}

/// Returns the wall clock's time.
pub(super) fn wall(now: Tick) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(now.as_nanos())
}
