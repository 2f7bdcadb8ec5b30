//! Acknowledgements: counted one by one, and told to observers together.
//!
//! Counting marks the flag and wakes one task, not the observers: 10,000 of them and 10,000
//! acknowledgements would be 100,000,000 wakes.

use std::task::{Poll, Waker};

use super::{Board, Topic, Wakers};
use crate::{
    error::Result,
    words::{FlagName, ListenerId},
};

impl Board {
    /// Counts an acknowledgement.
    ///
    /// # Errors
    /// `Exhausted` where too many are remembered; it is not counted then.
    pub(in crate::flag) fn ack(
        &mut self,
        name: &FlagName,
        generation: u64,
        listener: &ListenerId,
    ) -> Result<Wakers> {
        let mut wakers = Wakers::default();
        let key = self.acks.key(listener);
        let new = |topic: &&Topic| topic.is_new_ack(generation, key);
        let Some(topic) = self.topics.get(name).filter(new) else {
            return Ok(wakers);
        };
        let held = topic.acked.len();
        if self.acks.is_short(held) && topic.idle.is_none() {
            self.forget_idle(0);
        }
        self.acks.take(name, held)?;
        self.topic(name).acked.insert(key);
        self.mark_acks(name, &mut wakers);
        Ok(wakers)
    }

    /// Marks that a flag's observers are to be told of acknowledgements. Wakes none of them, however
    /// many they are: one task tells all.
    pub(super) fn mark_acks(&mut self, name: &FlagName, wakers: &mut Wakers) {
        let observed = self.topics.get(name).is_some_and(Topic::has_observers);
        if observed && !self.acks_changed.contains(name) {
            self.acks_changed.insert(name.clone());
            wakers.push(self.teller.take());
        }
    }

    /// Waits until observers are to be told.
    pub(in crate::flag) fn poll_acks_changed(&mut self, waker: &Waker) -> Poll<()> {
        if self.acks_changed.is_empty() {
            self.teller = Some(waker.clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Lets the observers of the marked flags that are due take the newest counts. Returns the flags,
    /// and how many observers of each are woken.
    pub(in crate::flag) fn publish_acks(
        &mut self,
        due: impl Fn(&FlagName) -> bool,
    ) -> (Vec<(FlagName, usize)>, Wakers) {
        let marked = std::mem::take(&mut self.acks_changed);
        let (due, later) = marked.into_iter().partition::<Vec<_>, _>(|name| due(name));
        self.acks_changed.extend(later);
        let (mut told, mut wakers) = (Vec::new(), Wakers::default());
        for name in due {
            let before = wakers.len();
            if let Some(topic) = self.topics.get_mut(&name) {
                topic.publish_acks(&mut wakers);
            }
            told.push((name, wakers.len() - before));
        }
        (told, wakers)
    }
}
