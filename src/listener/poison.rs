//! The rule for poison messages: the delivery attempts of a message, across several gets.
//!
//! A queue counts gets, but not every get is an attempt: the blob store with the body may be away,
//! or the handler postpones the message. Such gets are recorded here. So are handled messages that
//! could not be deleted. The records are bounded: old ones are forgotten, and such a message gets
//! fewer attempts. This module knows neither queue nor clock. It decides what happens to a message;
//! `delivery` and the simulation do it.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use crate::{
    base::fault::planted,
    error::Error,
    queue::{Message, MessageId},
};

/// Records of messages by their ids.
#[derive(Debug)]
pub(crate) struct Attempts {
    limits: AttemptLimits,
    young: HashMap<MessageId, MessageRecord>,
    /// The previous generation.
    old: HashMap<MessageId, MessageRecord>,
}

/// The limits by which a listener decides about each message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptLimits {
    /// The maximum number of attempts.
    pub(crate) max_dequeue_count: u32,
    pub(crate) visibility_timeout: Duration,
    /// There is a poison queue.
    pub(crate) poisons: bool,
}

/// How to treat a message that a get returned.
#[derive(Debug, Clone)]
pub(crate) enum Arrival {
    /// Only its deletion is left to do.
    Delete(Settled),
    /// Its body cannot be read, for this reason.
    Unreadable(Error),
    /// It may crash each process that handles it: move it to the poison queue without an attempt.
    PoisonUntried,
    /// Handle it. This is the number of the known attempts, this one included.
    Handle(u32),
}

/// The verdict of a handler's error about its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Retry,
    RetryAfter(Duration),
    Rejected,
    Postponed(Duration),
}

/// What to do with a message that was not handled. For `None` the listener chooses the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Release it for this time; its get was no attempt.
    ReleaseUncounted(Option<Duration>),
    /// Release it for this time.
    Retry(Option<Duration>),
    /// Move it to the poison queue.
    Poison,
}

#[derive(Debug, Default, Clone, Copy)]
struct MessageRecord {
    /// Gets that were no attempt.
    untried: u32,
    /// Those of them that the queue's own count includes.
    uncounted: u32,
    /// An attempt failed here: the message does not crash the process.
    tried: bool,
    /// How the message was settled, if only its deletion is left, and when it was put: a queue that
    /// was recreated may reuse the id for another message.
    settled: Option<(Settled, SystemTime)>,
}

/// Why only the deletion of a message is left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    Handled,
    /// It is in the poison queue.
    Poisoned,
}

/// Ids of one generation; there are two. With Azure's ids about 3 MiB in all, and more messages
/// than one listener postpones within five minutes.
const GENERATION: usize = 16_384;
/// A message with this many gets per allowed attempt may crash its process each time. The factor is
/// high because gets of other listeners count in full, also those that were no attempt.
const GETS_PER_ATTEMPT: u32 = 20;

impl Attempts {
    pub(crate) fn new(limits: AttemptLimits) -> Self {
        Self {
            limits,
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }

    /// Decides how to treat a message that a get returned.
    pub(crate) fn on_received(&self, message: &Message, now: SystemTime) -> Arrival {
        if let Some(settled) = self.settled(message) {
            return Arrival::Delete(settled);
        }
        if let Err(error) = message.payload() {
            return Arrival::Unreadable(error);
        }
        if self.limits.poisons && self.may_crash_process(message, now) {
            return Arrival::PoisonUntried;
        }
        let uncounted = self.record(&message.id).uncounted;
        Arrival::Handle(message.dequeue_count.saturating_sub(uncounted).max(1))
    }

    /// Decides what to do after a handler returned an error, and records it.
    pub(crate) fn on_failed(
        &mut self,
        message: &Message,
        attempts: u32,
        verdict: Verdict,
    ) -> Disposition {
        let wait = match verdict {
            Verdict::Postponed(delay) => {
                self.uncount(&message.id);
                return Disposition::ReleaseUncounted(Some(delay));
            }
            Verdict::Rejected if self.limits.poisons => return Disposition::Poison,
            Verdict::RetryAfter(delay) => Some(delay),
            Verdict::Retry | Verdict::Rejected => None,
        };
        // Only needed for messages with many gets.
        if message.dequeue_count >= GETS_PER_ATTEMPT {
            self.update(&message.id, |record| record.tried = true);
        }
        if self.limits.poisons && attempts >= self.limits.max_dequeue_count {
            Disposition::Poison
        } else {
            Disposition::Retry(wait)
        }
    }

    /// Decides what to do with a message whose body cannot be read, and records it. After a
    /// temporary error the get is no attempt, however many such gets there were.
    pub(crate) fn on_unreadable(&mut self, message: &Message, error: &Error) -> Disposition {
        if error.is_retryable() {
            self.uncount(&message.id);
            return Disposition::ReleaseUncounted(None);
        }
        if self.limits.poisons {
            Disposition::Poison
        } else {
            Disposition::Retry(None)
        }
    }

    /// Returns whether a message may crash each process that handles it: it has very many gets, it
    /// is old enough for as many visibility time-outs, and no attempt at it ended here.
    fn may_crash_process(&self, message: &Message, now: SystemTime) -> bool {
        let gets = self
            .limits
            .max_dequeue_count
            .saturating_mul(GETS_PER_ATTEMPT);
        let age = now.duration_since(message.inserted_at).unwrap_or_default();
        // A crashed process releases no message: each stays hidden for one time-out.
        let time_outs = age.as_nanos() / self.limits.visibility_timeout.as_nanos().max(1);
        message.dequeue_count > gets
            && time_outs >= u128::from(gets)
            && self.find(&message.id).is_none()
    }

    /// Records that the last get of a message was no attempt.
    pub(crate) fn uncount(&mut self, id: &MessageId) {
        self.update(id, |record| {
            record.untried = record.untried.saturating_add(1);
            record.uncounted = record.uncounted.saturating_add(1);
        });
    }

    /// Returns how many gets of a message were no attempt.
    pub(super) fn untried(&self, id: &MessageId) -> u32 {
        self.record(id).untried
    }

    /// The queue has removed the last get from its own count.
    pub(crate) fn count_again(&mut self, id: &MessageId) {
        self.update(id, |record| {
            record.uncounted = record.uncounted.saturating_sub(1);
        });
    }

    /// Records that only the deletion of a message is left to do.
    pub(crate) fn settle(&mut self, message: &Message, settled: Settled) {
        self.update(&message.id, |record| {
            record.settled = Some((settled, message.inserted_at));
        });
    }

    /// Returns how the message was settled, if only its deletion is left to do.
    fn settled(&self, message: &Message) -> Option<Settled> {
        let (settled, put) = self.record(&message.id).settled?;
        let is_same = put == message.inserted_at && !planted!(SettledHandledAgain);
        is_same.then_some(settled)
    }

    /// Drops the record of a deleted message.
    pub(crate) fn forget(&mut self, id: &MessageId) {
        self.young.remove(id);
        self.old.remove(id);
    }

    fn find(&self, id: &MessageId) -> Option<MessageRecord> {
        self.young.get(id).or_else(|| self.old.get(id)).copied()
    }

    fn record(&self, id: &MessageId) -> MessageRecord {
        self.find(id).unwrap_or_default()
    }

    fn update(&mut self, id: &MessageId, update: impl FnOnce(&mut MessageRecord)) {
        let mut record = self.record(id);
        update(&mut record);
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
        Attempts::new(limits)
    }

    fn got(dequeue_count: u32) -> Message {
        let receipt = Receipt::new(MessageId::new("job"), "receipt");
        Message::new(receipt, "body", dequeue_count, SystemTime::UNIX_EPOCH)
    }

    /// Receives a message; returns its attempts.
    fn comes(attempts: &Attempts, message: &Message) -> u32 {
        match attempts.on_received(message, SystemTime::UNIX_EPOCH) {
            Arrival::Handle(attempts) => attempts,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_get_without_a_try_is_no_attempt() {
        let mut attempts = attempts(2);
        let later = Verdict::Postponed(Duration::from_secs(5));
        let uncounted = attempts.on_failed(&got(1), 1, later);
        assert_eq!(
            uncounted,
            Disposition::ReleaseUncounted(Some(Duration::from_secs(5)))
        );
        assert_eq!(comes(&attempts, &got(2)), 1);
        let abandoned = attempts.on_failed(&got(2), 1, Verdict::Postponed(Duration::ZERO));
        assert_eq!(
            abandoned,
            Disposition::ReleaseUncounted(Some(Duration::ZERO))
        );
        // The queue has removed this get from its count.
        attempts.count_again(&got(2).id);
        assert_eq!(comes(&attempts, &got(2)), 1);
        let failed = attempts.on_failed(&got(2), 1, Verdict::Retry);
        assert_eq!(failed, Disposition::Retry(None));
        assert_eq!(comes(&attempts, &got(3)), 2);
        let failed = attempts.on_failed(&got(3), 2, Verdict::Retry);
        assert_eq!(failed, Disposition::Poison);
    }

    #[test]
    fn a_message_with_too_many_gets_elsewhere_has_one_attempt() {
        let mut attempts = attempts(2);
        assert_eq!(comes(&attempts, &got(9)), 9);
        let failed = attempts.on_failed(&got(9), 9, Verdict::Retry);
        assert_eq!(failed, Disposition::Poison);
    }

    #[test]
    fn old_records_are_forgotten_and_new_ones_kept() {
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
