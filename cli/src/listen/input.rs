//! Environment and standard input of one run of the command.

use reveille::listener::Delivery;

use crate::{message::MessageRow, output};

#[derive(Debug)]
pub(super) struct Input {
    pub(super) environment: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

impl Input {
    /// Returns the input of a run for one message: its unchanged body.
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

    /// Returns the input of a run for a batch: one JSON object a line.
    pub(super) fn of_batch(batch: &[Delivery]) -> serde_json::Result<Self> {
        let queue = batch.first().map(|first| first.queue.to_string());
        let environment = vec![
            ("MESSAGE_QUEUE", queue.unwrap_or_default()),
            ("MESSAGE_COUNT", batch.len().to_string()),
        ];
        let mut body = Vec::new();
        for delivery in batch {
            serde_json::to_writer(&mut body, &MessageRow::from(&delivery.message))?;
            body.push(b'\n');
        }
        Ok(Self { environment, body })
    }
}
