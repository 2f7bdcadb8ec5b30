//! Locks and wakers.
//!
//! The hub names its primitives through `super::sync` only: in a test build that is
//! `hub/concurrency/sync.rs`, whose primitives are seen by the concurrency models.

pub(crate) use std::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicU64, Ordering},
};
use std::sync::{PoisonError, TryLockError};

pub(crate) use atomic_waker::AtomicWaker;

/// Locks, and ignores poisoning: the guarded data is consistent after each statement, so a thread
/// that panicked leaves no broken state behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    work::count();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks if no other thread holds the lock, and ignores poisoning as [`lock`] does.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    #[cfg(test)]
    work::count();
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks for reading, and ignores poisoning as [`lock`] does.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, and ignores poisoning as [`lock`] does.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a thread's locks, as a measure of its work: tests limit the work of a step with it.
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
