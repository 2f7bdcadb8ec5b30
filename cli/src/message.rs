//! Messages of queues: those to store, from the command line, a file or the standard input, and those
//! that were read as JSON, for `queue get` and `queue peek`, and for the command of `listen --batch`.

use std::time::SystemTime;

use anyhow::Context as _;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use reveille::{
    courier::ReceivedMessage,
    queue::{Message, PeekedMessage},
};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Split, Stdin, stdin};

use super::output;

/// The messages to store.
#[derive(Debug, clap::Args)]
pub(super) struct Bodies {
    /// The messages; without any, each line of the standard input is a message
    #[arg(value_name = "BODY")]
    bodies: Vec<String>,
    /// Take the bytes of the standard input as one message
    #[arg(long, conflicts_with = "bodies")]
    stdin: bool,
}

/// The messages of the standard input, one a line.
pub(super) struct Lines(Split<BufReader<Stdin>>);

const UNREAD: &str = "the standard input cannot be read";

impl Bodies {
    /// Returns the messages; `None` where they are [`Lines`].
    pub(super) async fn whole(&self) -> anyhow::Result<Option<Vec<Vec<u8>>>> {
        if self.stdin {
            let mut body = Vec::new();
            stdin().read_to_end(&mut body).await.context(UNREAD)?;
            return Ok(Some(vec![body]));
        }
        let bodies = self.bodies.iter().map(|body| body.clone().into_bytes());
        Ok(Some(bodies.collect()).filter(|bodies: &Vec<_>| !bodies.is_empty()))
    }
}

impl Lines {
    pub(super) fn of_stdin() -> Self {
        Self(BufReader::new(stdin()).split(b'\n'))
    }

    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        self.0.next_segment().await.context(UNREAD)
    }
}

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
