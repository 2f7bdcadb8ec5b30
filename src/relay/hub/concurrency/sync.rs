//! Shuttle's primitives under the names of `crate::base::sync`.

use std::task::Waker;

pub(crate) use shuttle::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicU64, Ordering},
};

/// The calls of `atomic_waker::AtomicWaker`, on a lock.
pub(crate) struct AtomicWaker(Mutex<Option<Waker>>);

impl AtomicWaker {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn register(&self, waker: &Waker) {
        *lock(&self.0) = Some(waker.clone());
    }

    pub(crate) fn wake(&self) {
        let waker = lock(&self.0).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
