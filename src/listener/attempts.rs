//! What a listener remembers of a message from one get to the next.
//!
//! A queue counts gets. Not each of them is an attempt: the body may have been away with its blob
//! store, or the handler put the message off. Those are recorded here, and so are messages that were
//! rejected together with others, and those that were handled and could not be deleted. Bounded:
//! what was not recorded anew for long is forgotten, and such a message has fewer attempts. Knows
//! neither queue nor time: what becomes of a message is decided here, and done by `delivery` and by
//! the simulation.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use crate::{
    error::Error,
    fault::{Fault, planted},
    queue::{Message, MessageId},
};

/// Records of messages by their ids.
#[derive(Debug)]
pub(crate) struct Attempts {
    limits: AttemptLimits,
    young: HashMap<MessageId, Record>,
    /// Those that were young when there were too many.
    old: HashMap<MessageId, Record>,
    fault: Fault,
}

/// By what a listener judges each message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptLimits {
    /// Attempts of a message.
    pub(crate) max_dequeue_count: u32,
    pub(crate) visibility_timeout: Duration,
    /// There is a poison queue.
    pub(crate) poisons: bool,
}

/// What is to be done with a message that a get brought.
#[derive(Debug, Clone)]
pub(crate) enum Arrival {
    /// Nothing is left but its deletion.
    Delete(Settled),
    /// Its body is none, for this reason.
    Unreadable(Error),
    /// It may be one that ends its process: to the poison queue, without a try.
    PoisonUntried,
    /// The attempts so far, this one included, as far as is known here; and whether the message
    /// shares no run with others of its batch.
    Handle { attempts: u32, alone: bool },
}

/// What an error says of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Retry,
    RetryAfter(Duration),
    Rejected,
    /// Rejected with others of its batch.
    RejectedTogether,
    Postponed(Duration),
}

/// What becomes of a message that was not handled. A wait of `None` is the listener's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// It is seen again after this, and its get was no attempt.
    Spare(Option<Duration>),
    /// It is seen again after this.
    Retry(Option<Duration>),
    /// It goes to the poison queue.
    Poison,
}

#[derive(Debug, Default, Clone, Copy)]
struct Record {
    /// Gets that were no attempt.
    untried: u32,
    /// Of these the ones that the queue counts as well.
    uncounted: u32,
    /// A try has failed here: it does not end the process.
    tried: bool,
    /// It was in a batch that was rejected.
    isolated: bool,
    /// What was done with a message that is still to be deleted, and when it was put: a queue that
    /// was made anew may give its id to another one.
    settled: Option<(Settled, SystemTime)>,
}

/// Why nothing but its deletion is left to be done for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    Handled,
    /// It is in the poison queue.
    Poisoned,
}

/// Ids of a generation; there are two. With ids of Azure some 3 MiB in all, and more messages than
/// come round within the five minutes that one is put off.
const GENERATION: usize = 16_384;
/// A message that was got this many times as often as it has attempts may be one that ends its
/// process each time. Far more than attempts: gets of other listeners that were none count in full.
const UNTRIED: u32 = 20;

impl Attempts {
    pub(crate) fn new(limits: AttemptLimits, fault: Fault) -> Self {
        Self {
            limits,
            young: HashMap::new(),
            old: HashMap::new(),
            fault,
        }
    }

    /// Decides what is to be done with a message that a get brought. One that would go to the poison
    /// queue next takes no other one there, and one that was rejected with others has to show which
    /// of them is bad: such a message is handled by itself.
    pub(crate) fn arrived(&self, message: &Message, now: SystemTime) -> Arrival {
        if let Some(settled) = self.settled(message) {
            return Arrival::Delete(settled);
        }
        if let Err(error) = message.payload() {
            return Arrival::Unreadable(error);
        }
        if self.limits.poisons && self.may_be_deadly(message, now) {
            return Arrival::PoisonUntried;
        }
        let attempts = self.of(message);
        let is_last = self.limits.poisons && self.is_last(attempts);
        let alone = self.record(&message.id).isolated || is_last;
        Arrival::Handle {
            attempts,
            alone: alone && !planted!(self.fault, LastTryShared),
        }
    }

    /// Decides what becomes of a message whose handler returned an error, and records it.
    pub(crate) fn judge(
        &mut self,
        message: &Message,
        attempts: u32,
        verdict: Verdict,
    ) -> Disposition {
        let wait = match verdict {
            Verdict::Postponed(delay) => {
                self.uncount(&message.id);
                return Disposition::Spare(Some(delay));
            }
            Verdict::Rejected if self.limits.poisons => return Disposition::Poison,
            Verdict::RejectedTogether => {
                self.change(&message.id, |record| record.isolated = true);
                None
            }
            Verdict::RetryAfter(delay) => Some(delay),
            Verdict::Retry | Verdict::Rejected => None,
        };
        // Only what was got often needs to be known.
        if message.dequeue_count >= UNTRIED {
            self.change(&message.id, |record| record.tried = true);
        }
        match self.limits.poisons && self.is_last(attempts) {
            true => Disposition::Poison,
            false => Disposition::Retry(wait),
        }
    }

    /// Decides what becomes of a message whose handler was not run, or not to its end, and records
    /// it.
    pub(crate) fn abandon(&mut self, message: &Message) -> Disposition {
        if planted!(self.fault, AbandonedGetCounted) {
            return Disposition::Retry(Some(Duration::ZERO));
        }
        self.uncount(&message.id);
        Disposition::Spare(Some(Duration::ZERO))
    }

    /// Decides what becomes of a message whose body is none, and records it. What passes is no fault
    /// of the message's, however often it was got meanwhile.
    pub(crate) fn unreadable(&mut self, message: &Message, error: &Error) -> Disposition {
        if error.is_retryable() {
            self.uncount(&message.id);
            return Disposition::Spare(None);
        }
        match self.limits.poisons {
            true => Disposition::Poison,
            false => Disposition::Retry(None),
        }
    }

    /// Returns how often a message was tried, this time included, as far as is known here.
    fn of(&self, message: &Message) -> u32 {
        let uncounted = self.record(&message.id).uncounted;
        message.dequeue_count.saturating_sub(uncounted).max(1)
    }

    fn is_last(&self, attempts: u32) -> bool {
        attempts >= self.limits.max_dequeue_count
    }

    /// Returns whether a message may end the process of each listener that handles it: it was got
    /// very often, its age has room for as many time-outs, and no attempt at it ended here.
    fn may_be_deadly(&self, message: &Message, now: SystemTime) -> bool {
        if planted!(self.fault, PoisonedUntried) {
            return message.dequeue_count > self.limits.max_dequeue_count;
        }
        let gets = self.limits.max_dequeue_count.saturating_mul(UNTRIED);
        let age = now.duration_since(message.inserted_at).unwrap_or_default();
        // A process that ends releases nothing: each of its messages is hidden for one time-out.
        let time_outs = age.as_nanos() / self.limits.visibility_timeout.as_nanos().max(1);
        message.dequeue_count > gets
            && time_outs >= u128::from(gets)
            && self.find(&message.id).is_none()
    }

    /// The get of a message was no attempt.
    pub(crate) fn uncount(&mut self, id: &MessageId) {
        if planted!(self.fault, UntriedGetCounted) {
            return;
        }
        self.change(id, |record| {
            record.untried = record.untried.saturating_add(1);
            record.uncounted = record.uncounted.saturating_add(1);
        });
    }

    /// Returns how many gets of a message were no attempt.
    pub(super) fn untried(&self, id: &MessageId) -> u32 {
        self.record(id).untried
    }

    /// The queue has taken back the get of a message itself.
    pub(crate) fn count_again(&mut self, id: &MessageId) {
        if planted!(self.fault, TakenBackTwice) {
            return;
        }
        self.change(id, |record| {
            record.uncounted = record.uncounted.saturating_sub(1);
        });
    }

    /// A message is still to be deleted, and nothing else.
    pub(crate) fn settle(&mut self, message: &Message, settled: Settled) {
        self.change(&message.id, |record| {
            record.settled = Some((settled, message.inserted_at));
        });
    }

    /// Returns why nothing but its deletion is left to be done for a message.
    fn settled(&self, message: &Message) -> Option<Settled> {
        if planted!(self.fault, SettledHandledAgain) {
            return None;
        }
        let settled = self.record(&message.id).settled;
        settled.and_then(|(settled, put)| (put == message.inserted_at).then_some(settled))
    }

    /// A message is gone.
    pub(crate) fn forget(&mut self, id: &MessageId) {
        self.young.remove(id);
        self.old.remove(id);
    }

    fn find(&self, id: &MessageId) -> Option<Record> {
        self.young.get(id).or_else(|| self.old.get(id)).copied()
    }

    fn record(&self, id: &MessageId) -> Record {
        self.find(id).unwrap_or_default()
    }

    fn change(&mut self, id: &MessageId, change: impl FnOnce(&mut Record)) {
        let mut record = self.record(id);
        change(&mut record);
        self.forget(id);
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id.clone(), record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Receipt;

    fn attempts(max_dequeue_count: u32) -> Attempts {
        let limits = AttemptLimits {
            max_dequeue_count,
            visibility_timeout: Duration::from_secs(30),
            poisons: true,
        };
        Attempts::new(limits, Fault::NONE)
    }

    fn got(dequeue_count: u32) -> Message {
        let receipt = Receipt::new(MessageId::new("job"), "receipt");
        Message::new(receipt, "body", dequeue_count, SystemTime::UNIX_EPOCH)
    }

    /// Has a message come, and returns how many attempts it had, and whether it is tried by itself.
    fn comes(attempts: &Attempts, message: &Message) -> (u32, bool) {
        match attempts.arrived(message, SystemTime::UNIX_EPOCH) {
            Arrival::Handle { attempts, alone } => (attempts, alone),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_get_that_came_to_no_try_is_no_attempt_and_the_last_one_is_by_itself() {
        let mut attempts = attempts(2);
        let later = Verdict::Postponed(Duration::from_secs(5));
        let spared = attempts.judge(&got(1), 1, later);
        assert_eq!(spared, Disposition::Spare(Some(Duration::from_secs(5))));
        assert_eq!(comes(&attempts, &got(2)), (1, false));
        let abandoned = attempts.abandon(&got(2));
        assert_eq!(abandoned, Disposition::Spare(Some(Duration::ZERO)));
        // The queue has taken this one back itself.
        attempts.count_again(&got(2).id);
        assert_eq!(comes(&attempts, &got(2)), (1, false));
        let failed = attempts.judge(&got(2), 1, Verdict::Retry);
        assert_eq!(failed, Disposition::Retry(None));
        assert_eq!(comes(&attempts, &got(3)), (2, true));
        let failed = attempts.judge(&got(3), 2, Verdict::Retry);
        assert_eq!(failed, Disposition::Poison);
    }

    #[test]
    fn a_message_that_was_got_too_often_elsewhere_has_one_try_by_itself() {
        let mut attempts = attempts(2);
        assert_eq!(comes(&attempts, &got(9)), (9, true));
        let failed = attempts.judge(&got(9), 9, Verdict::Retry);
        assert_eq!(failed, Disposition::Poison);
    }

    #[test]
    fn what_was_rejected_with_others_is_tried_by_itself() {
        let mut attempts = attempts(5);
        let rejected = attempts.judge(&got(1), 1, Verdict::RejectedTogether);
        assert_eq!(rejected, Disposition::Retry(None));
        assert_eq!(comes(&attempts, &got(2)), (2, true));
        let rejected = attempts.judge(&got(2), 2, Verdict::Rejected);
        assert_eq!(rejected, Disposition::Poison);
    }

    #[test]
    fn what_was_not_recorded_anew_for_long_is_forgotten_and_the_rest_kept() {
        let mut attempts = attempts(5);
        let id = |number: usize| MessageId::new(&number.to_string());
        for number in 0..10 * GENERATION {
            attempts.uncount(&id(number));
            attempts.uncount(&id(0));
        }
        assert!(attempts.young.len() + attempts.old.len() <= 2 * GENERATION);
        let uncounted = |number| attempts.record(&id(number)).uncounted as usize;
        assert_eq!(uncounted(0), 10 * GENERATION + 1);
        assert_eq!(uncounted(1), 0);
        assert_eq!(uncounted(10 * GENERATION - 1), 1);
        attempts.forget(&id(0));
        assert_eq!(attempts.record(&id(0)).uncounted, 0);
    }
}
