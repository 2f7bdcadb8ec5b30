//! What a listener remembers of a message from one get to the next.
//!
//! A queue counts gets. Not each of them is an attempt: the body may have been away with its blob
//! store, or the handler put the message off. Those are recorded here, and so are messages that were
//! rejected together with others, and those that were handled and could not be deleted. Bounded:
//! what was not recorded anew for long is forgotten, and such a message has fewer attempts. Knows
//! neither queue nor time.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use crate::queue::{Message, MessageId};

/// Records of messages by their ids.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    young: HashMap<MessageId, Record>,
    /// Those that were young when there were too many.
    old: HashMap<MessageId, Record>,
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
pub(super) enum Settled {
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
    /// Returns how often a message was tried, this time included, as far as is known here.
    pub(super) fn of(&self, message: &Message) -> u32 {
        let uncounted = self.record(&message.id).uncounted;
        message.dequeue_count.saturating_sub(uncounted).max(1)
    }

    /// Returns whether a message may end the process of each listener that handles it: it was got
    /// very often, its age has room for as many time-outs, and no attempt at it ended here.
    pub(super) fn may_be_deadly(
        &self,
        message: &Message,
        attempts: u32,
        visibility_timeout: Duration,
        now: SystemTime,
    ) -> bool {
        let gets = attempts.saturating_mul(UNTRIED);
        let age = now.duration_since(message.inserted_at).unwrap_or_default();
        // A process that ends releases nothing: each of its messages is hidden for one time-out.
        let time_outs = age.as_nanos() / visibility_timeout.as_nanos().max(1);
        message.dequeue_count > gets
            && time_outs >= u128::from(gets)
            && self.find(&message.id).is_none()
    }

    /// The get of a message was no attempt.
    pub(super) fn uncount(&mut self, id: &MessageId) {
        self.change(id, |record| {
            record.untried = record.untried.saturating_add(1);
            record.uncounted = record.uncounted.saturating_add(1);
        });
    }

    /// Returns how many gets of a message were no attempt.
    pub(super) fn untried(&self, id: &MessageId) -> u32 {
        self.record(id).untried
    }

    /// A try of a message has failed. Only what was got often needs to be known.
    pub(super) fn tried(&mut self, message: &Message) {
        if message.dequeue_count >= UNTRIED {
            self.change(&message.id, |record| record.tried = true);
        }
    }

    /// The queue has taken back the get of a message itself.
    pub(super) fn count_again(&mut self, id: &MessageId) {
        self.change(id, |record| {
            record.uncounted = record.uncounted.saturating_sub(1);
        });
    }

    /// A message was in a batch that was rejected: it is tried by itself from now on.
    pub(super) fn isolate(&mut self, id: &MessageId) {
        self.change(id, |record| record.isolated = true);
    }

    pub(super) fn is_isolated(&self, id: &MessageId) -> bool {
        self.record(id).isolated
    }

    /// A message is still to be deleted, and nothing else.
    pub(super) fn settle(&mut self, message: &Message, settled: Settled) {
        self.change(&message.id, |record| {
            record.settled = Some((settled, message.inserted_at));
        });
    }

    /// Returns why nothing but its deletion is left to be done for a message.
    pub(super) fn settled(&self, message: &Message) -> Option<Settled> {
        let settled = self.record(&message.id).settled;
        settled.and_then(|(settled, put)| (put == message.inserted_at).then_some(settled))
    }

    /// A message is gone.
    pub(super) fn forget(&mut self, id: &MessageId) {
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

    #[test]
    fn what_was_not_recorded_anew_for_long_is_forgotten_and_the_rest_kept() {
        let mut attempts = Attempts::default();
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
