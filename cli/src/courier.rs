//! `courier serve|send|receive|status|history|dead|requeue|forget|new-identity`: messages between machines.

mod dead;
mod send;
mod serve;
mod status;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Subcommand;
use reveille::{
    Error,
    courier::{HistoryEntry, MessageId, QueueManager, QueueManagerConfig},
};
use serde_json::{Value, json};

use self::{
    dead::{Dead, Requeue},
    send::Send,
    serve::Serve,
    status::Status,
};
use super::{
    exit::{Exit, Failed},
    message,
    output::{self, Format, OutputArgs, time},
    program,
    settings::{self, Settings},
    values,
};

/// Send messages between machines, in transactions
///
/// The verbs work on all queues of a directory, whose file is DIR/queues.db. Its queues have the URLs
/// `sqlite:DIR/queues.db?queue=NAME` for `queue` and `listen`. The table `[queues]` of the configuration
/// file sets their limits, routes and aliases.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  reveille courier serve /var/lib/queues
  reveille courier send /var/lib/queues reveille://berlin:7610/orders 'an order'
  reveille courier status /var/lib/queues")]
pub(super) enum Verb {
    Serve(Box<Serve>),
    Send(Send),
    /// Receive messages in one transaction: print them, then commit
    #[command(after_help = "\
Example:
  reveille courier receive queues orders --max 100 -o jsonl

The messages are committed after they are printed. If they cannot be printed they return to the \
queue. JSON has each body twice: `body` as text, or null if it is not UTF-8, and `body_base64`.")]
    Receive {
        #[command(flatten)]
        dir: Dir,
        /// The queue's name
        #[arg(value_name = "QUEUE")]
        queue: String,
        /// Maximum number of messages
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::positive::<usize>)]
        max: usize,
    },
    Status(Status),
    /// List messages that were received, or handed over to other machines
    #[command(after_help = "\
Example:
  reveille courier history queues --max 1000 -o jsonl

The newest is first. `received`: by a transaction, from a queue of DIR. `confirmed`: visible at the \
next machine. The table [queues] of the configuration file sets how long history is kept.")]
    History {
        #[command(flatten)]
        dir: Dir,
        /// Maximum number of messages
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = values::positive::<usize>)]
        max: usize,
    },
    Dead(Dead),
    Requeue(Requeue),
    /// Forget the queue file of a machine that is gone for good, or whose a sender's file is
    #[command(after_help = "\
Example:
  reveille courier forget queues berlin:7610
  reveille courier forget queues --sender 9f3c1a5e77d04b1c8a2e6f0d4b5c6a7e

A machine that gets a new queue file is refused while messages to its former file are not settled. \
Bring the file back if you can. This command makes dead letters of the messages that only the former \
file has, without their bodies. Messages that it may have are sent to the new file, and would arrive \
twice if the former file came back.")]
    Forget {
        #[command(flatten)]
        dir: Dir,
        /// The next machine, as `courier status` shows it
        #[arg(value_name = "HOST:PORT", required_unless_present = "sender")]
        machine: Option<String>,
        /// The queue file of a sender, as its refusal names it
        #[arg(long, value_name = "FILE_ID", conflicts_with = "machine")]
        sender: Option<MessageId>,
    },
    /// Make a copy of a queue file another file, for a cloned machine
    #[command(after_help = "\
Example:
  reveille courier new-identity queues

Stop the host of the copy and the applications that use it, run this command on it, and start them \
again. A file that is restored or moved keeps its identity: do not run this command on it.

Messages that wait for other machines arrive once. Messages that wait in the queues of the copy are \
handled on both machines: purge the queues of one of them. The copy forgets the messages that only the \
original may settle.")]
    NewIdentity {
        #[command(flatten)]
        dir: Dir,
    },
}

/// The queues of a directory, and the output format.
#[derive(Debug, clap::Args)]
pub(super) struct Dir {
    /// The directory of the queues, or their file
    #[arg(value_name = "DIR")]
    place: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

const HISTORY: &str = "message_id state destination bytes stored_at settled_at";
/// Messages of one step of a transaction.
const BATCH: usize = 32;
/// Long enough for a reader of stdout that is slow; after a crash the messages return this late.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(60);

impl Verb {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        match self {
            // Handles interrupts itself.
            Self::Serve(serve) => serve.run(settings).await,
            verb => program::until_interrupted(verb.call(settings)).await,
        }
    }

    /// Runs a verb that may be dropped at any moment.
    async fn call(self, settings: &Settings) -> anyhow::Result<Exit> {
        match self {
            Self::Serve(_) => unreachable!("run by `Verb::run`"),
            Self::Send(send) => return send.run(settings).await,
            Self::Receive { dir, queue, max } => {
                let manager = dir.open(settings).await?;
                receive(&manager, &queue, max, dir.output.format).await?;
            }
            Self::Status(status) => status.run(settings).await?,
            Self::History { dir, max } => {
                let entries = dir.open(settings).await?.history(max).await?;
                let rows: Vec<_> = entries.iter().map(history_row).collect();
                dir.output.format.rows(HISTORY, &rows)?;
            }
            Self::Dead(dead) => dead.run(settings).await?,
            Self::Requeue(requeue) => requeue.run(settings).await?,
            Self::Forget {
                dir,
                sender: Some(sender),
                ..
            } => {
                let known = dir.open(settings).await?.forget_sender(sender).await?;
                let row = json!({ "sender": sender.to_string(), "known": known });
                let (line, exit) = match known {
                    true => ("forgot whose queue file it is", Exit::OK),
                    false => ("there is no such sender", Exit::NOT_FOUND),
                };
                dir.output.format.next(&row, line)?;
                return Ok(exit);
            }
            Self::Forget { dir, machine, .. } => {
                let machine = machine.unwrap_or_default();
                let manager = dir.open(settings).await?;
                let forgotten = manager.forget_machine(&machine).await?;
                let (given_up, again) = (forgotten.given_up, forgotten.uncertain);
                let line = format!(
                    "forgot the queue file of {machine}: gave up {}; {} may be sent twice",
                    output::count(given_up, "message"),
                    output::count(again, "message")
                );
                let row = json!({ "machine": machine, "given_up": given_up, "sent_again": again });
                dir.output.format.next(&row, line)?;
            }
            Self::NewIdentity { dir } => {
                // Opens it first: hosting creates a file.
                let path = dir.open(settings).await?.path().to_owned();
                let manager = QueueManager::host(path, QueueManagerConfig::default()).await?;
                let removed = manager.new_identity().await?;
                let messages = output::count(removed, "message");
                let line = format!("it has a new identity; {messages} of the original removed");
                dir.output
                    .format
                    .next(&json!({ "removed": removed }), line)?;
            }
        }
        Ok(Exit::OK)
    }
}

impl Dir {
    async fn open(&self, settings: &Settings) -> Result<QueueManager, Error> {
        open(&self.place, settings, false).await
    }
}

/// Opens the queue file of a directory, or the file itself.
async fn open(place: &Path, from: &Settings, create: bool) -> Result<QueueManager, Error> {
    let (file, config) = (settings::queue_file(place)?, from.queues.manager());
    if create {
        return QueueManager::open(file, config).await;
    }
    let opened = QueueManager::open_existing(file, config).await;
    let verbs = "`courier serve` and `courier send --create`";
    opened.map_err(|error| values::created_by(error, verbs))
}

async fn receive(
    manager: &QueueManager,
    queue: &str,
    max: usize,
    format: Format,
) -> anyhow::Result<()> {
    let mut transaction = manager.begin_with(RECEIVE_TIMEOUT)?;
    let mut rows = Vec::new();
    while rows.len() < max {
        let wanted = (max - rows.len()).min(BATCH);
        let more = transaction.receive_many(queue, wanted).await?;
        if more.is_empty() {
            break;
        }
        rows.extend(
            more.iter()
                .map(|one| message::row(&one.id, &one.body, one.dequeue_count, one.arrived_at)),
        );
    }
    if let Err(error) = message::list(format, rows) {
        transaction.roll_back().await?;
        let text = format!("stdout: {error}: the messages are in the queue again");
        return Err(Failed(text).into());
    }
    Ok(transaction.commit().await?)
}

fn history_row(entry: &HistoryEntry) -> Value {
    let is_local = entry.destination.authority().is_none();
    json!({
        "message_id": entry.id.to_string(),
        "state": if is_local { "received" } else { "confirmed" },
        "destination": entry.destination.to_string(),
        "bytes": entry.size,
        "stored_at": time(entry.stored_at),
        "settled_at": time(entry.settled_at),
    })
}
