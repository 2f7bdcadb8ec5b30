//! A publisher's notification of new messages in a queue.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Limits, QueueAddress, name::check_text};
use crate::error::{Error, Result};

/// A notification that a queue has work. Put the messages into the queue first, then notify.
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
    /// The publisher's measure of the messages that it put, such as bytes. Summed.
    pub payload_size: u64,
    /// Number of messages put; 0 is "unknown" and counts as 1. Summed.
    pub messages: u64,
    /// Number of notifications conflated into this one; 0 counts as 1. Summed.
    pub notifications: u64,
    /// Delay of the wake-up, for messages that become visible later. At most 14 days.
    pub delay: Duration,
    /// Time of publication, by the publisher's clock.
    pub published_at: Option<SystemTime>,
    /// W3C trace context, at most 128 bytes; may be empty. Wake-ups carry that of the newest
    /// notification.
    pub traceparent: Arc<str>,
}

/// What is known of a queue's newest notification. Frames, timers and wake-ups carry it whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastEvent {
    /// The publisher's name; may be empty.
    pub publisher: Arc<str>,
    /// Time of publication, by the publisher's clock.
    pub published_at: Option<SystemTime>,
    /// W3C trace context; may be empty.
    pub traceparent: Arc<str>,
}

/// The relay's acknowledgement of a notification.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accepted {
    /// The queue's sequence after the notification.
    pub sequence: u64,
    /// Number of listeners with a stream on the queue; one with several matching selectors counts for
    /// each.
    pub listeners: u32,
}

impl Notification {
    /// Creates a notification of one message of unknown size, without a delay.
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

    /// Checks the rules that the types do not enforce: the delay, the time and the lengths of the
    /// texts. A time is in the years 1 to 9999.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), with field and rule.
    pub fn check(&self) -> Result<()> {
        check_delay("delay", self.delay)?;
        if self.published_at.is_some_and(|time| !is_in_calendar(time)) {
            return Err(Error::invalid("published_at", "is no point in time"));
        }
        check_text("traceparent", &self.traceparent, Limits::TRACEPARENT)
    }
}

#[cfg(feature = "relay")]
impl LastEvent {
    pub(crate) fn new(publisher: &Arc<str>, notification: &Notification) -> Self {
        Self {
            publisher: Arc::clone(publisher),
            published_at: notification.published_at,
            traceparent: Arc::clone(&notification.traceparent),
        }
    }

    /// Takes over another notification. Equal texts are not cloned, because a burst comes
    /// from one publisher.
    pub(crate) fn replace(&mut self, publisher: &Arc<str>, notification: &Notification) {
        for (kept, new) in [
            (&mut self.publisher, publisher),
            (&mut self.traceparent, &notification.traceparent),
        ] {
            if !Arc::ptr_eq(kept, new) {
                *kept = Arc::clone(new);
            }
        }
        self.published_at = notification.published_at;
    }
}

/// Returns whether a time is in the years 1 to 9999: the range of a Timestamp that all languages
/// support.
pub(crate) fn is_in_calendar(time: SystemTime) -> bool {
    const SINCE_YEAR_1: Duration = Duration::from_secs(62_135_596_800);
    const YEAR_10000: Duration = Duration::from_secs(253_402_300_800);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => after < YEAR_10000,
        Err(before) => before.duration() <= SINCE_YEAR_1,
    }
}

/// Checks a duration against the longest delay.
pub(crate) fn check_delay(field: &str, span: Duration) -> Result<()> {
    if span > Limits::DELAY {
        return Err(Error::invalid(field, "must be at most 14 days"));
    }
    Ok(())
}
