//! `queue get` and `queue peek`: print bodies as text, in JSON, or as raw bytes.

use std::time::Duration;

use reveille::{
    Error, duration,
    queue::{Message, WorkQueue},
};

use super::{Named, open};
use crate::{
    exit::{Exit, Usage},
    message::MessageRow,
    output::{self, Row},
    settings::Settings,
    usage,
};

#[derive(Debug, clap::Args)]
pub(super) struct Get {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    read: ReadArgs,
    /// How long the messages are hidden from others
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "30s")]
    visibility_timeout: Duration,
    /// Delete the messages after printing them
    #[arg(long)]
    delete: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Peek {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    read: ReadArgs,
}

/// The number of messages, and the form of their bodies.
#[derive(Debug, clap::Args)]
struct ReadArgs {
    /// Maximum number of messages
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1, value_parser = usage::positive::<usize>)]
    max: usize,
    /// Print the bytes of one message's body and nothing else; ends with 5 if there is no message
    #[arg(long, conflicts_with = "output")]
    raw: bool,
}

impl Get {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        self.read.check()?;
        let queue = open(&self.named.url).await?;
        let (messages, failure) = self.get_all(&*queue).await;
        let exit = match self.read.raw {
            true => raw(messages.first().map(|message| &message.body[..]))?,
            false => {
                let rows: Vec<_> = messages.iter().map(MessageRow::from).collect();
                self.named.format(settings).list(&rows)?;
                Exit::OK
            }
        };
        if self.delete {
            // Printed first: a message that is deleted before it is printed would be lost.
            for message in &messages {
                queue.delete(&message.receipt).await?;
            }
        }
        failure.map_or(Ok(exit), |error| Err(error.into()))
    }

    /// Gets batches until there are enough messages or no more. Returns also the messages from
    /// before a failure: they are hidden from others.
    async fn get_all(&self, queue: &dyn WorkQueue) -> (Vec<Message>, Option<Error>) {
        let mut messages = Vec::new();
        while messages.len() < self.read.max {
            let wanted = self.read.max - messages.len();
            match queue.get(wanted, self.visibility_timeout).await {
                Ok(more) if more.is_empty() => break,
                Ok(more) => messages.extend(more),
                Err(error) => return (messages, Some(error)),
            }
        }
        (messages, None)
    }
}

impl Peek {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        self.read.check()?;
        let queue = open(&self.named.url).await?;
        let peeked = queue.peek(self.read.max).await?;
        if self.read.raw {
            return raw(peeked.first().map(|message| &message.body[..]));
        }
        let rows: Vec<_> = peeked.iter().map(MessageRow::from).collect();
        self.named.format(settings).list(&rows)?;
        Ok(Exit::OK)
    }
}

impl ReadArgs {
    /// Refuses --raw for several messages: nothing would separate their bodies.
    fn check(&self) -> Result<(), Usage> {
        match self.raw && self.max != 1 {
            true => Err(Usage("--raw prints one message: omit --max".to_owned())),
            false => Ok(()),
        }
    }
}

fn raw(body: Option<&[u8]>) -> anyhow::Result<Exit> {
    let Some(body) = body else {
        output::note("no message is visible");
        return Ok(Exit::NOT_FOUND);
    };
    output::bytes(body)?;
    Ok(Exit::OK)
}

impl Row for MessageRow {
    const HEADERS: &'static [&'static str] = &["ID", "BODY", "BYTES", "DEQUEUED", "INSERTED"];

    fn cells(&self) -> Vec<String> {
        /// Characters of a body's first line in a table.
        const SHOWN: usize = 60;
        let body = self.body.as_deref().unwrap_or("(not text)");
        let mut line: String = body
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(SHOWN)
            .collect();
        if line.len() < body.len() {
            line.push('…');
        }
        vec![
            self.message_id.clone(),
            line,
            self.bytes.to_string(),
            self.dequeue_count.to_string(),
            self.inserted_at.map(output::time).unwrap_or_default(),
        ]
    }
}
