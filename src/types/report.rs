//! A listener's report on a queue.

use std::time::Duration;

use super::{QueueAddress, notification::check_delay};
use crate::error::Result;

/// A listener's report on one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The queue.
    pub queue: QueueAddress,
    /// The state of the listener's work on the queue.
    pub state: ReportState,
    /// The sequence of the newest wake-up that the report covers.
    pub sequence: u64,
    /// Grows within a subscription; the relay ignores the state of an older report.
    pub number: u64,
    /// Messages become visible after this time, and the relay wakes the queue then. Zero is now.
    pub visible_in: Option<Duration>,
    /// Number of messages in the queue, as far as the listener knows. After DRAINED it counts as 0.
    pub current_queue_depth: u64,
    /// Age of `current_queue_depth`; `None`: the depth is not known, and the relay does not list it.
    pub depth_age: Option<Duration>,
    /// Number of dequeue tasks working or waiting for work.
    pub active_dequeue_tasks: u32,
    /// Maximum of dequeue tasks active at one time.
    pub total_dequeue_tasks: u32,
    /// Average time of a wake-up from its publisher to the listener.
    pub mean_wake_latency: Duration,
    /// How long the listener has been handling the oldest of its messages; `None` without one.
    pub busy_for: Option<Duration>,
    /// Of a member of a group: how many messages of the queue the listener can take from now on, at
    /// most the capacity of its subscription. With 0 the group's work goes to other members, or waits
    /// until one has room. `None`: as before.
    pub capacity: Option<u32>,
}

/// The state of a listener's work on a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ReportState {
    /// The report does not state it.
    #[default]
    Unspecified,
    /// A get issued after the wake-up found work.
    Busy,
    /// The queue was read until empty, by a get issued after the wake-up.
    Drained,
}

impl Report {
    /// Creates a report on the queue without further values.
    pub fn new(queue: QueueAddress) -> Self {
        Self {
            queue,
            state: ReportState::Unspecified,
            sequence: 0,
            number: 0,
            visible_in: None,
            current_queue_depth: 0,
            depth_age: None,
            active_dequeue_tasks: 0,
            total_dequeue_tasks: 0,
            mean_wake_latency: Duration::ZERO,
            busy_for: None,
            capacity: None,
        }
    }

    /// Returns whether the report wakes the queue's listeners at once.
    #[cfg(feature = "relay")]
    pub(crate) fn counts_a_cause(&self) -> bool {
        self.visible_in.is_some_and(|span| span.is_zero())
    }

    /// Checks the rules that the types do not enforce.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if `visible_in` exceeds 14 days.
    pub fn check(&self) -> Result<()> {
        self.visible_in
            .map_or(Ok(()), |span| check_delay("visible_in", span))
    }
}
