//! `queue status`: counts per queue and destination.

use std::time::{Duration, SystemTime};

use reveille::{
    courier::{DestinationStatus, ManagerStatus, MessageId, QueueStatus},
    duration::Span,
};
use serde::Serialize;

use super::{
    message_status,
    place::{OutputArgs, PlaceArgs},
};
use crate::{
    exit::Exit,
    output::{self, Row, fitting_table, millis},
    settings::Settings,
};

pub(super) const AFTER_HELP: &str = "\
Example:
  reveille queue status queues
  reveille queue status queues -o json
  reveille queue status queues 9f3c1a5e77d04b1c8a2e6f0d4b5c6a7e

READY: waits for the next machine. SENT: stored there, and not yet visible. CONFIRMED: visible there. RECEIVED and CONFIRMED count the \
messages in the history.

With MESSAGE_ID, LAST KNOWN AT is the last machine that is known to have the message, and REASON says \
why it waits or was not delivered. `ready`: it is still here, and goes to NEXT MACHINE. `sent`: NEXT \
MACHINE has stored it, and no consumer sees it yet. `confirmed`: it is visible there; if the \
destination is another machine, NEXT MACHINE passes it on, and `queue status` there shows the rest.";

#[derive(Debug, clap::Args)]
pub(super) struct Status {
    #[command(flatten)]
    place: PlaceArgs,
    /// Show this message only
    #[arg(value_name = "MESSAGE_ID")]
    message_id: Option<MessageId>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Serialize)]
struct StatusRow {
    queues: Vec<QueueRow>,
    destinations: Vec<DestinationRow>,
    /// Messages from other machines that are not yet visible.
    accepted: u64,
    dead_letters: u64,
}

#[derive(Debug, Serialize)]
struct QueueRow {
    name: String,
    arrived: u64,
    being_received: u64,
    received: u64,
    oldest_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct DestinationRow {
    destination: String,
    hop: String,
    ready: u64,
    sent: u64,
    confirmed: u64,
    oldest_ms: Option<u64>,
    last_error: Option<String>,
    #[serde(serialize_with = "output::serialize_time")]
    last_error_at: Option<SystemTime>,
}

impl Status {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let manager = self.place.open(settings).await?;
        let format = self.output.format(settings);
        if let Some(id) = self.message_id {
            let row = message_status::find(&manager, id).await?;
            format.one(&row)?;
            return Ok(Exit::OK);
        }
        let row = StatusRow::from(manager.status().await?);
        format.object(&row, || row.text())?;
        Ok(Exit::OK)
    }
}

impl StatusRow {
    /// Returns the tables for people.
    fn text(&self) -> String {
        let mut parts = Vec::new();
        if !self.queues.is_empty() {
            parts.push(fitting_table(&self.queues));
        }
        if !self.destinations.is_empty() {
            parts.push(fitting_table(&self.destinations));
        }
        if self.accepted > 0 {
            let accepted = output::count(self.accepted, "message");
            parts.push(format!("accepted and not yet visible: {accepted}"));
        }
        if self.dead_letters > 0 {
            let letters = output::count(self.dead_letters, "dead letter");
            parts.push(format!("{letters}: see `queue dead`"));
        }
        match parts.is_empty() {
            true => "no queues and no messages to other machines".to_owned(),
            false => parts.join("\n\n"),
        }
    }
}

impl From<ManagerStatus> for StatusRow {
    fn from(status: ManagerStatus) -> Self {
        let queues = status.queues.into_iter().map(QueueRow::from);
        let destinations = status.destinations.into_iter().map(DestinationRow::from);
        Self {
            queues: queues.collect(),
            destinations: destinations.collect(),
            accepted: status.accepted,
            dead_letters: status.dead_letters,
        }
    }
}

impl From<QueueStatus> for QueueRow {
    fn from(queue: QueueStatus) -> Self {
        Self {
            name: queue.name,
            arrived: queue.arrived,
            being_received: queue.being_received,
            received: queue.received,
            oldest_ms: queue.oldest.map(millis),
        }
    }
}

impl From<DestinationStatus> for DestinationRow {
    fn from(status: DestinationStatus) -> Self {
        let (last_error, last_error_at) = status.last_error.unzip();
        Self {
            destination: status.destination.to_string(),
            hop: status.hop,
            ready: status.ready,
            sent: status.sent,
            confirmed: status.confirmed,
            oldest_ms: status.oldest.map(millis),
            last_error,
            last_error_at,
        }
    }
}

impl Row for QueueRow {
    const HEADERS: &'static [&'static str] =
        &["QUEUE", "ARRIVED", "BEING RECEIVED", "RECEIVED", "OLDEST"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.arrived.to_string(),
            self.being_received.to_string(),
            self.received.to_string(),
            age(self.oldest_ms),
        ]
    }
}

impl Row for DestinationRow {
    const HEADERS: &'static [&'static str] = &[
        "DESTINATION",
        "NEXT MACHINE",
        "READY",
        "SENT",
        "CONFIRMED",
        "OLDEST",
        "LAST ERROR",
    ];

    fn cells(&self) -> Vec<String> {
        let error = match (&self.last_error, self.last_error_at) {
            (Some(error), Some(at)) => format!("{error} ({})", output::time(at)),
            _ => "-".to_owned(),
        };
        vec![
            self.destination.clone(),
            self.hop.clone(),
            self.ready.to_string(),
            self.sent.to_string(),
            self.confirmed.to_string(),
            age(self.oldest_ms),
            error,
        ]
    }
}

fn age(millis: Option<u64>) -> String {
    let shown = |millis| Span(Duration::from_millis(millis)).to_string();
    millis.map_or_else(|| "-".to_owned(), shown)
}
