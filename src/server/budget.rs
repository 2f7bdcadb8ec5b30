//! How many bytes of unfinished requests are held at one time.
//!
//! A message that came in one piece is never counted: it is handled at once. One that did not is
//! counted with its whole length before the rest of it is read, so that what was admitted can
//! always be completed.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::words::Limits;

/// What one connection may hold, as a part of what all may.
#[derive(Debug, Clone)]
pub(super) struct RequestBudget {
    connection: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// Room for one message, until it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    _connection: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// There is no room in what all connections may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exhausted;

/// Four of the greatest requests of one connection at one time; further ones wait their turn, and
/// HTTP/2's windows hold their senders back.
pub(super) const PER_CONNECTION: usize = 4 * Limits::SUBSCRIBE_BYTES;
/// Sixteen connections that use all of theirs. Further requests are refused and not made to wait:
/// what waits holds memory as well.
pub(super) const IN_ALL: usize = 64 * Limits::SUBSCRIBE_BYTES;

impl RequestBudget {
    /// Makes the budget of a server.
    pub(super) fn new() -> Self {
        Self {
            connection: Arc::new(Semaphore::new(PER_CONNECTION)),
            all: Arc::new(Semaphore::new(IN_ALL)),
        }
    }

    /// Makes the budget of a further connection.
    pub(super) fn of_connection(&self) -> Self {
        Self {
            connection: Arc::new(Semaphore::new(PER_CONNECTION)),
            all: Arc::clone(&self.all),
        }
    }

    /// Waits for room in the connection's part.
    ///
    /// # Errors
    /// [`Exhausted`] where there is none in what all may hold.
    pub(super) async fn reserve(self, bytes: u32) -> Result<Reservation, Exhausted> {
        let connection = self.connection.acquire_many_owned(bytes).await;
        let connection = connection.expect("never closed");
        let all = self.all.try_acquire_many_owned(bytes);
        Ok(Reservation {
            _connection: connection,
            _all: all.map_err(|_| Exhausted)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MIB: u32 = 1024 * 1024;

    #[test]
    fn a_connection_waits_for_its_own_and_is_refused_for_all() {
        let budget = RequestBudget::new();
        let first = budget.of_connection();
        let reserve = |of: &RequestBudget| of.clone().reserve(MIB).now_or_never();
        let mut held: Vec<_> = (0..4).map(|_| reserve(&first).expect("room")).collect();
        assert!(reserve(&first).is_none(), "it waits");
        for _ in 0..15 {
            let other = budget.of_connection();
            held.extend((0..4).map(|_| reserve(&other).expect("room")));
        }
        assert!(held.iter().all(Result::is_ok));
        let last = budget.of_connection();
        assert!(matches!(reserve(&last), Some(Err(Exhausted))));
        drop(held);
        assert!(matches!(reserve(&last), Some(Ok(_))));
    }
}
