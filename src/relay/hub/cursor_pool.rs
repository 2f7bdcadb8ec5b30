//! Limits on the cursors of a stream, of several subscriptions together, such as all of one principal,
//! and of the relay.
//!
//! A queue that a subscription names counts as long as the subscription is open. One that only a
//! pattern matches counts while the subscription has a cursor for it. Without room for that, the
//! queue's wake-ups go under the pattern's own name.

use std::sync::atomic::AtomicBool;

use super::{
    interest::Interest,
    sync::{AtomicU64, Ordering},
};

/// The cursors of all subscriptions, and their limits.
#[derive(Debug)]
pub(crate) struct CursorLimits {
    taken: AtomicU64,
    pub(super) most: usize,
    pub(super) most_per_stream: usize,
    /// The process is short of memory. No order with other state matters.
    pub(super) is_short_of_memory: AtomicBool,
}

/// The cursors of the subscriptions that share it, and their limit.
#[derive(Debug)]
pub(crate) struct CursorPool {
    taken: AtomicU64,
    limit: AtomicU64,
}

impl CursorLimits {
    pub(super) fn new(most: usize, most_per_stream: usize) -> Self {
        Self {
            taken: AtomicU64::new(0),
            most,
            most_per_stream,
            is_short_of_memory: AtomicBool::new(false),
        }
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes a cursor of a stream that has `own`, unless it is counted already. A quarter of all is left
    /// for named queues, because their wake-ups cannot go under a pattern's name.
    pub(super) fn take(&self, subscription: &Interest, own: usize, is_named: bool) -> bool {
        if is_named {
            return true;
        }
        let is_short = self.is_short_of_memory.load(Ordering::Relaxed);
        let has_room = own < self.most_per_stream && !is_short;
        has_room && self.take_below(subscription, 1, self.most - self.most / 4)
    }

    /// Takes `count` cursors below a limit, and below that of the subscription's pool, all or none.
    pub(super) fn take_below(&self, subscription: &Interest, count: u64, limit: usize) -> bool {
        if count == 0 {
            return true;
        }
        let pool = subscription.pool.as_deref();
        if pool.is_some_and(|pool| !pool.take(count)) {
            return false;
        }
        let limit = limit as u64;
        let more = |all: u64| all.checked_add(count).filter(|all| *all <= limit);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let taken = self.taken.fetch_update(set, fetch, more).is_ok();
        if !taken && let Some(pool) = pool {
            pool.give_back(count);
        }
        taken
    }

    /// Takes a cursor that is needed even beyond the limits.
    pub(super) fn take_beyond(&self, subscription: &Interest) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        if let Some(pool) = &subscription.pool {
            pool.take_beyond();
        }
    }

    pub(super) fn give_back(&self, subscription: &Interest, count: u64) {
        self.taken.fetch_sub(count, Ordering::Relaxed);
        if let Some(pool) = &subscription.pool {
            pool.give_back(count);
        }
    }
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
