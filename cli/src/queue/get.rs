//! `queue get` and `queue peek`: print bodies as text, in JSON, or as raw bytes.

use std::time::Duration;

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
    values,
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
    /// Delete the messages after printing them; of thousands, with -o jsonl 1,024 at a time
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
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::positive::<usize>)]
    max: usize,
    /// Print the bytes of one message's body and nothing else; ends with 5 if there is no message
    #[arg(long, conflicts_with = "output")]
    raw: bool,
}

/// The messages that are got, printed and deleted before the next ones: few enough that none of them is
/// visible again before its deletion.
const ROUND: usize = 1_024;
/// Deletions that are under way at a time.
const AT_A_TIME: usize = 32;

impl Get {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        self.read.check()?;
        let queue = open(&self.named.url).await?;
        let format = self.named.format();
        let mut left = self.read.max;
        loop {
            // A table and a document have all messages, lines can be printed as they come.
            let wanted = match format {
                Format::Jsonl => left.min(ROUND),
                _ => left,
            };
            let (messages, failure) = self.get_all(&*queue, wanted).await;
            left -= messages.len();
            let is_last = left == 0 || messages.len() < wanted;
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
            if let Some(error) = failure {
                return Err(error.into());
            }
            if is_last {
                return Ok(exit);
            }
        }
    }

    /// Gets batches until there are enough messages or no more. Returns also the messages from
    /// before a failure: they are hidden from others.
    async fn get_all(&self, queue: &dyn WorkQueue, max: usize) -> (Vec<Message>, Option<Error>) {
        let mut messages = Vec::new();
        while messages.len() < max {
            let wanted = max - messages.len();
            match queue.get(wanted, self.visibility_timeout).await {
                Ok(more) if more.is_empty() => break,
                Ok(more) => messages.extend(more),
                Err(error) => return (messages, Some(error)),
            }
        }
        (messages, None)
    }
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
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        self.read.check()?;
        let queue = open(&self.named.url).await?;
        let peeked = queue.peek(self.read.max).await?;
        if self.read.raw {
            return raw(peeked.first().map(|message| &message.body[..]));
        }
        let rows: Vec<_> = peeked.iter().map(MessageRow::from).collect();
        self.named.format().list(&rows)?;
        Ok(Exit::OK)
    }
}

impl ReadArgs {
    /// Refuses --raw for several messages: nothing would separate their bodies.
    fn check(&self) -> Result<(), Usage> {
        if self.raw && self.max != 1 {
            return Err(Usage("--raw prints one message: omit --max".to_owned()));
        }
        Ok(())
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
    const COLUMNS: &'static [&'static str] = &[
        "message_id",
        "body",
        "bytes",
        "dequeue_count",
        "inserted_at",
    ];
    const DROPPED_FIRST: &'static [&'static str] = &["inserted_at", "bytes"];

    /// A body is its first line; JSON has the whole.
    fn cell(&self, column: &str) -> Option<String> {
        const SHOWN: usize = 60;
        let body = self.body.as_deref().unwrap_or("(not text)");
        let line = body.lines().next().unwrap_or_default();
        let mut cut: String = line.chars().take(SHOWN).collect();
        if cut.len() < body.len() {
            cut.push('…');
        }
        (column == "body").then_some(cut)
    }
}
