//! The limits of a queue, and the checks of requests against them.

use std::time::Duration;

use super::NewMessage;
use crate::error::{Error, Result};

/// A queue's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLimits {
    /// The maximum number of messages per get or peek.
    pub batch: usize,
    /// The maximum size of a body, in bytes.
    pub body: usize,
    /// The shortest and the longest visibility time-out.
    pub visibility: (Duration, Duration),
    /// The longest delay of a put and of a release.
    pub delay: Duration,
    /// The resolution of all times: a message may become visible this much later.
    pub resolution: Duration,
}

pub(super) const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

impl QueueLimits {
    /// The limits of the embedded queues: those of Azure Queue Storage, so that programs can move
    /// there. Also the default for the limits of other back-ends.
    pub const EMBEDDED: Self = Self {
        batch: 32,
        body: 64 * 1024,
        visibility: (Duration::from_millis(1), WEEK),
        delay: WEEK,
        resolution: Duration::from_millis(1),
    };

    /// Checks all messages of a put before any of them is put.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a body or a delay is too long.
    pub fn check_put(&self, messages: &[NewMessage]) -> Result<()> {
        messages.iter().try_for_each(|message| {
            Self::check_body(message.body.len(), self.body)?;
            self.check_delay(message.delay)
        })
    }

    /// Checks the length of a body.
    pub(crate) fn check_body(length: usize, max: usize) -> Result<()> {
        if length <= max {
            return Ok(());
        }
        let rule = format_args!("must be at most {max} bytes, but has {length}");
        Err(Error::invalid("body", rule))
    }

    /// Checks the `max` of a get or a peek; returns it, limited to one batch.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for 0.
    pub fn check_max(&self, max: usize) -> Result<usize> {
        match max {
            0 => Err(Error::invalid("max", "must be at least 1")),
            max => Ok(max.min(self.batch)),
        }
    }

    /// Checks a visibility time-out.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it is outside of [`QueueLimits::visibility`].
    pub fn check_visibility(&self, timeout: Duration) -> Result<()> {
        let (least, most) = self.visibility;
        if (least..=most).contains(&timeout) {
            return Ok(());
        }
        let rule = format_args!("must be {least:?} to {most:?}, but is {timeout:?}");
        Err(Error::invalid("visibility_timeout", rule))
    }

    /// Checks the delay of a put or of a release.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it is above [`QueueLimits::delay`].
    pub fn check_delay(&self, delay: Duration) -> Result<()> {
        if delay <= self.delay {
            return Ok(());
        }
        let rule = format_args!("must be at most {:?}, but is {delay:?}", self.delay);
        Err(Error::invalid("delay", rule))
    }
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self::EMBEDDED
    }
}
