//! The limits of remembered acknowledgements, for one flag and for all flags together.
//!
//! A refused acknowledgement is not counted, so a count is never higher than the number of
//! listeners that acknowledged: `unleash --expect` may report "unmet", never a false "met".

use crate::{
    base::fnv::fnv1a,
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
}

/// A listener id, hashed: 8 bytes instead of up to 128. Two ids among 100,000 collide with a
/// probability of 3e-10, and the count is then too low by one. A client that chooses an id which
/// collides gains nothing: it may acknowledge under any id.
///
/// The hash is the same on all relays of a cluster, which count a listener once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AckKey(pub(crate) u64);

/// The acknowledgements that this relay knows of one generation of a flag.
#[cfg(all(feature = "relay", feature = "nats"))]
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownAcks {
    pub(crate) acknowledged: u32,
    /// Streams that watch the flag here, without the observers.
    pub(crate) watchers: u32,
    pub(crate) keys: Vec<AckKey>,
}

/// A flag whose acknowledgements an observer counts.
#[cfg(all(feature = "relay", feature = "nats"))]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ObservedFlag {
    pub(crate) name: FlagName,
    pub(super) entry: u64,
    /// The newest one.
    pub(super) generation: u64,
}

impl AckKey {
    pub(super) fn of(listener: &ListenerId) -> Self {
        Self(fnv1a(listener.as_str().bytes()))
    }
}

impl AckBudget {
    pub(super) fn new(per_flag: usize, total: usize) -> Self {
        Self {
            used: 0,
            per_flag,
            total,
        }
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
