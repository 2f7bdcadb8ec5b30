//! What a publisher, a listener and a waiter need of a relay, wherever it is.
//!
//! The network client and the in-process relay both offer these, so that code written against them
//! runs with either.

use std::fmt::Debug;

use async_trait::async_trait;

use super::{Accepted, ConnectionState, FlagState, Notification, Report, WorkDetected};
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

    /// Reports what the listener does with a queue; the report's number is filled in.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) or
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where there is no stream just
    /// now: report again after the next welcome.
    async fn report(&mut self, report: Report) -> Result<()>;

    /// Returns whether wake-ups can arrive just now.
    fn state(&self) -> ConnectionState;
}

/// Hears a flag's states.
#[async_trait]
pub trait FlagWatch: Debug + Send + 'static {
    /// Waits for the next state: the present one first, then each change. A set is never conflated
    /// away (R21). `None` when the watch was closed.
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
