//! What a listener tells of a queue.

use std::time::Duration;

use super::{QueueAddress, notification::check_delay};
use crate::error::Result;

/// A listener's report on one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The queue.
    pub queue: QueueAddress,
    /// What the listener does with it.
    pub state: ReportState,
    /// The newest wake-up's sequence that this tells of.
    pub sequence: u64,
    /// Grows per subscription; the state of an older report is ignored.
    pub number: u64,
    /// Messages become visible after this span: wake the queue then. Zero is now.
    pub visible_in: Option<Duration>,
    /// Messages in the queue, as far as the listener knows.
    pub current_queue_depth: u64,
    /// Dequeue tasks working or waiting for work.
    pub active_dequeue_tasks: u32,
    /// The most that were ever active at one time.
    pub total_dequeue_tasks: u32,
    /// How long a message takes to handle, on average.
    pub mean_handling_time: Duration,
    /// How long a wake-up takes from its publisher, on average.
    pub mean_wake_latency: Duration,
}

/// What a listener does with a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ReportState {
    /// Nothing is said of it.
    #[default]
    Unspecified,
    /// A get issued after the wake-up found work.
    Busy,
    /// It read until empty, by a get issued after the wake-up.
    Drained,
}

impl Report {
    /// Makes a report that says nothing yet but which queue it is about.
    pub fn new(queue: QueueAddress) -> Self {
        Self {
            queue,
            state: ReportState::Unspecified,
            sequence: 0,
            number: 0,
            visible_in: None,
            current_queue_depth: 0,
            active_dequeue_tasks: 0,
            total_dequeue_tasks: 0,
            mean_handling_time: Duration::ZERO,
            mean_wake_latency: Duration::ZERO,
        }
    }

    /// Checks the rules that the types do not.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where `visible_in` is over 14 days.
    pub fn check(&self) -> Result<()> {
        self.visible_in
            .map_or(Ok(()), |span| check_delay("visible_in", span))
    }
}
