//! `queues`: the queues that the relay has in memory.

use reveille::{Client, QueueInfo, duration::Span};
use serde::Serialize;

use super::{
    exit::Exit,
    output::{Row, millis},
    settings::Settings,
    target::TargetArgs,
};

/// List the queues that the relay has in memory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille queues
  reveille queues -o jsonl

DEPTH is the last depth that a listener reported, and the age of that report.")]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Serialize)]
struct QueueRow {
    queue: String,
    sequence: u64,
    notifications: u64,
    payload_size: u64,
    messages: u64,
    listeners: u32,
    timers: u32,
    idle_for_ms: Option<u64>,
    /// From the newest report of a listener; `null` if no report had one.
    depth: Option<u64>,
    depth_age_ms: Option<u64>,
    #[serde(skip)]
    idle_for: Option<Span>,
    #[serde(skip)]
    depth_age: Option<Span>,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let call = async |client: &Client| client.queues().await;
        self.target.list(settings, call, QueueRow::from).await
    }
}

impl From<QueueInfo> for QueueRow {
    fn from(queue: QueueInfo) -> Self {
        Self {
            queue: format!("{}/{}", queue.storage_account, queue.queue_name),
            sequence: queue.sequence,
            notifications: queue.notifications,
            payload_size: queue.payload_size,
            messages: queue.messages,
            listeners: queue.listeners,
            timers: queue.timers,
            idle_for_ms: queue.idle_for.map(millis),
            depth: queue.current_queue_depth,
            depth_age_ms: queue.depth_age.map(millis),
            depth_age: queue.depth_age.map(Span),
            idle_for: queue.idle_for.map(Span),
        }
    }
}

impl Row for QueueRow {
    const HEADERS: &'static [&'static str] = &[
        "QUEUE",
        "SEQUENCE",
        "NOTIFICATIONS",
        "MESSAGES",
        "PAYLOAD",
        "LISTENERS",
        "TIMERS",
        "IDLE",
        "DEPTH",
    ];

    fn cells(&self) -> Vec<String> {
        fn or_none(value: Option<impl ToString>) -> String {
            value.map_or_else(|| "-".to_owned(), |value| value.to_string())
        }
        let depth = match (self.depth, self.depth_age) {
            (Some(depth), Some(age)) => format!("{depth}, {age} ago"),
            (depth, _) => or_none(depth),
        };
        vec![
            self.queue.clone(),
            self.sequence.to_string(),
            self.notifications.to_string(),
            self.messages.to_string(),
            self.payload_size.to_string(),
            self.listeners.to_string(),
            self.timers.to_string(),
            or_none(self.idle_for),
            depth,
        ]
    }
}
