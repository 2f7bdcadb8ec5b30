//! What a publisher says: there is work in a queue.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Limits, QueueAddress, name::check_text};
use crate::error::{Error, Result};

/// The trigger event as its publisher makes it. Put the work in the queue first, then notify.
///
/// ```
/// use reveille::{Notification, QueueAddress};
///
/// let orders: QueueAddress = "acct/orders".parse()?;
/// let notification = Notification { messages: 20, ..Notification::new(orders) };
/// # Ok::<(), reveille::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// The queue that has work.
    pub queue: QueueAddress,
    /// The publisher's own measure of what it put: bytes, or messages of a batch. Summed.
    pub payload_size: u64,
    /// How many messages were put; 0 is "unknown" and counts as 1. Summed.
    pub messages: u64,
    /// How many notifications this one stands for; 0 counts as 1. Summed.
    pub notifications: u64,
    /// Wake only after this span, because the work is not visible before. At most 14 days.
    pub delay: Duration,
    /// When it was published, by the publisher's clock.
    pub published_at: Option<SystemTime>,
    /// W3C trace context, handed on with the newest notification; at most 128 bytes, else empty.
    pub traceparent: Arc<str>,
}

/// What the relay made of a notification.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accepted {
    /// The queue's sequence after it.
    pub sequence: u64,
    /// How many listeners hold a stream on the queue.
    pub listeners: u32,
}

impl Notification {
    /// Makes a notification of one message of unknown size, effective at once.
    pub fn new(queue: QueueAddress) -> Self {
        Self {
            queue,
            payload_size: 0,
            messages: 0,
            notifications: 1,
            delay: Duration::ZERO,
            published_at: None,
            traceparent: Arc::from(""),
        }
    }

    /// Checks the rules that the types do not: the delay and the length of the texts.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), naming field and rule.
    pub fn check(&self) -> Result<()> {
        check_delay("delay", self.delay)?;
        check_text("traceparent", &self.traceparent, Limits::TRACEPARENT)
    }
}

/// Checks a span against the longest delay.
pub(crate) fn check_delay(field: &str, span: Duration) -> Result<()> {
    if span > Limits::DELAY {
        return Err(Error::invalid(field, "must be at most 14 days"));
    }
    Ok(())
}
