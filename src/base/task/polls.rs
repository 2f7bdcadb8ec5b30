//! The longest poll of any task, in processor time of its thread.
//!
//! It shows how long a worker thread was kept from other tasks, independent of other load on the
//! machine. Off by default, because the measurement costs about half a microsecond per poll.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Whether polls are measured in this process.
static MEASURED: AtomicBool = AtomicBool::new(false);
/// In microseconds.
static LONGEST: AtomicU64 = AtomicU64::new(0);

/// A future that measures its polls.
pub(super) struct Measured<F>(Pin<Box<F>>);

/// Enables the measurement, for all tasks.
pub(crate) fn measure_polls() {
    MEASURED.store(true, Ordering::Relaxed);
}

/// Returns the longest poll so far; `None` if the measurement is off.
pub(crate) fn longest_poll() -> Option<Duration> {
    let measured = MEASURED.load(Ordering::Relaxed);
    measured.then(|| Duration::from_micros(LONGEST.load(Ordering::Relaxed)))
}

impl<F: Future> Measured<F> {
    pub(super) fn new(future: F) -> Self {
        Self(Box::pin(future))
    }
}

impl<F: Future> Future for Measured<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if !MEASURED.load(Ordering::Relaxed) {
            return self.0.as_mut().poll(cx);
        }
        let began = thread_time();
        let polled = self.0.as_mut().poll(cx);
        let micros = thread_time().saturating_sub(began).as_micros();
        LONGEST.fetch_max(micros.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
        polled
    }
}

/// Returns the processor time of this thread.
fn thread_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (tv_sec.try_into(), tv_nsec.try_into());
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::task::Scope;

    #[tokio::test]
    async fn a_long_poll_is_measured() {
        measure_polls();
        let scope = Scope::new();
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        scope.spawn(async move {
            let began = thread_time();
            while thread_time() - began < Duration::from_millis(20) {}
            drop(ended);
        });
        end.await.expect_err("dropped");
        // The poll has returned when the scope's tasks have ended.
        scope.shutdown().await;
        let longest = longest_poll().expect("measured");
        assert!(longest >= Duration::from_millis(20), "{longest:?}");
    }
}
