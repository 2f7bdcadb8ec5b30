//! A message of a queue as JSON: printed by `queue get` and `queue peek`, and read by the command
//! of `listen --batch`.

use std::time::SystemTime;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reveille::{
    courier::ReceivedMessage,
    queue::{Message, PeekedMessage},
};
use serde::Serialize;

use super::output;

#[derive(Debug, Serialize)]
pub(super) struct MessageRow {
    pub(super) message_id: String,
    /// `null` if the body is not UTF-8.
    pub(super) body: Option<String>,
    /// All bytes of the body.
    body_base64: String,
    pub(super) bytes: usize,
    pub(super) dequeue_count: u32,
    #[serde(serialize_with = "output::serialize_time")]
    pub(super) inserted_at: Option<SystemTime>,
}

impl MessageRow {
    fn new(id: &dyn ToString, body: &[u8], dequeue_count: u32, inserted_at: SystemTime) -> Self {
        Self {
            message_id: id.to_string(),
            body: std::str::from_utf8(body).ok().map(str::to_owned),
            body_base64: BASE64_STANDARD.encode(body),
            bytes: body.len(),
            dequeue_count,
            inserted_at: Some(inserted_at),
        }
    }
}

impl From<&PeekedMessage> for MessageRow {
    fn from(message: &PeekedMessage) -> Self {
        let (count, at) = (message.dequeue_count, message.inserted_at);
        Self::new(&message.id, &message.body, count, at)
    }
}

impl From<&Message> for MessageRow {
    fn from(message: &Message) -> Self {
        let (count, at) = (message.dequeue_count, message.inserted_at);
        Self::new(&message.id, &message.body, count, at)
    }
}

impl From<&ReceivedMessage> for MessageRow {
    fn from(message: &ReceivedMessage) -> Self {
        let (count, at) = (message.dequeue_count, message.arrived_at);
        Self::new(&message.id, &message.body, count, at)
    }
}
