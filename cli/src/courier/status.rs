//! `courier status`: counts per queue and destination, or where one message is.

use reveille::{
    Error, ErrorKind,
    courier::{DestinationStatus, MessageId, MessageState, MessageStatus, QueueStatus},
};
use serde_json::{Value, json};

use super::Dir;
use crate::{
    output::{count, millis, table_of, time},
    settings::Settings,
};

/// Show where messages are: per queue and destination, or one message
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille courier status queues
  reveille courier status queues 9f3c1a5e77d04b1c8a2e6f0d4b5c6a7e

READY: waits for the next machine. SENT: \
stored there, and not yet visible. CONFIRMED: visible there. RECEIVED and CONFIRMED count the \
messages in the history.

With MESSAGE_ID, LAST KNOWN is the last machine that is known to have the message, and REASON says \
why it waits or was not delivered. `ready`: it is still here, and goes to HOP. `sent`: NEXT \
MACHINE has stored it, and no consumer sees it yet. `confirmed`: it is visible there; if the \
destination is another machine, HOP passes it on, and `courier status` there shows the rest.")]
pub(crate) struct Status {
    #[command(flatten)]
    dir: Dir,
    /// Show this message only
    #[arg(value_name = "MESSAGE_ID")]
    message_id: Option<MessageId>,
}

/// The machine of the queue file that was asked.
const HERE: &str = "this machine";
const QUEUES: &str = "name arrived being_received received oldest_ms";
const DESTINATIONS: &str =
    "destination hop ready sent confirmed oldest_ms last_error_at last_error";
const MESSAGE: &str = "message_id state destination hop last_known changed_at reason";

impl Status {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<()> {
        let manager = self.dir.open(settings).await?;
        let format = self.dir.output.format;
        if let Some(id) = self.message_id {
            let Some(status) = manager.message_status(id).await? else {
                let path = manager.path().display();
                let message = format!("message `{id}` is not known to `{path}`");
                return Err(Error::new(ErrorKind::NotFound, message).into());
            };
            return Ok(format.row(MESSAGE, &message_row(id, &status))?);
        }
        let status = manager.status().await?;
        let queues: Vec<_> = status.queues.iter().map(queue_row).collect();
        let destinations: Vec<_> = status.destinations.iter().map(destination_row).collect();
        // Accepted: messages from other machines that are not yet visible.
        let row = json!({
            "queues": queues,
            "destinations": destinations,
            "accepted": status.accepted,
            "dead_letters": status.dead_letters,
        });
        let text = || {
            format!(
                "{}\n\n{}\n\naccepted and not yet visible: {}; {} (`courier dead`)",
                table_of(QUEUES, &queues),
                table_of(DESTINATIONS, &destinations),
                count(status.accepted, "message"),
                count(status.dead_letters, "dead letter")
            )
        };
        Ok(format.object(&row, text)?)
    }
}

fn queue_row(queue: &QueueStatus) -> Value {
    json!({
        "name": queue.name,
        "arrived": queue.arrived,
        "being_received": queue.being_received,
        "received": queue.received,
        "oldest_ms": queue.oldest.map(millis),
    })
}

fn destination_row(to: &DestinationStatus) -> Value {
    let (last_error, last_error_at) = to.last_error.clone().unzip();
    json!({
        "destination": to.destination.to_string(),
        "hop": to.hop,
        "ready": to.ready,
        "sent": to.sent,
        "confirmed": to.confirmed,
        "oldest_ms": to.oldest.map(millis),
        "last_error": last_error,
        "last_error_at": last_error_at.map(time),
    })
}

/// Returns where a message is. `destination` is a queue of this machine, or a destination on another one;
/// `hop` is the next machine on the way to that.
fn message_row(id: MessageId, status: &MessageStatus) -> Value {
    let is_there = matches!(status.state, MessageState::Sent | MessageState::Confirmed);
    json!({
        "message_id": id.to_string(),
        "state": status.state,
        "destination": status.destination.to_string(),
        "hop": status.hop,
        "last_known": status.hop.as_deref().filter(|_| is_there).unwrap_or(HERE),
        "changed_at": status.changed_at.map(time),
        "reason": status.reason,
        "dequeue_count": status.dequeue_count,
    })
}
