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

Columns: DEPTH is the number of messages that a listener read last, and how long ago; 0 once one \
found no visible message. LISTENERS are the open streams on the queue. IDLE is the time since the last \
notification or timed wake-up, SEQUENCE their number, TIMERS those that wait. NOTIFICATIONS, MESSAGES \
and PAYLOAD add up what publishers stated since the relay knows the queue. A narrow terminal does not \
show all columns; a pipe does.

A relay of a cluster adds up the listeners and timers of all relays.")]
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
        "DEPTH",
        "LISTENERS",
        "IDLE",
        "NOTIFICATIONS",
        "MESSAGES",
        "PAYLOAD",
        "TIMERS",
        "SEQUENCE",
    ];
    const DROPPED_FIRST: &'static [&'static str] = &[
        "SEQUENCE",
        "PAYLOAD",
        "TIMERS",
        "NOTIFICATIONS",
        "MESSAGES",
        "IDLE",
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
            depth,
            queue.listeners.to_string(),
            or_none(queue.idle_for.map(Span)),
            queue.notifications.to_string(),
            queue.messages.to_string(),
            queue.payload_size.to_string(),
            queue.timers.to_string(),
            queue.sequence.to_string(),
        ]
    }
}
