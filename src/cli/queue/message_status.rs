//! Where one message is, as a row.

use std::time::SystemTime;

use reveille::{
    Error, ErrorKind,
    courier::{HandedOver, MessageId, MessageStatus, QueueManager},
};
use serde::Serialize;

use crate::cli::output::{self, Row};

#[derive(Debug, Serialize)]
pub(super) struct MessageStatusRow {
    message_id: String,
    state: &'static str,
    /// A queue of this machine, or a destination on another one.
    destination: Option<String>,
    /// The next machine, if the message was sent: the last machine that is known to have it.
    hop: Option<String>,
    /// The time of the last change.
    #[serde(serialize_with = "output::serialize_time")]
    changed_at: Option<SystemTime>,
    dequeue_count: Option<u32>,
    reason: Option<String>,
}

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
            changed_at: None,
            dequeue_count: None,
            reason: None,
        };
        let mut set = |state, destination: Option<String>, at| {
            (row.state, row.destination, row.changed_at) = (state, destination, at);
        };
        match status {
            MessageStatus::NotReady => set("not_ready", None, None),
            MessageStatus::Outgoing {
                destination,
                hop,
                handed_over,
                at,
            } => {
                let state = match handed_over {
                    HandedOver::Ready => "ready",
                    HandedOver::Sent => "sent",
                    HandedOver::Visible => "confirmed",
                };
                set(state, Some(destination.to_string()), Some(at));
                row.hop = Some(hop);
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
        "CHANGED",
        "REASON",
    ];

    fn cells(&self) -> Vec<String> {
        let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.message_id.clone(),
            self.state.replace('_', " "),
            or_none(&self.destination),
            or_none(&self.hop),
            or_none(&self.changed_at.map(output::time)),
            or_none(&self.reason),
        ]
    }
}
