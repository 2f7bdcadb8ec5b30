//! How many bytes of unfinished requests are held at one time.
//!
//! Counts the bytes that have come, not those that were declared: a length costs its sender
//! nothing. A message that came in one piece is never counted, it is handled at once. Nothing waits
//! for room: what waits is held as well, and fills the window that other requests need. Where there
//! is no room, the request that asked for more is refused, which frees what it held.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::words::Limits;

/// What one connection may hold: a part of its own, and more of what all share.
#[derive(Debug, Clone)]
pub(super) struct RequestBudget {
    /// Bytes that the connection holds.
    held: Arc<Mutex<usize>>,
    /// Bytes that all connections hold beyond their own parts.
    shared: Arc<AtomicUsize>,
}

/// Room for one message, until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: RequestBudget,
    bytes: usize,
}

/// There is no room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exhausted;

/// A connection's own part: room for one request of the greatest size, whatever others hold.
const OWN: usize = Limits::SUBSCRIBE_BYTES;
/// Of one connection. A client has up to 256 streams on one, and opens all of them at once after
/// its relay was restarted: with 64 KiB of positions each they fit.
const PER_CONNECTION: usize = 16 * Limits::SUBSCRIBE_BYTES;
/// Of all connections together, beyond their own parts.
const SHARED: usize = 64 * Limits::SUBSCRIBE_BYTES;

impl RequestBudget {
    /// Makes the budget of a server.
    pub(super) fn new() -> Self {
        Self {
            held: Arc::default(),
            shared: Arc::default(),
        }
    }

    /// Makes the budget of a further connection.
    pub(super) fn of_connection(&self) -> Self {
        Self {
            held: Arc::default(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Makes room for one message, of no bytes so far.
    pub(super) fn reservation(&self) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
        }
    }

    fn held(&self) -> MutexGuard<'_, usize> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// Makes it as large as this.
    ///
    /// # Errors
    /// [`Exhausted`] where there is no room; it is as large as before then.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let mut held = self.budget.held();
        let after = *held - self.bytes + bytes;
        if after > PER_CONNECTION && bytes > self.bytes {
            return Err(Exhausted);
        }
        let (before, shares) = (beyond_own(*held), beyond_own(after));
        let shared = &self.budget.shared;
        if shares > before {
            let more = shares - before;
            let take = |taken: usize| Some(taken + more).filter(|taken| *taken <= SHARED);
            let taken = shared.fetch_update(Relaxed, Relaxed, take);
            taken.map_err(|_| Exhausted)?;
        } else {
            shared.fetch_sub(before - shares, Relaxed);
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

/// Returns how much of what a connection holds is beyond its own part.
fn beyond_own(held: usize) -> usize {
    held.saturating_sub(OWN)
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
    fn a_connection_has_room_for_one_request_whatever_the_others_hold() {
        let budget = RequestBudget::new();
        let mut held = Vec::new();
        for _ in 0..10 {
            let greedy = budget.of_connection();
            held.extend((0..20).map_while(|_| hold(&greedy, MIB).ok()));
        }
        // 15 MiB beyond their own of four, what is left by a fifth, their own part of the others.
        assert_eq!(held.len(), 4 * 16 + 5 + 5);
        let honest = budget.of_connection();
        let one = hold(&honest, MIB).expect("its own part");
        assert!(hold(&honest, 1).is_err());
        drop(held.pop());
        assert!(hold(&honest, 1).is_err(), "another's own part is nobody's");
        held.clear();
        assert!(hold(&honest, 15 * MIB).is_ok());
        drop(one);
        assert_eq!(budget.shared.load(Relaxed), 0);
    }

    #[test]
    fn a_connection_alone_holds_no_more_than_its_most() {
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
