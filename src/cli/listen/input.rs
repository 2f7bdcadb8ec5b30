//! What a run of the command is given: environment and standard input.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use reveille::{listener::Delivery, queue::Message};
use serde::Serialize;

use crate::cli::output;

#[derive(Debug)]
pub(super) struct Input {
    pub(super) environment: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

/// A message of a batch, as a line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    id: &'a str,
    dequeue_count: u32,
    inserted_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    /// Where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

impl Input {
    /// Returns the input of a run for one message: its body as it is.
    pub(super) fn of_one(delivery: &Delivery) -> Self {
        let message = &delivery.message;
        let environment = vec![
            ("MESSAGE_ID", message.id.to_string()),
            ("MESSAGE_DEQUEUE_COUNT", message.dequeue_count.to_string()),
            ("MESSAGE_QUEUE", delivery.queue.to_string()),
            ("MESSAGE_INSERTED_AT", output::time(message.inserted_at)),
        ];
        Self {
            environment,
            body: message.body.to_vec(),
        }
    }

    /// Returns the input of a run for a batch: a JSON object a line.
    pub(super) fn of_batch(batch: &[Delivery]) -> serde_json::Result<Self> {
        let queue = batch.first().map(|first| first.queue.to_string());
        let environment = vec![
            ("MESSAGE_QUEUE", queue.unwrap_or_default()),
            ("MESSAGE_COUNT", batch.len().to_string()),
        ];
        let mut body = Vec::new();
        for delivery in batch {
            serde_json::to_writer(&mut body, &Line::from(&delivery.message))?;
            body.push(b'\n');
        }
        Ok(Self { environment, body })
    }
}

impl<'a> From<&'a Message> for Line<'a> {
    fn from(message: &'a Message) -> Self {
        let text = std::str::from_utf8(&message.body).ok();
        Self {
            id: message.id.as_str(),
            dequeue_count: message.dequeue_count,
            inserted_at: output::time(message.inserted_at),
            body: text,
            body_base64: text.is_none().then(|| STANDARD.encode(&message.body)),
        }
    }
}
