//! `queue get` and `queue peek`: print bodies as text, in JSON, or as raw bytes.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use reveille::{
    Error, duration,
    queue::{Message, WorkQueue},
};

use super::{Named, open};
use crate::{
    exit::{Exit, Usage},
    message::MessageRow,
    output::{self, Format, Row},
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

/// Deletions that are under way at a time.
const AT_A_TIME: usize = 32;

impl Get {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        self.read.check()?;
        let queue = open(&self.named.url).await?;
        let format = self.named.format(settings);
        let mut left = self.read.max;
        loop {
            let (messages, end) = self.get_some(&*queue, left).await;
            left -= messages.len();
            let exit = match self.read.raw {
                true => raw(messages.first().map(|message| &message.body[..]))?,
                false => {
                    let rows: Vec<_> = messages.iter().map(MessageRow::from).collect();
                    format.list(&rows)?;
                    Exit::OK
                }
            };
            if self.delete {
                // Printed first: a message that is deleted before it is printed would be lost.
                delete_all(&*queue, messages).await?;
            }
            match end {
                End::Done => return Ok(exit),
                End::Failed(error) => return Err(error.into()),
                // Tables and documents end with their list.
                End::InTime if format != Format::Jsonl => {
                    output::note(format_args!(
                        "half of --visibility-timeout is over: run it again for the rest, or pass \
                         -o jsonl"
                    ));
                    return Ok(exit);
                }
                End::InTime => {}
            }
        }
    }

    /// Gets batches until there are enough messages or no more. Returns also the messages from
    /// before a failure: they are hidden from others. Those that are to be deleted are got for half of
    /// their time-out, so that the other half is left for the deletion.
    async fn get_some(&self, queue: &dyn WorkQueue, max: usize) -> (Vec<Message>, End) {
        let (mut messages, began) = (Vec::new(), Instant::now());
        while messages.len() < max {
            if self.delete && !messages.is_empty() && began.elapsed() > self.visibility_timeout / 2
            {
                return (messages, End::InTime);
            }
            let wanted = max - messages.len();
            match queue.get(wanted, self.visibility_timeout).await {
                Ok(more) if more.is_empty() => break,
                Ok(more) => messages.extend(more),
                Err(error) => return (messages, End::Failed(error)),
            }
        }
        (messages, End::Done)
    }
}

/// Why no more messages were got.
enum End {
    /// There are as many as wanted, or no more.
    Done,
    /// The messages must be deleted before their time-out.
    InTime,
    Failed(Error),
}

/// Deletes messages, several at a time. One that cannot be deleted keeps none of the others.
async fn delete_all(queue: &dyn WorkQueue, messages: Vec<Message>) -> Result<(), Error> {
    let deletions = messages
        .iter()
        .map(|message| queue.delete(&message.receipt));
    let outcomes: Vec<_> = futures_util::stream::iter(deletions)
        .buffer_unordered(AT_A_TIME)
        .collect()
        .await;
    let all = outcomes.len();
    let mut failures = outcomes.into_iter().filter_map(Result::err);
    let Some(first) = failures.next() else {
        return Ok(());
    };
    let failed = 1 + failures.count();
    let message =
        format!("{failed} of {all} printed messages were not deleted, and come again: {first}");
    Err(Error::new(first.kind(), message))
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
