//! The only module that spawns tasks: each task belongs to a scope and cannot outlive it.
//!
//! A [`Scope`] is a cancellation token and a tracker. Dropping it cancels its tasks; `shutdown`
//! cancels them and waits until all have ended.

#[cfg(feature = "relay")]
mod coop;
mod group;

use std::{any::Any, future::Future};

use tokio_util::task::AbortOnDropHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[cfg(feature = "relay")]
pub(crate) use coop::{Work, poll_budget, spend, spend_and_yield};
pub(crate) use group::TaskGroup;

use crate::error::{Error, ErrorKind, Result};

/// Owns tasks: they end when it is dropped or shut down.
#[derive(Debug)]
pub(crate) struct Scope {
    token: CancellationToken,
    tracker: TaskTracker,
}

/// The result of a spawned task.
#[derive(Debug)]
pub(crate) enum TaskOutcome<T> {
    Done(T),
    /// The panic's message.
    Panicked(String),
}

/// Runs a future as a separate task and waits for it. Dropping the returned future aborts the task.
#[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
pub(crate) async fn spawn_scoped<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> TaskOutcome<T> {
    match AbortOnDropHandle::new(tokio::spawn(future)).await {
        Ok(done) => TaskOutcome::Done(done),
        Err(error) => TaskOutcome::Panicked(match error.try_into_panic() {
            Ok(panic) => panic_message(&*panic).to_owned(),
            Err(_) => "the runtime is shutting down".to_owned(),
        }),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

/// The pause before a restart, so that a task that panics at once does so ten times a second.
const RESTART_DELAY: std::time::Duration = std::time::Duration::from_millis(100);

impl Scope {
    pub(crate) fn new() -> Self {
        Self {
            token: CancellationToken::new(),
            tracker: TaskTracker::new(),
        }
    }

    /// Returns the token that is cancelled when the scope's tasks must end.
    pub(crate) fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Spawns `task`, and drops it when the scope is cancelled. A task that must clean up takes
    /// [`Scope::token`] and is spawned by [`Scope::spawn_graceful`].
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let token = self.token();
        // Boxed: the outer future would otherwise contain the task twice, and a connection's future
        // takes kilobytes.
        let task = Box::pin(task);
        self.tracker.spawn(async move {
            token.run_until_cancelled(task).await;
        });
    }

    /// Spawns the future of `make`, and a new one after each panic: a relay must not go on without
    /// its fan-out.
    pub(crate) fn spawn_restarting<F>(
        &self,
        name: &'static str,
        make: impl Fn() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let tracker = self.tracker.clone();
        self.spawn(async move {
            while let Err(error) = AbortOnDropHandle::new(tracker.spawn(make())).await {
                tracing::error!(task = name, %error, "a task of the relay panicked and is restarted");
                tokio::time::sleep(RESTART_DELAY).await;
            }
        });
    }

    /// Spawns `task` and never drops it. It must end soon after the token is cancelled.
    pub(crate) fn spawn_graceful(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(task);
    }

    /// Waits until all tasks have ended. No task may be spawned after this call.
    pub(crate) async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Cancels the tasks and waits until all of them have ended.
    pub(crate) async fn shutdown(&self) {
        self.token.cancel();
        self.ended().await;
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

/// Runs CPU-intensive work on a blocking thread.
///
/// # Errors
/// [`ErrorKind::Closed`] if the runtime ends first.
#[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|ended| {
        if let Ok(panic) = ended.try_into_panic() {
            std::panic::resume_unwind(panic);
        }
        Error::new(ErrorKind::Closed, "the runtime has ended")
    })
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
        let (started, mut starts) = tokio::sync::mpsc::channel(4);
        let scope = Scope::new();
        scope.spawn_restarting("test", move || {
            let started = started.clone();
            async move {
                started.send(()).await.expect("the test receives");
                assert!(started.capacity() < 3, "the first run panics");
                std::future::pending::<()>().await;
            }
        });
        // The starts stay unread, so the capacity gives their number.
        while starts.len() < 2 {
            tokio::task::yield_now().await;
        }
        scope.shutdown().await;
        while starts.recv().await.is_some() {}
    }

    #[tokio::test]
    async fn shutdown_waits_for_tasks_that_clean_up() {
        let scope = Scope::new();
        let token = scope.token();
        let (done, mut received) = tokio::sync::oneshot::channel();
        scope.spawn_graceful(async move {
            token.cancelled().await;
            tokio::task::yield_now().await;
            done.send(()).expect("the test waits");
        });
        scope.shutdown().await;
        assert_eq!(received.try_recv(), Ok(()));
    }
}
