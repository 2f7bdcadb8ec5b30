//! `courier status`: counts per queue and destination, or where one message is.

use std::time::SystemTime;

use reveille::{
    Error, ErrorKind,
    courier::{HandedOver, ManagerStatus, MessageId, MessageStatus},
};
use serde::Serialize;

use super::Dir;
use crate::{
    output::{self, Row, millis},
    settings::Settings,
};

pub(super) const AFTER_HELP: &str = "\
Example:
  reveille courier status queues
  reveille courier status queues -o json
  reveille courier status queues 9f3c1a5e77d04b1c8a2e6f0d4b5c6a7e

READY: waits for the next machine. SENT: \
stored there, and not yet visible. CONFIRMED: visible there. RECEIVED and CONFIRMED count the \
messages in the history.

With MESSAGE_ID, LAST KNOWN is the last machine that is known to have the message, and REASON says \
why it waits or was not delivered. `ready`: it is still here, and goes to HOP. `sent`: NEXT \
MACHINE has stored it, and no consumer sees it yet. `confirmed`: it is visible there; if the \
destination is another machine, HOP passes it on, and `courier status` there shows the rest.";

#[derive(Debug, clap::Args)]
pub(super) struct Status {
    #[command(flatten)]
    dir: Dir,
    /// Show this message only
    #[arg(value_name = "MESSAGE_ID")]
    message_id: Option<MessageId>,
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

#[derive(Debug, Serialize)]
struct MessageStatusRow {
    message_id: String,
    state: &'static str,
    /// A queue of this machine, or a destination on another one.
    destination: Option<String>,
    /// The next machine on the way, if the destination is on another machine.
    hop: Option<String>,
    /// The last machine that is known to have the message: `hop`, or this one.
    last_known: Option<String>,
    /// The time of the last change.
    #[serde(serialize_with = "output::serialize_time")]
    changed_at: Option<SystemTime>,
    dequeue_count: Option<u32>,
    reason: Option<String>,
}

/// The machine of the queue file that was asked.
const HERE: &str = "this machine";

impl Status {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<()> {
        let manager = self.dir.open(settings).await?;
        let format = self.dir.format();
        if let Some(id) = self.message_id {
            let Some(status) = manager.message_status(id).await? else {
                let path = manager.path().display();
                let message = format!("message `{id}` is not known to `{path}`");
                return Err(Error::new(ErrorKind::NotFound, message).into());
            };
            return Ok(format.one(&MessageStatusRow::new(id, status))?);
        }
        let row = StatusRow::from(manager.status().await?);
        Ok(format.object(&row, || row.text())?)
    }
}

impl StatusRow {
    /// Returns the tables for people.
    fn text(&self) -> String {
        let mut parts = Vec::new();
        if !self.queues.is_empty() {
            parts.push(output::table(&self.queues));
        }
        if !self.destinations.is_empty() {
            parts.push(output::table(&self.destinations));
        }
        if self.accepted > 0 {
            let accepted = output::count(self.accepted, "message");
            parts.push(format!("accepted and not yet visible: {accepted}"));
        }
        if self.dead_letters > 0 {
            let letters = output::count(self.dead_letters, "dead letter");
            parts.push(format!("{letters}: see `courier dead`"));
        }
        match parts.is_empty() {
            true => "no queues and no messages to other machines".to_owned(),
            false => parts.join("\n\n"),
        }
    }
}

impl From<ManagerStatus> for StatusRow {
    fn from(status: ManagerStatus) -> Self {
        let queues = status.queues.into_iter().map(|queue| QueueRow {
            name: queue.name,
            arrived: queue.arrived,
            being_received: queue.being_received,
            received: queue.received,
            oldest_ms: queue.oldest.map(millis),
        });
        let destinations = status.destinations.into_iter().map(|to| {
            let (last_error, last_error_at) = to.last_error.unzip();
            DestinationRow {
                destination: to.destination.to_string(),
                hop: to.hop,
                ready: to.ready,
                sent: to.sent,
                confirmed: to.confirmed,
                oldest_ms: to.oldest.map(millis),
                last_error,
                last_error_at,
            }
        });
        Self {
            queues: queues.collect(),
            destinations: destinations.collect(),
            accepted: status.accepted,
            dead_letters: status.dead_letters,
        }
    }
}

impl Row for QueueRow {
    const COLUMNS: &'static [&'static str] =
        &["name", "arrived", "being_received", "received", "oldest_ms"];
}

impl Row for DestinationRow {
    const COLUMNS: &'static [&'static str] = &[
        "destination",
        "hop",
        "ready",
        "sent",
        "confirmed",
        "oldest_ms",
        "last_error_at",
        "last_error",
    ];
}

impl MessageStatusRow {
    fn new(id: MessageId, status: MessageStatus) -> Self {
        let mut row = Self {
            message_id: id.to_string(),
            state: "unknown",
            destination: None,
            hop: None,
            last_known: None,
            changed_at: None,
            dequeue_count: None,
            reason: None,
        };
        let mut set = |state, destination: Option<String>, at| {
            (row.state, row.destination, row.changed_at) = (state, destination, at);
            row.last_known = Some(HERE.to_owned());
        };
        match status {
            MessageStatus::Outgoing {
                destination,
                hop,
                handed_over,
                at,
                last_error,
            } => {
                let state = match handed_over {
                    HandedOver::Ready => "ready",
                    HandedOver::Sent => "sent",
                    HandedOver::Visible => "confirmed",
                };
                set(state, Some(destination.to_string()), Some(at));
                row.last_known = Some(match handed_over {
                    HandedOver::Ready => HERE.to_owned(),
                    HandedOver::Sent | HandedOver::Visible => hop.clone(),
                });
                row.hop = Some(hop);
                row.reason = last_error;
            }
            MessageStatus::Accepted { queue, at } => set("accepted", Some(queue), Some(at)),
            MessageStatus::Arrived { queue, at } => set("arrived", Some(queue), Some(at)),
            MessageStatus::BeingReceived {
                queue,
                dequeue_count,
            } => {
                set("being_received", Some(queue), None);
                row.dequeue_count = Some(dequeue_count);
            }
            MessageStatus::Received { queue, at } => set("received", Some(queue), Some(at)),
            MessageStatus::DeadLetter {
                destination,
                reason,
                at,
            } => {
                set("dead_letter", Some(destination.to_string()), Some(at));
                row.reason = Some(reason);
            }
            // A state that this program does not know.
            _ => {}
        }
        row
    }
}

impl Row for MessageStatusRow {
    const COLUMNS: &'static [&'static str] = &[
        "message_id",
        "state",
        "destination",
        "hop",
        "last_known",
        "changed_at",
        "reason",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_to_another_machine_shows_the_last_machine_that_has_it() {
        let shown = |handed_over, last_error: Option<&str>| {
            let status = MessageStatus::Outgoing {
                destination: "reveille://paris:7610/orders".parse().expect("valid"),
                hop: "gate:7610".to_owned(),
                handed_over,
                at: SystemTime::UNIX_EPOCH,
                last_error: last_error.map(str::to_owned),
            };
            let id = "01".repeat(16).parse().expect("an id");
            let row = MessageStatusRow::new(id, status);
            assert_eq!(
                row.destination.as_deref(),
                Some("reveille://paris:7610/orders")
            );
            assert_eq!(row.hop.as_deref(), Some("gate:7610"));
            let last_known = row.last_known.unwrap_or_default();
            [
                row.state.to_owned(),
                last_known,
                row.reason.unwrap_or_else(|| "-".to_owned()),
            ]
        };
        assert_eq!(
            shown(HandedOver::Ready, Some("no answer")),
            ["ready", "this machine", "no answer"]
        );
        assert_eq!(shown(HandedOver::Sent, None), ["sent", "gate:7610", "-"]);
        assert_eq!(
            shown(HandedOver::Visible, None),
            ["confirmed", "gate:7610", "-"]
        );
    }
}
