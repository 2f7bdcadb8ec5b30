//! A limit on the cursors of several subscriptions together, such as all of one principal.

use super::sync::{AtomicU64, Ordering};

/// The cursors of the subscriptions that share it, and their limit.
#[derive(Debug)]
pub(crate) struct CursorPool {
    taken: AtomicU64,
    limit: AtomicU64,
}

impl CursorPool {
    /// Creates a pool without a limit.
    pub(crate) fn unlimited() -> Self {
        Self {
            taken: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
        }
    }

    /// Sets the limit. Cursors beyond it stay.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes `count` cursors below the limit, all or none.
    pub(super) fn take(&self, count: u64) -> bool {
        let limit = self.limit();
        let more = |all: u64| all.checked_add(count).filter(|all| *all <= limit);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.taken.fetch_update(set, fetch, more).is_ok()
    }

    /// Takes a cursor that is needed even beyond the limit.
    pub(super) fn take_beyond(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn give_back(&self, count: u64) {
        self.taken.fetch_sub(count, Ordering::Relaxed);
    }
}
