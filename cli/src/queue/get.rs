//! `queue get` and `queue peek`: print bodies as text, in JSON, or as raw bytes.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use futures_util::{StreamExt as _, stream};
use reveille::{duration, queue::WorkQueue};
use serde_json::Value;

use super::{Named, open};
use crate::{
    exit::{Exit, Usage},
    message, output,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    #[command(flatten)]
    peek: Peek,
    /// How long the messages are hidden from others
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "30s")]
    visibility_timeout: Duration,
    /// Delete the messages after printing them
    #[arg(long)]
    delete: bool,
}

/// The queue, the number of messages, and the form of their bodies.
#[derive(Debug, clap::Args)]
pub(crate) struct Peek {
    #[command(flatten)]
    named: Named,
    /// Maximum number of messages, up to 1024
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    max: u16,
    /// Print the bytes of one message's body and nothing else; ends with 5 if there is no message
    #[arg(long, conflicts_with = "output")]
    raw: bool,
}

/// Deletions that are under way at a time.
const AT_A_TIME: usize = 32;

impl Get {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let queue = self.peek.open().await?;
        let max = usize::from(self.peek.max);
        let (mut messages, mut got) = (Vec::new(), Ok(()));
        while messages.len() < max && got.is_ok() {
            let more = queue.get(max - messages.len(), self.visibility_timeout);
            match more.await {
                Ok(more) if more.is_empty() => break,
                Ok(more) => messages.extend(more),
                Err(error) if messages.is_empty() => return Err(error.into()),
                // The messages so far are this command's: they are printed all the same.
                Err(error) => got = Err(error),
            }
        }
        let first = messages.first().map(|message| &message.body[..]);
        let rows = messages
            .iter()
            .map(|one| message::row(&one.id, &one.body, one.dequeue_count, one.inserted_at));
        let exit = self.peek.print(first, rows.collect())?;
        if self.delete {
            // Printed first: a message that is deleted before it is printed would be lost.
            let deletions = stream::iter(&messages).map(|message| queue.delete(&message.receipt));
            let deleted: Vec<_> = deletions.buffer_unordered(AT_A_TIME).collect().await;
            deleted
                .into_iter()
                .collect::<reveille::Result<()>>()
                .context("printed messages were not deleted, and come again")?;
        }
        got?;
        Ok(exit)
    }
}

impl Peek {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let queue = self.open().await?;
        let peeked = queue.peek(self.max.into()).await?;
        let first = peeked.first().map(|message| &message.body[..]);
        let rows = peeked
            .iter()
            .map(|one| message::row(&one.id, &one.body, one.dequeue_count, one.inserted_at));
        self.print(first, rows.collect())
    }

    /// Refuses --raw for several messages: nothing would separate their bodies.
    async fn open(&self) -> anyhow::Result<Arc<dyn WorkQueue>> {
        if self.raw && self.max != 1 {
            return Err(Usage("--raw prints one message: omit --max".to_owned()).into());
        }
        open(&self.named.url).await
    }

    fn print(&self, first: Option<&[u8]>, rows: Vec<Value>) -> anyhow::Result<Exit> {
        match first {
            Some(body) if self.raw => output::write(body)?,
            None if self.raw => {
                output::note("no message is visible");
                return Ok(Exit::NOT_FOUND);
            }
            _ => message::list(self.named.output.format, rows)?,
        }
        Ok(Exit::OK)
    }
}
