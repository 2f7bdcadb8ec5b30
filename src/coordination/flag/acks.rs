//! The limits of remembered acknowledgements, for one flag and for all flags together.
//!
//! A refused acknowledgement is not counted, so a count is never higher than the number of
//! listeners that acknowledged: `unleash --expect` may report "unmet", never a false "met".

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hash},
};

use crate::{
    error::{Error, ErrorKind, Result},
    types::{FlagName, ListenerId},
};

/// The limits and the number in use.
#[derive(Debug)]
pub(super) struct AckBudget {
    used: usize,
    /// Limit of one flag and generation.
    per_flag: usize,
    /// Limit of all flags together.
    total: usize,
    /// Random, so that a client cannot choose listener ids that collide.
    hasher: RandomState,
}

/// A listener id, hashed: 8 bytes instead of up to 128. Two ids among 100,000 collide with a
/// probability of 3e-10, and the count is then too low by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AckKey(u64);

impl AckBudget {
    pub(super) fn new(per_flag: usize, total: usize) -> Self {
        Self {
            used: 0,
            per_flag,
            total,
            hasher: RandomState::new(),
        }
    }

    pub(super) fn key(&self, listener: &ListenerId) -> AckKey {
        let mut hasher = self.hasher.build_hasher();
        listener.hash(&mut hasher);
        AckKey(std::hash::Hasher::finish(&hasher))
    }

    /// Returns whether a flag may remember one more. It may use at most as much room as it leaves
    /// free. One flag can take half of the room, a second flag a quarter, and so on. A flag with
    /// few acknowledgements always finds room.
    fn has_share(&self, held: usize) -> bool {
        held < self.total.saturating_sub(self.used)
    }

    /// Returns whether room would be found if other flags' acknowledgements were forgotten.
    pub(super) fn is_short(&self, held: usize) -> bool {
        held < self.per_flag && !self.has_share(held)
    }

    /// Takes room for one more acknowledgement of a flag that has `held`.
    ///
    /// # Errors
    /// `Exhausted`, naming the limit.
    pub(super) fn take(&mut self, name: &FlagName, held: usize) -> Result<()> {
        let message = if held >= self.per_flag {
            let limit = self.per_flag;
            format!("acknowledgements of flag `{name}`: the limit is {limit} of one generation")
        } else if !self.has_share(held) {
            let limit = self.total;
            format!(
                "acknowledgements of flag `{name}`: it has its share of the limit, {limit} of all \
                 flags together"
            )
        } else {
            self.used += 1;
            return Ok(());
        };
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    pub(super) fn give_back(&mut self, count: usize) {
        self.used -= count;
    }
}
