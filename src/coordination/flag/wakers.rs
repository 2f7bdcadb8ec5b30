//! The watchers to wake after the registry is unlocked.

use std::task::Waker;

/// The wakers of watchers. Dropping it wakes them.
#[derive(Debug, Default)]
#[must_use = "its drop wakes the watchers, which must not happen under the registry's lock"]
pub(super) struct Wakers(Vec<Waker>);

/// The outcome of a write, with the watchers still to wake. Dropping it wakes them.
#[derive(Debug)]
#[must_use = "`wake_watchers` wakes the watchers"]
pub(crate) struct PendingWakes<T> {
    pub(super) outcome: T,
    pub(super) wakers: Wakers,
}

impl<T> PendingWakes<T> {
    /// Wakes the watchers.
    ///
    /// # Cancel safety
    /// The watchers left are woken on drop.
    pub(crate) async fn wake_watchers(self) -> T {
        self.wakers.wake_in_slices().await;
        self.outcome
    }
}

/// Watchers woken before the task yields: some 50 us.
const SLICE: usize = 256;

impl Wakers {
    /// Wakes all at once.
    pub(super) fn wake(self) {
        drop(self);
    }

    /// Wakes one slice at a time: 100,000 watchers must not block a thread.
    ///
    /// # Cancel safety
    /// The watchers left are woken on drop.
    pub(super) async fn wake_in_slices(mut self) {
        loop {
            let left = self.0.len().saturating_sub(SLICE);
            self.0.drain(left..).for_each(Waker::wake);
            if left == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Reserves room for `count` more wakers.
    pub(super) fn reserve(&mut self, count: usize) {
        self.0.reserve(count);
    }

    pub(super) fn push(&mut self, waker: Option<Waker>) {
        self.0.extend(waker);
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Context, Wake},
    };

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn wakers(counter: &Arc<Counter>, count: usize) -> Wakers {
        Wakers(vec![Waker::from(Arc::clone(counter)); count])
    }

    #[test]
    fn each_poll_wakes_a_slice_and_the_drop_wakes_the_rest() {
        let counter = Arc::new(Counter::default());
        let woken = || counter.0.load(Ordering::Relaxed);
        let mut waking = Box::pin(wakers(&counter, 3 * SLICE).wake_in_slices());
        let mut context = Context::from_waker(Waker::noop());
        for step in 1..3 {
            assert!(waking.as_mut().poll(&mut context).is_pending());
            assert_eq!(woken(), step * SLICE);
        }
        drop(waking);
        assert_eq!(woken(), 3 * SLICE);
        let few = std::pin::pin!(wakers(&counter, 7).wake_in_slices());
        assert!(few.poll(&mut context).is_ready());
        assert_eq!(woken(), 3 * SLICE + 7);
    }
}
