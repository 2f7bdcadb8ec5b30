//! `listeners`: who is there.

use reveille::{Client, ListenerInfo, duration::Span};
use serde::Serialize;

use super::{
    exit::Exit,
    output::{Row, millis},
    settings::Settings,
    target::TargetArgs,
};

/// List who listens, and what they do
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille listeners
  reveille listeners -o json")]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Serialize)]
struct ListenerRow {
    listener_id: String,
    subscription_id: String,
    selectors: Vec<String>,
    capacity: u32,
    visibility_timeout_ms: u64,
    connected_for_ms: u64,
    queues: u32,
    busy: u32,
    owed: u32,
    active_dequeue_tasks: u32,
    total_dequeue_tasks: u32,
    group: Option<String>,
    polling: bool,
    #[serde(skip)]
    connected_for: Span,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let ask = async |client: &Client| client.listeners().await;
        self.target.list(settings, ask, ListenerRow::from).await
    }
}

impl From<ListenerInfo> for ListenerRow {
    fn from(listener: ListenerInfo) -> Self {
        Self {
            listener_id: listener.listener_id,
            subscription_id: listener.subscription_id,
            selectors: listener.selectors,
            capacity: listener.capacity,
            visibility_timeout_ms: millis(listener.visibility_timeout),
            connected_for_ms: millis(listener.connected_for),
            queues: listener.queues,
            busy: listener.busy,
            owed: listener.owed,
            active_dequeue_tasks: listener.active_dequeue_tasks,
            total_dequeue_tasks: listener.total_dequeue_tasks,
            group: listener.group,
            polling: listener.polling,
            connected_for: Span(listener.connected_for),
        }
    }
}

impl Row for ListenerRow {
    const HEADERS: &'static [&'static str] = &[
        "LISTENER",
        "LISTENS TO",
        "GROUP",
        "CONNECTED",
        "QUEUES",
        "BUSY",
        "OWED",
        "TASKS",
        "MOST TASKS",
        "STATE",
    ];

    fn cells(&self) -> Vec<String> {
        let more = self.selectors.len().saturating_sub(3);
        let mut selectors = self.selectors[..self.selectors.len() - more].join(" ");
        if more > 0 {
            selectors.push_str(&format!(" and {more} more"));
        }
        vec![
            self.listener_id.clone(),
            selectors,
            self.group.clone().unwrap_or_else(|| "-".to_owned()),
            self.connected_for.to_string(),
            self.queues.to_string(),
            self.busy.to_string(),
            self.owed.to_string(),
            self.active_dequeue_tasks.to_string(),
            self.total_dequeue_tasks.to_string(),
            if self.polling { "polling" } else { "pushed" }.to_owned(),
        ]
    }
}
