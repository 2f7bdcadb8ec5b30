//! The one place that spawns: every task belongs to a scope and cannot outlive it.
//!
//! A [`Scope`] is a cancellation token and a tracker. Dropping it cancels its tasks; `shutdown`
//! cancels them and waits until all have ended. Knows nothing of what the tasks do.

mod bundle;
#[cfg(feature = "relay")]
mod polls;
#[cfg(feature = "relay")]
mod turn;

use std::future::Future;

use tokio_util::task::AbortOnDropHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use bundle::Bundle;
#[cfg(feature = "relay")]
pub(crate) use polls::{longest_poll, measure_polls};
#[cfg(feature = "relay")]
pub(crate) use turn::{Work, others_run, poll_turn, spend};

/// Owns tasks: they end when it is dropped or shut down.
#[derive(Debug)]
pub(crate) struct Scope {
    token: CancellationToken,
    tracker: TaskTracker,
}

/// How a task of its own ended.
#[derive(Debug)]
pub(crate) enum Ended<T> {
    Done(T),
    /// With its panic's text.
    Panicked(String),
}

/// Runs a future as a task of its own, which ends with this one where it is dropped.
pub(crate) async fn attached<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> Ended<T> {
    match AbortOnDropHandle::new(tokio::spawn(future)).await {
        Ok(done) => Ended::Done(done),
        Err(error) => Ended::Panicked(panic_text(error)),
    }
}

/// Returns what a panic said.
fn panic_text(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else {
        return "the runtime is shutting down".to_owned();
    };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a text".to_owned())
}

/// A task that panics at once does so ten times a second, not all the time.
const RESTART: std::time::Duration = std::time::Duration::from_millis(100);

impl Scope {
    pub(crate) fn new() -> Self {
        Self {
            token: CancellationToken::new(),
            tracker: TaskTracker::new(),
        }
    }

    /// Returns the token that tells this scope's tasks to end.
    pub(crate) fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Runs `task` until it ends by itself or the scope is cancelled, whichever comes first; a
    /// task that has to clean up takes [`Scope::token`] and is spawned by [`Scope::spawn_graceful`].
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let token = self.token();
        // Boxed: a future that is handed into another one is kept twice in it, and a connection's
        // takes kilobytes.
        let task = measured(task);
        self.tracker.spawn(async move {
            token.run_until_cancelled(task).await;
        });
    }

    /// Runs what `make` makes, and again whenever it panics: a relay must not live on with its
    /// fan-out dead.
    pub(crate) fn spawn_again<F>(&self, name: &'static str, make: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let tracker = self.tracker.clone();
        self.spawn(async move {
            while let Err(error) = AbortOnDropHandle::new(tracker.spawn(measured(make()))).await {
                tracing::error!(task = name, %error, "a task of the relay panicked; starting it again");
                tokio::time::sleep(RESTART).await;
            }
        });
    }

    /// Runs `task` to its own end, which it comes to soon after the token is cancelled.
    pub(crate) fn spawn_graceful(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(measured(task));
    }

    /// Waits until all tasks have ended; none may be spawned any more.
    pub(crate) async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Cancels the tasks and waits until all of them have ended.
    pub(crate) async fn shutdown(&self) {
        self.token.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

/// Runs what takes the processor for long on a thread that may be kept busy; `None` where the
/// runtime ends first.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let ended = match tokio::task::spawn_blocking(work).await {
        Ok(value) => return Some(value),
        Err(ended) => ended,
    };
    if let Ok(panic) = ended.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
    None
}

#[cfg(feature = "relay")]
fn measured<F: Future<Output = ()>>(task: F) -> polls::Measured<F> {
    polls::Measured::new(task)
}

/// Without a relay there are no measurements to show.
#[cfg(not(feature = "relay"))]
fn measured<F: Future<Output = ()>>(task: F) -> std::pin::Pin<Box<F>> {
    Box::pin(task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_does_not_outlive_its_scope() {
        let (held, mut ended) = tokio::sync::mpsc::channel::<()>(1);
        let scope = Scope::new();
        scope.spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        drop(scope);
        assert_eq!(ended.recv().await, None);
    }

    #[tokio::test]
    async fn a_task_that_panics_is_started_again_and_ends_with_its_scope() {
        let (said, mut heard) = tokio::sync::mpsc::channel(4);
        let scope = Scope::new();
        scope.spawn_again("test", move || {
            let said = said.clone();
            async move {
                said.send(()).await.expect("the test listens");
                assert!(said.capacity() < 3, "the first one panics");
                std::future::pending::<()>().await;
            }
        });
        // Both starts stay unread: the capacity tells how often it was started.
        while heard.len() < 2 {
            tokio::task::yield_now().await;
        }
        scope.shutdown().await;
        while heard.recv().await.is_some() {}
    }

    #[tokio::test]
    async fn shutdown_waits_for_what_cleans_up() {
        let scope = Scope::new();
        let token = scope.token();
        let (done, mut seen) = tokio::sync::oneshot::channel();
        scope.spawn_graceful(async move {
            token.cancelled().await;
            tokio::task::yield_now().await;
            done.send(()).expect("the test waits");
        });
        scope.shutdown().await;
        assert_eq!(seen.try_recv(), Ok(()));
    }
}
