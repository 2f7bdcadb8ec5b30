//! `listeners`: the listeners of queues.

use std::time::Duration;

use reveille::{Client, ListenerInfo, ListenerQuery, duration::Span};
use serde_json::{Value, json};

use super::{
    exit::Exit,
    output::{Format, span, stated, wire_millis},
    target::TargetArgs,
};

/// List the listeners and their state
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille listeners

STATE is
  pushed              the relay wakes it
  busy 4m             it is working; the oldest of its messages began this long ago
  polling             it polls its queue, without wake-ups
  silent 12s          it was woken this long ago and has not reported: it hangs, or cannot read its queue
  gone 3m (no heartbeat)  it did not answer the relay, and has not come back; listed for an hour
  agent, agent busy   an agent (`scale`), which the relay wakes; its tasks are its workers

Other columns: QUEUES match its selectors, it is BUSY with some of them, and is OWED wake-ups of some. \
ACTIVE DEQUEUE TASKS are those of its newest report, TOTAL ones the most at one time.")]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

const COLUMNS: &str = "listener_id listens_to state connected_for_ms busy queues owed active_dequeue_tasks total_dequeue_tasks group";

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let query = ListenerQuery {
            lost: true,
            ..ListenerQuery::default()
        };
        let call = async |client: &Client| client.listeners_where(&query).await;
        let is_table = self.target.relay.output.format == Format::Table;
        let row = |of: &ListenerInfo| {
            let mut row = row(of);
            if is_table {
                row["state"] = state_for(of).into();
            }
            row
        };
        self.target.list(call, COLUMNS, row).await
    }
}

fn row(of: &ListenerInfo) -> Value {
    let selectors = selectors(of);
    json!({
        "listener_id": of.listener_id,
        "listens_to": listens_to(&selectors),
        "connected_for_ms": wire_millis(of.connected_for),
        "subscription_id": of.subscription_id,
        "selectors": selectors,
        "capacity": of.capacity,
        "visibility_timeout_ms": wire_millis(of.visibility_timeout),
        "queues": of.queues,
        "busy": of.busy,
        "owed": of.owed,
        "active_dequeue_tasks": of.active_dequeue_tasks,
        "total_dequeue_tasks": of.total_dequeue_tasks,
        "group": stated(&of.group),
        "polling": of.polling,
        "state": state(of).0,
        "silent_for_ms": wire_millis(of.silent_for),
        "busy_for_ms": wire_millis(of.busy_for),
        "gone_for_ms": wire_millis(of.lost_for),
        "agent": of.agent,
    })
}

/// Returns the state of a listener, and for how long it has been in it where that is known.
fn state(of: &ListenerInfo) -> (&'static str, Option<Duration>) {
    match of {
        _ if of.lost_for.is_some() => ("gone", span(of.lost_for)),
        _ if of.silent_for.is_some() => ("silent", span(of.silent_for)),
        _ if of.polling => ("polling", None),
        _ if of.busy_for.is_some() => ("busy", span(of.busy_for)),
        _ if of.agent => ("agent", None),
        _ => ("pushed", None),
    }
}

/// Returns the state of a listener with its duration, for people.
fn state_for(of: &ListenerInfo) -> String {
    let (state, span) = state(of);
    // Whole seconds: the relay's own delay is some milliseconds.
    let span = span.map(|span| format!(" {}", Span(Duration::from_secs(span.as_secs()))));
    let role = if of.agent && state != "agent" {
        "agent "
    } else {
        ""
    };
    let why = of.lost_for.map_or("", |_| " (no heartbeat)");
    format!("{role}{state}{}{why}", span.unwrap_or_default())
}

/// Returns the queues and patterns of a listener.
pub(super) fn selectors(of: &ListenerInfo) -> Vec<String> {
    let selectors = of.selectors.iter();
    let written = selectors.map(|one| format!("{}/{}", one.storage_account, one.queue_name));
    written.collect()
}

fn listens_to(selectors: &[String]) -> String {
    let more = selectors.len().saturating_sub(3);
    let mut text = selectors[..selectors.len() - more].join(" ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
