//! `queue create|put|get|peek|depth|move|purge|address`: work with a queue by hand.

mod get;
mod moving;
mod notification;
mod put;

use std::{path::Path, sync::Arc};

use clap::Subcommand;
use reveille::{
    Error, ErrorKind,
    queue::{self, WorkQueue},
};
use serde::Serialize;

use self::{
    get::{Get, Peek},
    moving::Move,
    put::Put,
};
use super::{exit::Exit, output::Format, settings::Settings};

/// Work with a queue
///
/// A queue is `sqlite:PATH?queue=NAME`, or `azure://ACCOUNT/QUEUE` for Azure Queue Storage, whose
/// credential is taken from AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_KEY, or
/// AZURE_STORAGE_SAS_TOKEN; AZURE_STORAGE_QUEUE_ENDPOINT says where the account's queues are, if
/// not at their usual place. Messages there are base64, unless the URL ends in `?encoding=text`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille queue put 'sqlite:jobs.db?queue=orders' hello --create --notify
  reveille queue get 'sqlite:jobs.db?queue=orders' --delete
  AZURE_STORAGE_KEY=... reveille queue depth azure://acct/orders")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a queue where it is missing
    #[command(after_help = "\
Example:
  reveille queue create 'sqlite:jobs.db?queue=orders'")]
    Create(Named),
    /// Put messages, and say so where that is wanted
    #[command(after_help = "\
Example:
  reveille queue put 'sqlite:jobs.db?queue=orders' first second --notify
  seq 1000 | reveille queue put 'sqlite:jobs.db?queue=orders' --create --delay 10s
  reveille queue put 'sqlite:jobs.db?queue=orders' --body-file photo.jpg
  gzip -c report | reveille queue put 'sqlite:jobs.db?queue=orders' --stdin

Where --notify is not acknowledged it ends with 8: the messages are stored all the same.")]
    Put(Put),
    /// Get messages: hidden from others for a while, and gone with --delete
    #[command(after_help = "\
Example:
  reveille queue get 'sqlite:jobs.db?queue=orders' --max 32 --delete -o jsonl
  reveille queue get 'sqlite:jobs.db?queue=orders' --delete --raw > photo.jpg

JSON has each body twice: `body` as text, or null where it is not UTF-8, and `body_base64`.")]
    Get(Get),
    /// Look at messages without getting them
    #[command(after_help = "\
Example:
  reveille queue peek 'sqlite:jobs.db?queue=orders' --max 5
  reveille queue peek 'sqlite:jobs.db?queue=orders' --raw | file -")]
    Peek(Peek),
    /// Count the messages, hidden ones included
    #[command(after_help = "\
Example:
  reveille queue depth 'sqlite:jobs.db?queue=orders'")]
    Depth(Named),
    /// Move messages into another queue: most often out of a poison queue, back to their source
    #[command(after_help = "\
Example:
  reveille queue move 'sqlite:jobs.db?queue=orders-poison' 'sqlite:jobs.db?queue=orders' --notify

Both queues must be there. Where --notify is not acknowledged it ends with 8: the messages are moved all \
the same.")]
    Move(Move),
    /// Delete all messages
    #[command(after_help = "\
Example:
  reveille queue purge 'sqlite:jobs.db?queue=orders'")]
    Purge(Named),
    /// Print the address under which a queue is notified
    #[command(after_help = "\
Example:
  reveille notify \"$(reveille queue address 'sqlite:jobs.db?queue=orders')\"")]
    Address(Named),
}

/// A queue, and how to answer.
#[derive(Debug, clap::Args)]
struct Named {
    /// The queue: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`
    #[arg(value_name = "QUEUE_URL")]
    url: String,
    /// How data is written [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT")]
    output: Option<Format>,
}

/// A queue's address, and what one verb tells of it.
#[derive(Debug, Serialize)]
struct Told<T> {
    queue: String,
    #[serde(flatten)]
    told: T,
}

#[derive(Debug, Serialize)]
struct Created {
    created: bool,
}

#[derive(Debug, Serialize)]
struct Depth {
    depth: u64,
}

/// Nothing beside the queue.
#[derive(Debug, Serialize)]
struct Nothing {}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        match self.verb {
            Verb::Create(named) => {
                let queue = open(&named.url).await?;
                let created = queue.create().await?;
                let told = Told::of(&*queue, Created { created });
                let line = match created {
                    true => format!("made {}", told.queue),
                    false => format!("{} was there already", told.queue),
                };
                named.format(settings).next(&told, line)?;
            }
            Verb::Put(put) => return put.run(settings).await,
            Verb::Get(get) => return get.run(settings).await,
            Verb::Peek(peek) => return peek.run(settings).await,
            Verb::Depth(named) => {
                let queue = open_existing(&named.url).await?;
                let depth = queue.depth().await?;
                let told = Told::of(&*queue, Depth { depth });
                named.format(settings).next(&told, depth)?;
            }
            Verb::Move(messages) => return messages.run(settings).await,
            Verb::Purge(named) => {
                let queue = open_existing(&named.url).await?;
                queue.purge().await?;
                let told = Told::of(&*queue, Nothing {});
                let line = format!("deleted all messages of {}", told.queue);
                named.format(settings).next(&told, line)?;
            }
            Verb::Address(named) => {
                let address = queue::address(&named.url)?;
                let told = Told {
                    queue: address.to_string(),
                    told: Nothing {},
                };
                named.format(settings).next(&told, address)?;
            }
        }
        Ok(Exit::OK)
    }
}

impl Named {
    fn format(&self, settings: &Settings) -> Format {
        self.output.or(settings.output).unwrap_or_default()
    }
}

/// Opens a queue that outlives this command.
pub(super) async fn open(url: &str) -> Result<Arc<dyn WorkQueue>, Error> {
    if url.starts_with("memory:") {
        let rule = "a queue in memory ends with this command: name a `sqlite:PATH?queue=NAME`";
        return Err(Error::invalid("queue", rule));
    }
    queue::open(url).await
}

/// Opens a queue that must be there: a file is not made.
async fn open_existing(url: &str) -> Result<Arc<dyn WorkQueue>, Error> {
    let file = url.strip_prefix("sqlite:");
    let file = file.map(|rest| rest.split('?').next().unwrap_or_default());
    if let Some(file) = file.filter(|file| !file.is_empty() && !Path::new(file).exists()) {
        let message = format!(
            "queue `{url}`: there is no file `{file}`; make it first, as `queue create` does"
        );
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    open(url).await
}

impl<T> Told<T> {
    fn of(queue: &dyn WorkQueue, told: T) -> Self {
        Self {
            queue: queue.address().to_string(),
            told,
        }
    }
}
