//! `queue create|list|put|get|peek|depth|move|purge|address`: reads and writes a queue.

mod get;
mod put;

use std::{path::Path, sync::Arc};

use clap::Subcommand;
use reveille::{
    QueueAddress,
    queue::{self, SqliteQueue, WorkQueue},
};
use serde_json::{Value, json};

use self::{
    get::{Get, Peek},
    put::{Move, Put},
};
use super::{
    exit::{Exit, Usage},
    output::OutputArgs,
    values,
};

/// Read and write queues
///
/// A queue is `sqlite:PATH?queue=NAME`, or `azure://ACCOUNT/QUEUE` for Azure Queue Storage (in a
/// build with `--features full`). AZURE_STORAGE_CONNECTION_STRING has the credential for Azure: a
/// key or a shared access signature. Messages in Azure are base64, unless the URL ends in
/// `?encoding=text`.
///
/// Messages between machines are sent by `courier`.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  reveille queue put 'sqlite:jobs.db?queue=orders' hello --create --notify
  reveille queue get 'sqlite:jobs.db?queue=orders' --delete
  AZURE_STORAGE_CONNECTION_STRING=... reveille queue depth azure://acct/orders")]
pub(super) enum Verb {
    /// Create a queue if it is missing
    #[command(after_help = "\
Example:
  reveille queue create 'sqlite:jobs.db?queue=orders'")]
    Create(Named),
    /// List the queues of a file
    #[command(after_help = "\
Example:
  reveille queue list sqlite:jobs.db

DEPTH counts hidden messages too. The queues that a relay knows are listed by `reveille queues`.")]
    List {
        /// The file: `sqlite:PATH`, or the URL of one of its queues
        #[arg(value_name = "FILE_URL")]
        url: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Put messages, and notify listeners with --notify
    #[command(after_help = "\
Example:
  reveille queue put 'sqlite:jobs.db?queue=orders' first second --notify
  seq 1000 | reveille queue put 'sqlite:jobs.db?queue=orders' --create --delay 10s
  gzip -c report | reveille queue put 'sqlite:jobs.db?queue=orders' --stdin

Ends with 8 if the messages are stored but the relay did not acknowledge --notify.")]
    Put(Put),
    /// Get messages: hides them from others for a while, and deletes them with --delete
    #[command(after_help = "\
Example:
  reveille queue get 'sqlite:jobs.db?queue=orders' --max 32 --delete -o jsonl
  reveille queue get 'sqlite:jobs.db?queue=orders' --delete --raw > photo.jpg

JSON has each body twice: `body` as text, or null if it is not UTF-8, and `body_base64`.")]
    Get(Get),
    /// Print messages without getting them
    #[command(after_help = "\
Example:
  reveille queue peek 'sqlite:jobs.db?queue=orders' --raw | file -")]
    Peek(Peek),
    /// Count the messages, including hidden ones
    #[command(after_help = "\
Example:
  reveille queue depth 'sqlite:jobs.db?queue=orders'")]
    Depth(Named),
    /// Move messages to another queue, for example from a poison queue back to its source
    #[command(after_help = "\
Example:
  reveille queue move 'sqlite:jobs.db?queue=orders-poison' 'sqlite:jobs.db?queue=orders' --notify

Both queues must exist. Ends with 8 if the messages are moved but the relay did not acknowledge \
--notify.")]
    Move(Move),
    /// Delete all messages of a queue
    #[command(after_help = "\
Example:
  reveille queue purge 'sqlite:jobs.db?queue=orders'")]
    Purge(Named),
    /// Print the address (ACCOUNT/QUEUE) for notifications of a queue
    #[command(after_help = "\
Example:
  reveille notify \"$(reveille queue address 'sqlite:jobs.db?queue=orders')\"")]
    Address(Named),
}

/// A queue's URL, and the output format.
#[derive(Debug, clap::Args)]
pub(super) struct Named {
    /// The queue: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`
    #[arg(value_name = "QUEUE_URL")]
    url: String,
    #[command(flatten)]
    output: OutputArgs,
}

impl Verb {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let (output, row, line) = match self {
            Self::Put(put) => return put.run().await,
            Self::Get(get) => return get.run().await,
            Self::Peek(peek) => return peek.run().await,
            Self::Move(messages) => return messages.run().await,
            Self::List { url, output } => {
                output.format.rows("url depth", &list(&url).await?)?;
                return Ok(Exit::OK);
            }
            Self::Create(Named { url, output }) => {
                let (queue, created) = create(&url).await?;
                let address = queue.address().to_string();
                let row = json!({ "queue": address, "created": created });
                let line = match created {
                    true => format!("created {address}"),
                    false => format!("{address} exists already"),
                };
                (output, row, line)
            }
            Self::Depth(Named { url, output }) => {
                let queue = open(&url).await?;
                let depth = queue.depth().await?;
                let row = json!({ "queue": queue.address().to_string(), "depth": depth });
                (output, row, depth.to_string())
            }
            Self::Purge(Named { url, output }) => {
                let queue = open(&url).await?;
                queue.purge().await?;
                let address = queue.address().to_string();
                let line = format!("deleted all messages of {address}");
                (output, json!({ "queue": address }), line)
            }
            Self::Address(Named { url, output }) => {
                let address = queue::address(&url)?.to_string();
                (output, json!({ "queue": address }), address)
            }
        };
        output.format.next(&row, line)?;
        Ok(Exit::OK)
    }
}

/// Opens a queue that outlives this command: refuses one in memory. Does not create a file.
pub(super) async fn open(url: &str) -> anyhow::Result<Arc<dyn WorkQueue>> {
    values::refuse_memory("queue: a queue", "sqlite:PATH?queue=NAME", url)?;
    let opened = queue::open(url).await;
    Ok(opened.map_err(|error| values::created_by(error, "`queue create` and `--create`"))?)
}

/// Opens such a queue, and creates it if it is missing; returns whether it was.
async fn create(url: &str) -> anyhow::Result<(Arc<dyn WorkQueue>, bool)> {
    values::refuse_memory("queue: a queue", "sqlite:PATH?queue=NAME", url)?;
    Ok(queue::create(url).await?)
}

/// Opens such a queue, or creates it if it may be missing; returns whether it was then.
pub(super) async fn open_or_create(
    url: &str,
    creates: bool,
) -> anyhow::Result<(Arc<dyn WorkQueue>, Option<bool>)> {
    if !creates {
        return Ok((open(url).await?, None));
    }
    let (queue, created) = create(url).await?;
    Ok((queue, Some(created)))
}

async fn list(url: &str) -> anyhow::Result<Vec<Value>> {
    let Some(file) = url.strip_prefix("sqlite:") else {
        let text = format!("FILE_URL: must be `sqlite:PATH`, not `{url}`");
        return Err(Usage(text).into());
    };
    let path = Path::new(file.split('?').next().unwrap_or(file));
    let mut rows = Vec::new();
    for name in SqliteQueue::names(path).await? {
        let queue = SqliteQueue::open(path, QueueAddress::new("local", &name)?).await?;
        let url = format!("sqlite:{}?queue={name}", path.display());
        rows.push(json!({ "url": url, "depth": queue.depth().await? }));
    }
    Ok(rows)
}
