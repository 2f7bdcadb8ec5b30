//! `queue create|list|put|get|peek|depth|move|purge|address`: reads and writes a queue.
//! `queue serve|send|receive|status|history|dead|requeue|forget|new-identity`: messages between
//! machines.

mod dead;
mod forget;
mod get;
mod history;
mod list;
mod message_status;
mod moving;
mod new_identity;
mod notification;
mod place;
mod purge;
mod put;
mod receive;
mod requeue;
mod send;
mod serve;
mod status;

use std::sync::Arc;

use clap::Subcommand;
use reveille::{
    Error, ErrorKind,
    queue::{self, WorkQueue},
};
use serde::Serialize;

use self::{
    dead::Dead,
    forget::Forget,
    get::{Get, Peek},
    history::History,
    list::List,
    moving::Move,
    new_identity::NewIdentity,
    purge::Purge,
    put::Put,
    receive::Receive,
    requeue::Requeue,
    send::Send,
    serve::Serve,
    status::Status,
};
use super::{exit::Exit, output::Format, program, settings::Settings};

/// Read and write queues, and send messages between machines
///
/// A queue is `sqlite:PATH?queue=NAME`, or `azure://ACCOUNT/QUEUE` for Azure Queue Storage (in a
/// build with `--features full`). The credential for Azure comes from
/// AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN.
/// AZURE_STORAGE_QUEUE_ENDPOINT overrides the account's default endpoint. Messages in Azure are
/// base64, unless the URL ends in `?encoding=text`.
///
/// `serve`, `send`, `receive`, `status`, `history`, `dead`, `requeue`, `forget` and `new-identity` work
/// on all queues of a directory, whose file is DIR/queues.db. Its queues have the URLs
/// `sqlite:DIR/queues.db?queue=NAME`. The table `[queues]` of the configuration file sets their
/// limits, routes and aliases.
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
    /// Create a queue if it is missing
    #[command(after_help = "\
Example:
  reveille queue create 'sqlite:jobs.db?queue=orders'")]
    Create(Named),
    /// List the queues of a file
    #[command(after_help = list::AFTER_HELP)]
    List(List),
    /// Put messages, and notify listeners with --notify
    #[command(after_help = "\
Example:
  reveille queue put 'sqlite:jobs.db?queue=orders' first second --notify
  seq 1000 | reveille queue put 'sqlite:jobs.db?queue=orders' --create --delay 10s
  reveille queue put 'sqlite:jobs.db?queue=orders' --body-file photo.jpg
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
  reveille queue peek 'sqlite:jobs.db?queue=orders' --max 5
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
    /// Delete all messages of a queue, or those that wait for a destination on another machine
    #[command(after_help = "\
Example:
  reveille queue purge 'sqlite:jobs.db?queue=orders'
  reveille queue purge queues --destination reveille://berlin:7610/orders

With --destination, messages that the next machine may have already are offered no more, and go when \
the next connection shows that it has not.")]
    Purge(Purge),
    /// Print the address (ACCOUNT/QUEUE) for notifications of a queue
    #[command(after_help = "\
Example:
  reveille notify \"$(reveille queue address 'sqlite:jobs.db?queue=orders')\"")]
    Address(Named),
    /// Host the queues of a directory: exchange messages with other machines
    #[command(after_help = serve::AFTER_HELP)]
    Serve(Serve),
    /// Send messages to a queue of this or another machine, in one transaction
    #[command(after_help = send::AFTER_HELP)]
    Send(Send),
    /// Receive messages in one transaction: print them, then commit
    #[command(after_help = receive::AFTER_HELP)]
    Receive(Receive),
    /// Show where messages are: per queue and destination, or one message
    #[command(after_help = status::AFTER_HELP)]
    Status(Status),
    /// List messages that were received, or handed over to other machines
    #[command(after_help = history::AFTER_HELP)]
    History(History),
    /// List, show or delete messages that could not be delivered
    #[command(after_help = dead::AFTER_HELP)]
    Dead(Dead),
    /// Send dead letters again
    #[command(after_help = requeue::AFTER_HELP)]
    Requeue(Requeue),
    /// Forget the queue file of a machine that is gone for good, or whose a sender's file is
    #[command(after_help = forget::AFTER_HELP)]
    Forget(Forget),
    /// Make a copy of a queue file another file, for a cloned machine
    #[command(after_help = new_identity::AFTER_HELP)]
    NewIdentity(NewIdentity),
}

/// A queue's URL, and the output format.
#[derive(Debug, clap::Args)]
struct Named {
    /// The queue: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`
    #[arg(value_name = "QUEUE_URL")]
    url: String,
    /// The output format [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT")]
    output: Option<Format>,
}

/// A queue's address, and the result of one verb.
#[derive(Debug, Serialize)]
struct QueueRow<T> {
    queue: String,
    #[serde(flatten)]
    result: T,
}

#[derive(Debug, Serialize)]
struct Created {
    created: bool,
}

#[derive(Debug, Serialize)]
struct Depth {
    depth: u64,
}

/// A result without fields.
#[derive(Debug, Serialize)]
struct NoResult {}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        match self.verb {
            // Handles interrupts itself.
            Verb::Serve(serve) => serve.run(settings).await,
            verb => program::until_interrupted(verb.call(settings)).await,
        }
    }
}

impl Verb {
    /// Runs a verb that may be dropped at any moment.
    async fn call(self, settings: &Settings) -> anyhow::Result<Exit> {
        match self {
            Self::Create(named) => {
                let (queue, created) = create(&named.url).await?;
                let row = QueueRow::new(&*queue, Created { created });
                let line = match created {
                    true => format!("created {}", row.queue),
                    false => format!("{} exists already", row.queue),
                };
                named.format(settings).next(&row, line)?;
            }
            Self::List(list) => return list.run(settings).await,
            Self::Put(put) => return put.run(settings).await,
            Self::Get(get) => return get.run(settings).await,
            Self::Peek(peek) => return peek.run(settings).await,
            Self::Depth(named) => {
                let queue = open(&named.url).await?;
                let depth = queue.depth().await?;
                let row = QueueRow::new(&*queue, Depth { depth });
                named.format(settings).next(&row, depth)?;
            }
            Self::Move(messages) => return messages.run(settings).await,
            Self::Purge(purge) => return purge.run(settings).await,
            Self::Address(named) => {
                let address = queue::address(&named.url)?;
                let row = QueueRow {
                    queue: address.to_string(),
                    result: NoResult {},
                };
                named.format(settings).next(&row, address)?;
            }
            Self::Send(send) => return send.run(settings).await,
            Self::Receive(receive) => return receive.run(settings).await,
            Self::Status(status) => return status.run(settings).await,
            Self::History(history) => return history.run(settings).await,
            Self::Dead(dead) => return dead.run(settings).await,
            Self::Requeue(requeue) => return requeue.run(settings).await,
            Self::Forget(forget) => return forget.run(settings).await,
            Self::NewIdentity(renewal) => return renewal.run(settings).await,
            Self::Serve(_) => unreachable!("run by `Args::run`"),
        }
        Ok(Exit::OK)
    }
}

impl Named {
    fn format(&self, settings: &Settings) -> Format {
        self.output.or(settings.output).unwrap_or_default()
    }
}

/// Opens a queue that outlives this command: refuses one in memory. Does not create a file.
pub(super) async fn open(url: &str) -> Result<Arc<dyn WorkQueue>, Error> {
    refuse_memory(url)?;
    queue::open(url).await.map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let message = format!("{error}: `queue create` and `--create` create it");
            Error::new(ErrorKind::NotFound, message)
        }
        _ => error,
    })
}

/// Opens such a queue, and creates it if it is missing; returns whether it was.
pub(super) async fn create(url: &str) -> Result<(Arc<dyn WorkQueue>, bool), Error> {
    refuse_memory(url)?;
    queue::create(url).await
}

fn refuse_memory(url: &str) -> Result<(), Error> {
    match url.starts_with("memory:") {
        false => Ok(()),
        true => Err(Error::invalid(
            "queue",
            "a queue in memory is lost when this command ends: use `sqlite:PATH?queue=NAME`",
        )),
    }
}

impl<T> QueueRow<T> {
    fn new(queue: &dyn WorkQueue, result: T) -> Self {
        Self {
            queue: queue.address().to_string(),
            result,
        }
    }
}
