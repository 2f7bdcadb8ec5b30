//! The interfaces of a relay for publishers, listeners and flag watchers.
//!
//! The network client implements all of them, and the in-process relay those for publishers and listeners.

use std::{fmt::Debug, future::Future, pin::Pin, time::Duration};

use async_trait::async_trait;
use tokio::sync::watch;

use super::{Accepted, FlagState, LinkState, Notification, Report, WorkDetected};
use crate::error::Result;

/// Notifies a relay that queues have work.
#[async_trait]
pub trait Notifier: Debug + Send + Sync + 'static {
    /// Notifies, and returns what became of each notification, in their order. A refused one does not
    /// affect the others.
    ///
    /// # Errors
    /// What concerns all of them, such as [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable)
    /// if the relay cannot be reached (they may have been counted).
    async fn notify_each(&self, notifications: Vec<Notification>) -> Result<Vec<Result<Accepted>>>;

    /// Notifies, and returns the acknowledgements in the notifications' order.
    ///
    /// # Errors
    /// The first error of [`Notifier::notify_each`]; the other notifications may have been counted.
    async fn notify(&self, notifications: Vec<Notification>) -> Result<Vec<Accepted>> {
        self.notify_each(notifications).await?.into_iter().collect()
    }
}

/// The future that sends a report to the relay. Dropping it cancels the report.
pub type ReportFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Receives wake-ups.
#[async_trait]
pub trait WakeStream: Debug + Send + 'static {
    /// Waits for the next wake-up; `None` when the subscription was closed.
    ///
    /// # Errors
    /// Only a final refusal of this subscription. Broken streams are reopened internally.
    ///
    /// # Cancel safety
    /// Safe: a wake-up that was not returned is returned by the next call.
    async fn next(&mut self) -> Option<Result<WorkDetected>>;

    /// Reports the listener's work on a queue. This call numbers the report; the returned future
    /// sends it and borrows nothing, so that the next wake-up need not wait for its answer.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) or
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if there is no stream at present:
    /// report again after the next Welcome.
    fn report(&mut self, report: Report) -> ReportFuture;

    /// After a final refusal was returned, schedules another attempt in about `after`;
    /// [`WakeStream::next`] then waits for wake-ups as before. Returns whether an attempt was scheduled;
    /// `false` by default.
    fn ask_again(&mut self, after: Duration) -> bool {
        let _ = after;
        false
    }

    /// Returns a receiver of the connection's state. Updated only while [`WakeStream::next`] is polled.
    fn link(&self) -> watch::Receiver<LinkState>;
}

/// Receives a flag's states.
#[async_trait]
pub trait FlagWatch: Debug + Send + 'static {
    /// Waits for the next state: the present one first, then each change. R21: a set is never
    /// conflated away. `None` when the watch was closed.
    ///
    /// # Errors
    /// Only a final refusal of this watch.
    ///
    /// # Cancel safety
    /// Safe: a state that was not returned is returned by the next call.
    async fn next(&mut self) -> Option<Result<FlagState>>;

    /// Acknowledges a generation, for callers that wait for all watchers.
    ///
    /// # Errors
    /// Any failure to deliver the acknowledgement.
    async fn ack(&mut self, generation: u64) -> Result<()>;
}

/// A durable flag that many nodes share; usually a blob, whose existence means set.
#[async_trait]
pub trait GlobalFlag: Debug + Send + Sync + 'static {
    /// Returns whether the stored flag is set.
    ///
    /// # Errors
    /// Any failure to read; a flag that was never set is `false`.
    async fn is_set(&self) -> Result<bool>;

    /// Sets or clears the flag, durably.
    ///
    /// # Errors
    /// Any failure to write; the flag may still have been written.
    async fn set(&self, set: bool) -> Result<()>;
}
