//! `courier status`: counts per queue and destination, or where one message is.

use reveille::{
    Error, ErrorKind,
    courier::{DestinationStatus, HandedOver, MessageId, MessageStatus, QueueStatus},
};
use serde_json::{Value, json};

use super::Dir;
use crate::{
    output::{count, millis, table_of, time},
    settings::Settings,
};

pub(super) const AFTER_HELP: &str = "\
Example:
  reveille courier status queues
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
            return Ok(format.row(MESSAGE, &message_row(id, status))?);
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
fn message_row(id: MessageId, status: MessageStatus) -> Value {
    let (mut last_known, mut dequeue_count) = (HERE.to_owned(), None);
    let (mut next, mut reason) = (None, None);
    let (state, destination, changed_at) = match status {
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
            if handed_over != HandedOver::Ready {
                last_known.clone_from(&hop);
            }
            (next, reason) = (Some(hop), last_error);
            (state, destination.to_string(), Some(at))
        }
        MessageStatus::Accepted { queue, at } => ("accepted", queue, Some(at)),
        MessageStatus::Arrived { queue, at } => ("arrived", queue, Some(at)),
        MessageStatus::Received { queue, at } => ("received", queue, Some(at)),
        MessageStatus::BeingReceived {
            queue,
            dequeue_count: count,
        } => {
            dequeue_count = Some(count);
            ("being_received", queue, None)
        }
        MessageStatus::DeadLetter {
            destination,
            reason: why,
            at,
        } => {
            reason = Some(why);
            ("dead_letter", destination.to_string(), Some(at))
        }
        // A state that this program does not know.
        _ => ("unknown", String::new(), None),
    };
    json!({
        "message_id": id.to_string(),
        "state": state,
        "destination": destination,
        "hop": next,
        "last_known": last_known,
        "changed_at": changed_at.map(time),
        "reason": reason,
        "dequeue_count": dequeue_count,
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

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
            let row = message_row(id, status);
            assert_eq!(row["destination"], "reveille://paris:7610/orders");
            assert_eq!(row["hop"], "gate:7610");
            assert!(row["dequeue_count"].is_null(), "{row}");
            let text = |field: &str| row[field].as_str().unwrap_or("-").to_owned();
            ["state", "last_known", "reason"].map(text)
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
