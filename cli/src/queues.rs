//! `queues`: the queues that the relay has in memory.

use reveille::{Client, QueueInfo, duration::Span};
use serde::{Serialize, Serializer};
use serde_json::json;

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

A relay of a cluster adds up the listeners and timers of all relays. DEPTH is the last depth that a listener reported, and the age of that report.")]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug)]
struct QueueRow(QueueInfo);

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let call = async |client: &Client| client.queues().await;
        self.target.list(settings, call, QueueRow).await
    }
}

impl QueueRow {
    fn address(&self) -> String {
        format!("{}/{}", self.0.storage_account, self.0.queue_name)
    }
}

impl Serialize for QueueRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let queue = &self.0;
        serializer.collect_map([
            ("queue", json!(self.address())),
            ("sequence", json!(queue.sequence)),
            ("notifications", json!(queue.notifications)),
            ("payload_size", json!(queue.payload_size)),
            ("messages", json!(queue.messages)),
            ("listeners", json!(queue.listeners)),
            ("timers", json!(queue.timers)),
            ("idle_for_ms", json!(queue.idle_for.map(millis))),
            ("depth", json!(queue.current_queue_depth)),
            ("depth_age_ms", json!(queue.depth_age.map(millis))),
        ])
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
        let queue = &self.0;
        let depth = match (queue.current_queue_depth, queue.depth_age) {
            (Some(depth), Some(age)) => format!("{depth}, {} ago", Span(age)),
            (depth, _) => or_none(depth),
        };
        vec![
            self.address(),
            queue.sequence.to_string(),
            queue.notifications.to_string(),
            queue.messages.to_string(),
            queue.payload_size.to_string(),
            queue.listeners.to_string(),
            queue.timers.to_string(),
            or_none(queue.idle_for.map(Span)),
            depth,
        ]
    }
}
