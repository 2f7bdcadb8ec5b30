//! Where one message is, as a row.

use std::time::SystemTime;

use reveille::{
    Error, ErrorKind,
    courier::{HandedOver, MessageId, MessageStatus, QueueManager},
};
use serde::Serialize;

use crate::output::{self, Row};

#[derive(Debug, Serialize)]
pub(super) struct MessageStatusRow {
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

/// Returns where a message is.
pub(super) async fn find(manager: &QueueManager, id: MessageId) -> Result<MessageStatusRow, Error> {
    let Some(status) = manager.message_status(id).await? else {
        let path = manager.path().display();
        let message = format!("message `{id}` is not known to `{path}`");
        return Err(Error::new(ErrorKind::NotFound, message));
    };
    Ok(MessageStatusRow::new(id, status))
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
    const HEADERS: &'static [&'static str] = &[
        "ID",
        "STATE",
        "DESTINATION",
        "NEXT MACHINE",
        "LAST KNOWN AT",
        "CHANGED",
        "REASON",
    ];
    const DROPPED_FIRST: &'static [&'static str] = &["LAST KNOWN AT", "CHANGED"];

    fn cells(&self) -> Vec<String> {
        let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.message_id.clone(),
            self.state.replace('_', " "),
            or_none(&self.destination),
            or_none(&self.hop),
            or_none(&self.last_known),
            or_none(&self.changed_at.map(output::time)),
            or_none(&self.reason),
        ]
    }
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
            let cells = MessageStatusRow::new(id, status).cells();
            assert_eq!(cells[2..4], ["reveille://paris:7610/orders", "gate:7610"]);
            [&cells[1], &cells[4], &cells[6]].map(String::clone)
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
