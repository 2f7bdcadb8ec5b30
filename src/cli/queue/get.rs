//! `queue get` and `queue peek`: bodies of any bytes, as text, in JSON and as they are.

use std::time::Duration;

use reveille::{
    Error, duration,
    queue::{Message, WorkQueue},
};

use super::{Named, open_existing};
use crate::cli::{
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
    shape: Shape,
    /// Nobody else sees them for this long
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "30s")]
    visibility_timeout: Duration,
    /// Delete them once they are printed
    #[arg(long)]
    delete: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Peek {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    shape: Shape,
}

/// How many messages, and how their bodies are written.
#[derive(Debug, clap::Args)]
struct Shape {
    /// How many at most
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1, value_parser = usage::positive::<usize>)]
    max: usize,
    /// Print the bytes of one message's body and nothing else; ends with 5 where there is none
    #[arg(long, conflicts_with = "output")]
    raw: bool,
}

impl Get {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        self.shape.check()?;
        let queue = open_existing(&self.named.url).await?;
        let (messages, failure) = self.take(&*queue).await;
        let exit = match self.shape.raw {
            true => raw(messages.first().map(|message| &message.body[..]))?,
            false => {
                let rows: Vec<_> = messages.iter().map(MessageRow::from).collect();
                self.named.format(settings).list(&rows)?;
                Exit::OK
            }
        };
        if self.delete {
            // Printed first: what is deleted before it was seen would be lost.
            for message in &messages {
                queue.delete(&message.receipt).await?;
            }
        }
        failure.map_or(Ok(exit), |error| Err(error.into()))
    }

    /// Gets batch after batch, until there are enough or no more. After a failure what was got
    /// before is returned as well: it is hidden from others.
    async fn take(&self, queue: &dyn WorkQueue) -> (Vec<Message>, Option<Error>) {
        let mut messages = Vec::new();
        while messages.len() < self.shape.max {
            let wanted = self.shape.max - messages.len();
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
        self.shape.check()?;
        let queue = open_existing(&self.named.url).await?;
        let peeked = queue.peek(self.shape.max).await?;
        if self.shape.raw {
            return raw(peeked.first().map(|message| &message.body[..]));
        }
        let rows: Vec<_> = peeked.iter().map(MessageRow::from).collect();
        self.named.format(settings).list(&rows)?;
        Ok(Exit::OK)
    }
}

impl Shape {
    /// Bodies of several messages that follow each other could not be told apart.
    fn check(&self) -> Result<(), Usage> {
        match self.raw && self.max != 1 {
            true => Err(Usage(
                "--raw prints one message: leave --max out".to_owned(),
            )),
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
        /// A table is for people: the first line of a body, and not all of that.
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
