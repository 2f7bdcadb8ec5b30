//! A bounded set of peers; a new peer evicts the oldest one when the set is full.
//!
//! For peers that have not yet proved to be honest. An honest peer leaves the set within a round
//! trip, a silent peer stays. The oldest peer is therefore the best one to evict, and a flood of
//! silent peers cannot keep an honest peer out.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use tokio_util::sync::CancellationToken;

use crate::base::sync::lock;

/// The bounded set of peers. Clones are the same set.
#[derive(Debug, Clone)]
pub(crate) struct EvictingPool(Arc<Mutex<PoolMembers>>);

/// A peer's membership of the set, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct PoolPlace {
    pool: EvictingPool,
    number: u64,
    evicted: CancellationToken,
}

#[derive(Debug)]
struct PoolMembers {
    max: usize,
    next: u64,
    evictions: u64,
    by_age: BTreeMap<u64, CancellationToken>,
}

impl EvictingPool {
    /// Creates a set of at most `max` peers; 0 counts as 1.
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(Mutex::new(PoolMembers {
            max: max.max(1),
            next: 0,
            evictions: 0,
            by_age: BTreeMap::new(),
        })))
    }

    /// Adds a peer, and evicts the oldest if the set is full.
    pub(crate) fn enter(&self) -> PoolPlace {
        let evicted = CancellationToken::new();
        let mut members = lock(&self.0);
        if members.by_age.len() >= members.max
            && let Some((_, oldest)) = members.by_age.pop_first()
        {
            members.evictions += 1;
            oldest.cancel();
        }
        let number = members.next;
        members.next += 1;
        members.by_age.insert(number, evicted.clone());
        PoolPlace {
            pool: self.clone(),
            number,
            evicted,
        }
    }

    /// Returns the number of evicted peers so far.
    pub(crate) fn evictions(&self) -> u64 {
        lock(&self.0).evictions
    }
}

impl PoolPlace {
    /// Waits until a new peer evicts this one. Cancel safe.
    pub(crate) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for PoolPlace {
    fn drop(&mut self) {
        lock(&self.pool.0).by_age.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_newcomer_displaces_the_oldest_that_is_still_there() {
        let pool = EvictingPool::new(2);
        let (first, second) = (pool.enter(), pool.enter());
        drop(first);
        let third = pool.enter();
        assert_eq!(second.evicted().now_or_never(), None, "there was room");
        let fourth = pool.enter();
        assert_eq!(second.evicted().now_or_never(), Some(()));
        assert_eq!(third.evicted().now_or_never(), None);
        // An evicted peer that leaves makes no further room.
        drop(second);
        let _fifth = pool.enter();
        assert_eq!(third.evicted().now_or_never(), Some(()));
        assert_eq!(fourth.evicted().now_or_never(), None);
        assert_eq!(pool.evictions(), 2);
    }
}
