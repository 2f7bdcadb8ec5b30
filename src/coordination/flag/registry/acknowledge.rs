//! Acknowledgements: counted one by one, sent to observers in batches.
//!
//! Counting marks the flag and wakes one task. To wake the observers each time would cost
//! 100,000,000 wakes for 10,000 observers and 10,000 acknowledgements.

use std::task::{Poll, Waker};

use super::{super::acks::AckKey, FlagEntry, Wakers, WatchRegistry};
use crate::{
    error::Result,
    types::{FlagName, ListenerId},
};

impl WatchRegistry {
    /// Counts an acknowledgement.
    ///
    /// # Errors
    /// `Exhausted` if too many are remembered; then it is not counted.
    pub(in crate::coordination::flag) fn ack(
        &mut self,
        name: &FlagName,
        generation: u64,
        listener: &ListenerId,
    ) -> Result<Wakers> {
        self.add_ack(name, generation, AckKey::of(listener))
    }

    /// Counts an acknowledgement by its key.
    pub(super) fn add_ack(
        &mut self,
        name: &FlagName,
        generation: u64,
        key: AckKey,
    ) -> Result<Wakers> {
        let mut wakers = Wakers::default();
        let new = |entry: &&FlagEntry| entry.is_new_ack(generation, key);
        let Some(entry) = self.entries.get(name).filter(new) else {
            return Ok(wakers);
        };
        let held = entry.acked.len();
        if self.acks.is_short(held) && entry.idle_key.is_none() {
            self.forget_idle(0);
        }
        self.acks.take(name, held)?;
        self.entry(name).acked.insert(key);
        self.mark_acks(name, &mut wakers);
        Ok(wakers)
    }

    /// Marks that the flag's observers must receive new counts. Wakes the one task that sends them,
    /// and no observer.
    pub(super) fn mark_acks(&mut self, name: &FlagName, wakers: &mut Wakers) {
        let observed = self.entries.get(name).is_some_and(FlagEntry::has_observers);
        if observed && !self.acks_changed.contains(name) {
            self.acks_changed.insert(name.clone());
            wakers.push(self.ack_task.take());
        }
    }

    /// Ready when observers must receive new counts.
    pub(in crate::coordination::flag) fn poll_acks_changed(&mut self, waker: &Waker) -> Poll<()> {
        if self.acks_changed.is_empty() {
            self.ack_task = Some(waker.clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Publishes the newest counts of the marked flags that are due. Returns these flags with the
    /// number of observers woken for each.
    pub(in crate::coordination::flag) fn publish_acks(
        &mut self,
        due: impl Fn(&FlagName) -> bool,
    ) -> (Vec<(FlagName, usize)>, Wakers) {
        let marked = std::mem::take(&mut self.acks_changed);
        let (due, later) = marked.into_iter().partition::<Vec<_>, _>(|name| due(name));
        self.acks_changed.extend(later);
        let (mut told, mut wakers) = (Vec::new(), Wakers::default());
        for name in due {
            let before = wakers.len();
            if let Some(entry) = self.entries.get_mut(&name) {
                entry.publish_acks(&mut wakers);
            }
            told.push((name, wakers.len() - before));
        }
        (told, wakers)
    }
}
