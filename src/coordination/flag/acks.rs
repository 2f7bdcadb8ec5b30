//! Acknowledgements: counted one by one, sent to observers in batches.
//!
//! Counting marks the flag and wakes one task. To wake the observers each time would cost
//! 100,000,000 wakes for 10,000 observers and 10,000 acknowledgements. A refused acknowledgement is
//! not counted, so a count is never higher than the number of listeners that acknowledged:
//! `unleash --expect` may report "unmet", never a false "met".

use std::task::{Poll, Waker};

use super::{entry::FlagEntry, registry::WatchRegistry, wakers::Wakers};
use crate::{
    base::fnv::fnv1a,
    error::{Error, ErrorKind, Result},
    types::{FlagName, ListenerId},
};

/// The limits and the number in use.
#[derive(Debug)]
pub(super) struct AckBudget {
    pub(super) used: usize,
    /// Limit of one flag and generation.
    pub(super) per_flag: usize,
    /// Limit of all flags together.
    pub(super) total: usize,
}

/// A listener id, hashed: 8 bytes instead of up to 128. Two ids among 100,000 collide with a
/// probability of 3e-10, and the count is then too low by one. A client that chooses an id which
/// collides gains nothing: it may acknowledge under any id.
///
/// The hash is the same on all relays of a cluster, which count a listener once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AckKey(pub(crate) u64);

impl AckKey {
    pub(super) fn of(listener: &ListenerId) -> Self {
        Self(fnv1a(listener.as_str().bytes()))
    }
}

impl AckBudget {
    /// Takes room for one more acknowledgement of a flag that has `held`.
    fn take(&mut self, name: &FlagName, held: usize) -> Result<()> {
        let (limit, what) = match held >= self.per_flag {
            true => (self.per_flag, "of one generation"),
            false if self.used >= self.total => (self.total, "of all flags together"),
            false => {
                self.used += 1;
                return Ok(());
            }
        };
        let message = format!("acknowledgements of flag `{name}`: the limit is {limit} {what}");
        Err(Error::new(ErrorKind::Exhausted, message))
    }
}

impl WatchRegistry {
    /// Counts an acknowledgement.
    ///
    /// # Errors
    /// `Exhausted` if too many are remembered; then it is not counted.
    pub(super) fn ack(&mut self, name: &FlagName, generation: u64, key: AckKey) -> Result<Wakers> {
        let mut wakers = Wakers::default();
        let new = |entry: &&FlagEntry| entry.is_new_ack(generation, key);
        let Some(entry) = self.entries.get(name).filter(new) else {
            return Ok(wakers);
        };
        let (held, is_idle) = (entry.acked.len(), entry.idle_key.is_some());
        if self.acks.used >= self.acks.total && !is_idle {
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
    pub(super) fn poll_acks_changed(&mut self, waker: &Waker) -> Poll<()> {
        if self.acks_changed.is_empty() {
            self.ack_task = Some(waker.clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Publishes the newest counts of the marked flags. Returns the observers to wake.
    pub(super) fn publish_acks(&mut self) -> Wakers {
        let mut wakers = Wakers::default();
        for name in std::mem::take(&mut self.acks_changed) {
            if let Some(entry) = self.entries.get_mut(&name) {
                entry.publish_acks(&mut wakers);
            }
        }
        wakers
    }
}
