//! A wake-up as a line or as JSON.

use std::time::SystemTime;

use reveille::WorkDetected;
use serde::Serialize;

use crate::output;

#[derive(Debug, Serialize)]
pub(super) struct WakeRow {
    queue: String,
    reason: &'static str,
    sequence: u64,
    notifications: u64,
    payload_size: u64,
    messages: u64,
    publisher: String,
    #[serde(serialize_with = "output::serialize_time")]
    published_at: Option<SystemTime>,
    traceparent: String,
}

impl WakeRow {
    /// Returns the wake-up as a line for people.
    pub(super) fn line(&self) -> String {
        let mut line = format!(
            "{} {} sequence={} notifications={} messages={} payload_size={}",
            self.queue,
            self.reason,
            self.sequence,
            self.notifications,
            self.messages,
            self.payload_size
        );
        if !self.publisher.is_empty() {
            line.push_str(&format!(" publisher={}", self.publisher));
        }
        line
    }
}

impl From<&WorkDetected> for WakeRow {
    fn from(work: &WorkDetected) -> Self {
        Self {
            queue: work.queue.to_string(),
            reason: work.reason.as_str(),
            sequence: work.sequence,
            notifications: work.notifications,
            payload_size: work.payload_size,
            messages: work.messages,
            publisher: work.last_event.publisher.to_string(),
            published_at: work.last_event.published_at,
            traceparent: work.last_event.traceparent.to_string(),
        }
    }
}
