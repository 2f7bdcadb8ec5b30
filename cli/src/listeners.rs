//! `listeners`: the listeners of queues and the watchers of flags.

use std::time::Duration;

use reveille::{Client, FlagWatcherInfo, ListenerInfo, ListenerQuery, duration::Span};
use serde::{Serialize, Serializer};
use serde_json::json;

use super::{
    exit::Exit,
    output::{Row, millis},
    target::TargetArgs,
};

/// List the listeners and their state
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille listeners
  reveille listeners -o json

STATE is
  pushed              the relay wakes it
  busy 4m             it is working; the oldest of its messages began this long ago
  polling             it polls its queue, without wake-ups
  silent 12s          it was woken this long ago and has not reported: it hangs, or cannot read its queue
  gone 3m (no heartbeat)  it did not answer the relay, and has not come back; listed for an hour
  agent, agent busy   an agent (`scale`), which the relay wakes; its tasks are its workers
  waiting             it waits for a flag

Other columns: QUEUES match its selectors, it is BUSY with some of them, and is OWED wake-ups of some. \
ACTIVE DEQUEUE TASKS are those of its newest report, TOTAL ones the most at one time. Its GROUP shares \
wake-ups.

A relay of a cluster lists the listeners of all relays. Nodes that wait for a flag have a row each. In \
JSON, fields that do not apply to them are null.")]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug)]
enum ListenerRow {
    Queues(ListenerInfo),
    Flag(FlagWatcherInfo),
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let query = ListenerQuery {
            lost: true,
            ..ListenerQuery::default()
        };
        let call = async |client: &Client| {
            let mut all = client
                .listeners_where(&query)
                .await?
                .map(ListenerRow::Queues);
            let watchers = client.flags().watchers(None).await?;
            let watchers = watchers.map(ListenerRow::Flag);
            all.entries.extend(watchers.entries);
            all.unanswered.extend(watchers.unanswered);
            all.unanswered.sort_unstable();
            all.unanswered.dedup();
            Ok(all)
        };
        self.target.list(call, |row| row).await
    }
}

impl Serialize for ListenerRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (listener_id, flag, streams, connected_for) = self.stream();
        let info = self.of_queues();
        let span = |span: Option<Duration>| json!(span.map(millis));
        let timeout = info.map(|of| millis(of.visibility_timeout));
        let tasks = info.map(|of| (of.active_dequeue_tasks, of.total_dequeue_tasks));
        serializer.collect_map([
            ("listener_id", json!(listener_id)),
            ("flag", json!(flag)),
            ("streams", json!(streams)),
            ("connected_for_ms", json!(millis(connected_for))),
            ("subscription_id", json!(info.map(|of| &of.subscription_id))),
            ("selectors", json!(info.map_or(&[][..], |of| &of.selectors))),
            ("capacity", json!(info.map(|of| of.capacity))),
            ("visibility_timeout_ms", json!(timeout)),
            ("queues", json!(info.map(|of| of.queues))),
            ("busy", json!(info.map(|of| of.busy))),
            ("owed", json!(info.map(|of| of.owed))),
            ("active_dequeue_tasks", json!(tasks.map(|tasks| tasks.0))),
            ("total_dequeue_tasks", json!(tasks.map(|tasks| tasks.1))),
            ("group", json!(info.and_then(|of| of.group.as_ref()))),
            ("polling", json!(info.map(|of| of.polling))),
            ("state", json!(self.state())),
            ("silent_for_ms", span(info.and_then(|of| of.silent_for))),
            ("busy_for_ms", span(info.and_then(|of| of.busy_for))),
            ("gone_for_ms", span(info.and_then(|of| of.lost_for))),
            ("agent", json!(info.map(|of| of.agent))),
        ])
    }
}

impl Row for ListenerRow {
    const COLUMNS: &'static [&'static str] = &[
        "listener_id",
        "listens_to",
        "state",
        "connected_for_ms",
        "queues",
        "busy",
        "owed",
        "active_dequeue_tasks",
        "total_dequeue_tasks",
        "group",
    ];
    const DROPPED_FIRST: &'static [&'static str] = &[
        "group",
        "total_dequeue_tasks",
        "active_dequeue_tasks",
        "owed",
        "queues",
        "busy",
        "connected_for_ms",
    ];

    fn cell(&self, column: &str) -> Option<String> {
        match (self, column) {
            (Self::Queues(of), "state") => Some(state_for(of)),
            (Self::Queues(of), "listens_to") => Some(listens_to(&of.selectors)),
            (Self::Flag(of), "listens_to") => Some(format!("flag {}", of.flag)),
            _ => None,
        }
    }
}

impl ListenerRow {
    /// Returns the listener's id, the flag that it waits for, its streams, and their age.
    fn stream(&self) -> (&str, Option<&str>, u32, Duration) {
        match self {
            Self::Queues(listener) => (&listener.listener_id, None, 1, listener.connected_for),
            Self::Flag(watcher) => {
                let flag = Some(watcher.flag.as_str());
                (&watcher.listener_id, flag, watcher.streams, watcher.since)
            }
        }
    }

    fn state(&self) -> &'static str {
        self.of_queues().map_or("waiting", |of| state(of).0)
    }

    fn of_queues(&self) -> Option<&ListenerInfo> {
        match self {
            Self::Queues(listener) => Some(listener),
            Self::Flag(_) => None,
        }
    }
}

/// Returns the state of a listener, and for how long it has been in it where that is known.
fn state(of: &ListenerInfo) -> (&'static str, Option<Duration>) {
    match of {
        _ if of.lost_for.is_some() => ("gone", of.lost_for),
        _ if of.silent_for.is_some() => ("silent", of.silent_for),
        _ if of.polling => ("polling", None),
        _ if of.busy_for.is_some() => ("busy", of.busy_for),
        _ if of.agent => ("agent", None),
        _ => ("pushed", None),
    }
}

/// Returns the state of a listener with its duration, for people.
pub(super) fn state_for(of: &ListenerInfo) -> String {
    let (state, span) = state(of);
    // Whole seconds: the relay's own delay is some milliseconds.
    let span = span.map(|span| format!(" {}", Span(Duration::from_secs(span.as_secs()))));
    let role = if of.agent && state != "agent" {
        "agent "
    } else {
        ""
    };
    let why = if of.lost_for.is_some() {
        " (no heartbeat)"
    } else {
        ""
    };
    format!("{role}{state}{}{why}", span.unwrap_or_default())
}

pub(super) fn listens_to(selectors: &[String]) -> String {
    let more = selectors.len().saturating_sub(3);
    let mut text = selectors[..selectors.len() - more].join(" ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
