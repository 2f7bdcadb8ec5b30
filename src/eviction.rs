//! A bounded set of peers in which a newcomer displaces the oldest.
//!
//! For peers that have not proved yet that they are honest. An honest peer leaves the set within a
//! round trip; a silent one stays. So the oldest is the one to give up, and a flood of silent peers
//! cannot keep an honest one out. Knows nothing of connections.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

/// The set.
#[derive(Debug, Clone)]
pub(crate) struct EvictingPool {
    shared: Arc<Shared>,
}

/// A peer's place in the set. It leaves the set when this is dropped.
#[derive(Debug)]
pub(crate) struct PoolPlace {
    shared: Arc<Shared>,
    number: u64,
    evicted: CancellationToken,
}

#[derive(Debug)]
struct Shared {
    max: usize,
    places: Mutex<Places>,
    evictions: AtomicU64,
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    by_age: BTreeMap<u64, CancellationToken>,
}

impl EvictingPool {
    /// Makes a set of at most `max` peers, at least one.
    pub(crate) fn new(max: usize) -> Self {
        let shared = Shared {
            max: max.max(1),
            places: Mutex::default(),
            evictions: AtomicU64::new(0),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Takes a peer in, and displaces the oldest where the set is full.
    pub(crate) fn enter(&self) -> PoolPlace {
        let evicted = CancellationToken::new();
        let mut places = self.shared.lock();
        let oldest = match places.by_age.len() >= self.shared.max {
            true => places.by_age.pop_first(),
            false => None,
        };
        let number = places.next;
        places.next += 1;
        places.by_age.insert(number, evicted.clone());
        drop(places);
        if let Some((_, oldest)) = oldest {
            self.shared.evictions.fetch_add(1, Ordering::Relaxed);
            oldest.cancel();
        }
        PoolPlace {
            shared: Arc::clone(&self.shared),
            number,
            evicted,
        }
    }

    /// Returns how many peers were displaced so far.
    pub(crate) fn evictions(&self) -> u64 {
        self.shared.evictions.load(Ordering::Relaxed)
    }
}

impl PoolPlace {
    /// Waits until a newcomer displaces this peer. Safe to cancel.
    pub(crate) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for PoolPlace {
    fn drop(&mut self) {
        self.shared.lock().by_age.remove(&self.number);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
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
