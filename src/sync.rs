//! The locks and wakers that the hub stands on, in one place.
//!
//! The concurrency test compiles the hub a second time with shuttle's in their stead (see
//! `hub/concurrency.rs`), so the hub names its primitives through this module only.

pub(crate) use std::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicU64, Ordering},
};

pub(crate) use atomic_waker::AtomicWaker;

/// Locks, whatever a thread that panicked left behind: what the hub's locks guard is whole
/// between any two of their lines.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    work::count();
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// How much a thread has done, as the locks that it took: tests bound the work of a step by it.
#[cfg(test)]
pub(crate) mod work {
    use std::cell::Cell;

    thread_local! {
        static LOCKS: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn done() -> u64 {
        LOCKS.get()
    }

    pub(super) fn count() {
        LOCKS.set(LOCKS.get() + 1);
    }
}
