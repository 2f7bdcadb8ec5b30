//! What a publisher, a listener and a waiter need of a relay, wherever it is.
//!
//! The network client and the in-process relay both offer these, so that code written against them
//! runs with either.

use std::{fmt::Debug, future::Future, pin::Pin, time::Duration};

use async_trait::async_trait;
use tokio::sync::watch;

use super::{Accepted, FlagState, LinkState, Notification, Report, WorkDetected};
use crate::error::Result;

/// Says that there is work.
#[async_trait]
pub trait Notify: Debug + Send + Sync + 'static {
    /// Notifies, and returns what was counted, in the notifications' order.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where one breaks a rule (it was not
    /// applied); [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) where no answer came in time
    /// (it may have been applied).
    async fn notify(&self, notifications: Vec<Notification>) -> Result<Vec<Accepted>>;
}

/// A report's way to the relay: sent while it is polled, and given up where it is dropped.
pub type Reported = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Hears that there is work.
#[async_trait]
pub trait Wakes: Debug + Send + 'static {
    /// Waits for the next wake-up; `None` when the subscription was closed.
    ///
    /// # Errors
    /// Only what is final: the relay refuses this subscription. Broken streams are mended inside.
    ///
    /// # Cancel safety
    /// Safe: a wake-up that was not returned is returned by the next call.
    async fn next(&mut self) -> Option<Result<WorkDetected>>;

    /// Reports what the listener does with a queue. The report is numbered here and now; it is sent
    /// by the future, which borrows nothing, so that the next wake-up need not wait for its answer.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) or
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where there is no stream just
    /// now: report again after the next welcome.
    fn report(&mut self, report: Report) -> Reported;

    /// Has a subscription that was refused, and has returned its error, ask again after about
    /// `after`: [`Wakes::next`] waits for wake-ups then as before. Returns whether it does; `false`
    /// by default.
    fn ask_again(&mut self, after: Duration) -> bool {
        let _ = after;
        false
    }

    /// Ends the stream, so that the relay counts on others, until this is called with `false`:
    /// [`Wakes::next`] waits meanwhile, and what was notified is told by the next stream. By default
    /// nothing happens, and wake-ups go on to come.
    fn pause(&mut self, paused: bool) {
        let _ = paused;
    }

    /// Returns a receiver that hears how it stands with the relay. Moves on only while
    /// [`Wakes::next`] is polled.
    fn link(&self) -> watch::Receiver<LinkState>;
}

/// Hears a flag's states.
#[async_trait]
pub trait FlagWatch: Debug + Send + 'static {
    /// Waits for the next state: the present one first, then each change. R21: a set is never
    /// conflated away. `None` when the watch was closed.
    ///
    /// # Errors
    /// Only what is final: the relay refuses this watch.
    ///
    /// # Cancel safety
    /// Safe: a state that was not returned is returned by the next call.
    async fn next(&mut self) -> Option<Result<FlagState>>;

    /// Acknowledges a generation, for whoever waits for the fleet.
    ///
    /// # Errors
    /// Whatever kept the acknowledgement from arriving.
    async fn ack(&mut self, generation: u64) -> Result<()>;
}

/// A durable flag that many nodes share; usually a blob, whose existence means set.
#[async_trait]
pub trait GlobalFlag: Debug + Send + Sync + 'static {
    /// Returns whether the flag is set, as it is stored now.
    ///
    /// # Errors
    /// Any failure to read; a flag that was never set is `false`.
    async fn is_set(&self) -> Result<bool>;

    /// Sets or clears the flag, durably.
    ///
    /// # Errors
    /// Any failure to write; it may have happened all the same.
    async fn set(&self, set: bool) -> Result<()>;
}
