//! The watchers to wake once the board is unlocked.

use std::task::Waker;

/// Those to wake. Dropping it wakes them.
#[derive(Debug, Default)]
#[must_use = "they are woken when it is dropped, which must not be under the board's lock"]
pub(super) struct Wakers(Vec<Waker>);

/// What a write has come to, and those who are still to be woken for it. Dropping it wakes them.
#[derive(Debug)]
#[must_use = "the watchers are told by `tell`"]
pub(crate) struct Told<T> {
    pub(super) outcome: T,
    pub(super) wakers: Wakers,
}

impl<T> Told<T> {
    /// Wakes the watchers.
    ///
    /// # Cancel safety
    /// Those left are woken when it is dropped.
    pub(crate) async fn tell(self) -> T {
        self.wakers.wake_in_slices().await;
        self.outcome
    }
}

/// Woken before other tasks have their turn: some 50 us.
const SLICE: usize = 256;

impl Wakers {
    /// Wakes all at once.
    pub(super) fn wake(self) {
        drop(self);
    }

    /// Wakes them some at a time: 100,000 watchers must not keep a thread from all else.
    ///
    /// # Cancel safety
    /// Those left are woken when it is dropped.
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

    /// Makes room for so many at once.
    pub(super) fn reserve(&mut self, count: usize) {
        self.0.reserve(count);
    }

    pub(super) fn push(&mut self, waker: Option<Waker>) {
        self.0.extend(waker);
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
    fn a_step_wakes_a_slice_and_dropping_the_rest_of_them() {
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
