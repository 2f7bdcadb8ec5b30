//! `listeners`: the listeners of queues and the watchers of flags.

use reveille::{Client, FlagWatcherInfo, ListenerInfo, duration::Span};
use serde::Serialize;

use super::{
    exit::Exit,
    output::{Row, millis},
    settings::Settings,
    target::TargetArgs,
    watchers,
};

/// List the connected listeners and their state
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille listeners
  reveille listeners -o json

Nodes that wait for a flag have a row each. In JSON, fields that do not apply to them are null.")]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Serialize)]
struct ListenerRow {
    listener_id: String,
    /// The flag that the listener waits for; `null` for a listener of queues.
    flag: Option<String>,
    streams: u32,
    connected_for_ms: u64,
    #[serde(skip)]
    connected_for: Span,
    #[serde(flatten)]
    subscription: Subscription,
}

/// The fields of a listener of queues. `null` for a listener that waits for a flag.
#[derive(Debug, Default, Serialize)]
struct Subscription {
    subscription_id: Option<String>,
    selectors: Vec<String>,
    capacity: Option<u32>,
    visibility_timeout_ms: Option<u64>,
    queues: Option<u32>,
    busy: Option<u32>,
    owed: Option<u32>,
    active_dequeue_tasks: Option<u32>,
    total_dequeue_tasks: Option<u32>,
    group: Option<String>,
    polling: Option<bool>,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let call = async |client: &Client| {
            let listeners = client.listeners().await?.into_iter();
            let watchers = watchers::connected(client, None).await?.unwrap_or_default();
            let watchers = watchers.into_iter().map(ListenerRow::from);
            Ok(listeners.map(ListenerRow::from).chain(watchers).collect())
        };
        self.target.list(settings, call, |row| row).await
    }
}

impl From<ListenerInfo> for ListenerRow {
    fn from(listener: ListenerInfo) -> Self {
        Self {
            listener_id: listener.listener_id,
            flag: None,
            streams: 1,
            connected_for_ms: millis(listener.connected_for),
            connected_for: Span(listener.connected_for),
            subscription: Subscription {
                subscription_id: Some(listener.subscription_id),
                selectors: listener.selectors,
                capacity: Some(listener.capacity),
                visibility_timeout_ms: Some(millis(listener.visibility_timeout)),
                queues: Some(listener.queues),
                busy: Some(listener.busy),
                owed: Some(listener.owed),
                active_dequeue_tasks: Some(listener.active_dequeue_tasks),
                total_dequeue_tasks: Some(listener.total_dequeue_tasks),
                group: listener.group,
                polling: Some(listener.polling),
            },
        }
    }
}

impl From<FlagWatcherInfo> for ListenerRow {
    fn from(watcher: FlagWatcherInfo) -> Self {
        Self {
            listener_id: watcher.listener_id,
            flag: Some(watcher.flag),
            streams: watcher.streams,
            connected_for_ms: millis(watcher.since),
            connected_for: Span(watcher.since),
            subscription: Subscription::default(),
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
        let subscription = &self.subscription;
        let number = |figure: Option<u32>| figure.map_or_else(dash, |figure| figure.to_string());
        let state = match subscription.polling {
            None => "waiting",
            Some(true) => "polling",
            Some(false) => "pushed",
        };
        vec![
            self.listener_id.clone(),
            self.listens_to(),
            subscription.group.clone().unwrap_or_else(dash),
            self.connected_for.to_string(),
            number(subscription.queues),
            number(subscription.busy),
            number(subscription.owed),
            number(subscription.active_dequeue_tasks),
            number(subscription.total_dequeue_tasks),
            state.to_owned(),
        ]
    }
}

impl ListenerRow {
    fn listens_to(&self) -> String {
        if let Some(flag) = &self.flag {
            return format!("flag {flag}");
        }
        let selectors = &self.subscription.selectors;
        let more = selectors.len().saturating_sub(3);
        let mut text = selectors[..selectors.len() - more].join(" ");
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
        text
    }
}

fn dash() -> String {
    "-".to_owned()
}
