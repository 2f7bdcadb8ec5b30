//! Limits the bytes of unfinished requests that the server holds.
//!
//! Counts received bytes, not declared lengths, which cost their sender nothing. A message that
//! arrives in one piece is handled at once and never counted. No request waits for room: a waiting
//! request would hold memory as well, and fill the window that other requests need. Without room
//! the request that needs more is refused, which frees its bytes.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::{base::sync::lock, types::Limits};

/// One connection's budget: its own share, and bytes of the pool that all connections share.
#[derive(Debug, Clone)]
pub(super) struct RequestBudget {
    /// Bytes that the connection holds.
    held: Arc<Mutex<usize>>,
    /// Bytes that all connections hold beyond their own shares.
    shared: Arc<AtomicUsize>,
}

/// Bytes reserved for one message, until dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: RequestBudget,
    bytes: usize,
}

/// The budget has no room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exhausted;

/// A connection's own share: room for one request of the maximum size, independent of other
/// connections.
const OWN_SHARE: usize = Limits::SUBSCRIBE_BYTES;
/// Maximum of one connection. A client has up to 256 streams on one and opens all of them at once
/// after a restart of its relay; with 64 KiB of positions each they fit.
const PER_CONNECTION: usize = 16 * Limits::SUBSCRIBE_BYTES;
/// Maximum of all connections together, beyond their own shares.
const SHARED_POOL: usize = 64 * Limits::SUBSCRIBE_BYTES;

impl RequestBudget {
    /// Creates a server's budget.
    pub(super) fn new() -> Self {
        Self {
            held: Arc::default(),
            shared: Arc::default(),
        }
    }

    /// Creates the budget of another connection.
    pub(super) fn of_connection(&self) -> Self {
        Self {
            held: Arc::default(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Creates an empty reservation for one message.
    pub(super) fn reservation(&self) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
        }
    }

    /// Returns the bytes that the connection holds.
    pub(super) fn bytes(&self) -> usize {
        *self.held()
    }

    fn held(&self) -> MutexGuard<'_, usize> {
        lock(&self.held)
    }
}

impl Reservation {
    /// Sets the reservation's size.
    ///
    /// # Errors
    /// [`Exhausted`] if there is no room; the size is unchanged then.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let mut held = self.budget.held();
        let after = *held - self.bytes + bytes;
        if after > PER_CONNECTION && bytes > self.bytes {
            return Err(Exhausted);
        }
        let (shared_before, shared_after) = (beyond_own_share(*held), beyond_own_share(after));
        let shared = &self.budget.shared;
        if shared_after > shared_before {
            let more = shared_after - shared_before;
            let take = |taken: usize| Some(taken + more).filter(|taken| *taken <= SHARED_POOL);
            let taken = shared.fetch_update(Relaxed, Relaxed, take);
            taken.map_err(|_| Exhausted)?;
        } else {
            shared.fetch_sub(shared_before - shared_after, Relaxed);
        }
        *held = after;
        drop(held);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.resize(0).expect("there is always room for less");
    }
}

/// Returns the bytes that a connection holds beyond its own share.
fn beyond_own_share(held: usize) -> usize {
    held.saturating_sub(OWN_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn hold(budget: &RequestBudget, bytes: usize) -> Result<Reservation, Exhausted> {
        let mut reservation = budget.reservation();
        reservation.resize(bytes).map(|()| reservation)
    }

    #[test]
    fn a_connection_has_room_for_one_request_when_others_use_the_whole_pool() {
        let budget = RequestBudget::new();
        let mut held = Vec::new();
        for _ in 0..10 {
            let greedy = budget.of_connection();
            held.extend((0..20).map_while(|_| hold(&greedy, MIB).ok()));
        }
        // Four connections use 15 MiB beyond their own share, a fifth the rest of the pool, and the
        // others their own share.
        assert_eq!(held.len(), 4 * 16 + 5 + 5);
        let honest = budget.of_connection();
        let one = hold(&honest, MIB).expect("its own share");
        assert!(hold(&honest, 1).is_err());
        drop(held.pop());
        assert!(
            hold(&honest, 1).is_err(),
            "a connection's own share is for that connection only"
        );
        held.clear();
        assert!(hold(&honest, 15 * MIB).is_ok());
        drop(one);
        assert_eq!(budget.shared.load(Relaxed), 0);
    }

    #[test]
    fn a_single_connection_holds_no_more_than_its_maximum() {
        let budget = RequestBudget::new();
        let alone = budget.of_connection();
        let mut request = hold(&alone, 16 * MIB).expect("room");
        assert_eq!(request.resize(16 * MIB + 1), Err(Exhausted));
        assert!(hold(&alone, 1).is_err());
        request.resize(16 * MIB - 5).expect("less");
        assert!(hold(&alone, 5).is_ok());
        drop(request);
        assert_eq!(*alone.held(), 0);
        assert_eq!(budget.shared.load(Relaxed), 0);
    }
}
