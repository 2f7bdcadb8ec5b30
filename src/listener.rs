//! The auto-scaling queue listener: no dequeue task while there is no work, as many as needed after
//! a wake-up, and no stranded message.
//!
//! A [`Listener`] reads one queue. With wake-ups, from a relay over the network or in this process,
//! it sleeps without a single call to the queue until a wake-up arrives. While wake-ups cannot
//! arrive, it polls, less and less often. It knows neither client nor relay: it takes any
//! [`WakeStream`](crate::WakeStream) and any [`Notifier`](crate::Notifier).

pub mod agent;
mod budget;
mod builder;
mod config;
#[cfg(feature = "console")]
mod console;
mod delivery;
mod dequeue;
mod handler;
mod hooks;
mod listeners;
pub(crate) mod poison;
mod poison_queue;
#[cfg(feature = "policy-file")]
pub(crate) mod policy_file;
pub mod scaling;
mod shared;
mod stream;
mod supervisor;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

#[cfg(feature = "policy-file")]
pub use self::policy_file::PolicyFile;
use self::shared::Shared;
pub use self::{
    budget::Budget,
    builder::ListenerBuilder,
    config::ListenerConfig,
    handler::{Delivery, Handler, HandlerError, HandlerResult, Postponed, Rejected, RetryAfter},
    hooks::{Action, Hooks},
    listeners::Listeners,
    poison_queue::{PoisonedMessage, Redriven, redrive},
    shared::{ListenerMonitor, ListenerStats, QueryState},
    stream::{Messages, Received},
};
pub use crate::listener::scaling::ListenerMode;
use crate::{base::task::Scope, error::Result, queue::WorkQueue};

/// Reads a queue: gets messages, runs the handler, and deletes handled messages.
///
/// Dropping it ends everything at once; messages in flight become visible after their visibility
/// time-out. [`Listener::shutdown`] finishes or releases them.
///
/// ```
/// use reveille::{listener::{Delivery, Listener}, queue::{MemoryQueue, NewMessage, WorkQueue}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reveille::Result<()> {
/// let queue = std::sync::Arc::new(MemoryQueue::new("local/jobs".parse()?));
/// queue.put(vec![NewMessage::new("hello")]).await?;
/// let (done, mut seen) = tokio::sync::mpsc::channel(1);
/// let listener = Listener::builder(queue)
///     .start(move |job: Delivery| {
///         let done = done.clone();
///         async move { Ok(done.send(job.message.body).await?) }
///     })
///     .await?;
/// assert_eq!(seen.recv().await.expect("a job"), "hello");
/// listener.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    tasks: Arc<Scope>,
    supervisor: Scope,
}

/// The start of a listener waits no longer for the queue's answer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to release messages at a shutdown, even without a grace period.
const LAST_CALLS_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the last reports to the relay at a shutdown.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

impl Listener {
    /// Makes a builder for a listener on a queue.
    pub fn builder(queue: Arc<dyn WorkQueue>) -> ListenerBuilder {
        ListenerBuilder::new(queue)
    }

    /// Starts `count` more dequeue tasks, up to the limit. They end when there is no work.
    pub fn start_listener(&self, count: usize) {
        self.shared
            .change(|scaler, now, _| scaler.start_more(count, now));
    }

    /// Returns the present state, with a depth that is read from the queue.
    pub async fn query_state(&self) -> QueryState {
        let depth = tokio::time::timeout(CHECK_TIMEOUT, self.shared.queue.depth()).await;
        let depth = depth.ok().and_then(Result::ok);
        if let Some(depth) = depth {
            self.shared.note_depth(depth);
        }
        QueryState {
            current_queue_depth: depth,
            ..self.state()
        }
    }

    /// Returns the present state without a depth: makes no call to the queue.
    pub fn state(&self) -> QueryState {
        self.shared.state()
    }

    /// Returns a monitor of this listener, for metrics.
    pub fn monitor(&self) -> ListenerMonitor {
        ListenerMonitor(Arc::clone(&self.shared))
    }

    /// Gets no more messages and waits for the handlers, at most for [`ListenerConfig::grace`].
    /// Then it tells running handlers to end within [`ListenerConfig::wind_down`], releases the
    /// messages that are not handled by then, and reports to the relay.
    ///
    /// Returns the listener's totals.
    pub async fn shutdown(self) -> ListenerStats {
        self.shared.stop();
        let ended = tokio::time::timeout(self.shared.config.grace, self.tasks.ended()).await;
        if ended.is_err() {
            self.shared.abandoning.cancel();
            // Bounded: the handlers' wind-down and a few calls to the queue remain.
            let config = &self.shared.config;
            let last = config
                .wind_down
                .saturating_add(config.grace.max(LAST_CALLS_TIMEOUT));
            let _ = tokio::time::timeout(last, self.tasks.ended()).await;
        }
        let _ = tokio::time::timeout(LAST_REPORT_TIMEOUT, self.reports_answered()).await;
        self.supervisor.shutdown().await;
        self.shared.state().stats
    }

    /// Waits until all reports are answered.
    async fn reports_answered(&self) {
        while self
            .shared
            .scaler(|scaler, now, _| scaler.reporter.has_pending_report(now))
        {
            self.shared.changed.notify_one();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
