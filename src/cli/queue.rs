//! `queue create|put|get|peek|depth|move|purge|address`: work with a queue by hand.

mod moving;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use clap::Subcommand;
use reveille::{
    Error, Notification, PublisherOptions, duration,
    queue::{self, Message, MessageId, NewMessage, PeekedMessage, WorkQueue},
};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{
    exit::Exit,
    output::{self, Format, Row},
    settings::Settings,
    target::{self, TargetArgs},
    usage,
};

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
  seq 1000 | reveille queue put 'sqlite:jobs.db?queue=orders' --create --delay 10s")]
    Put(Put),
    /// Get messages: hidden from others for a while, and gone with --delete
    #[command(after_help = "\
Example:
  reveille queue get 'sqlite:jobs.db?queue=orders' --max 32 --delete -o jsonl")]
    Get(Get),
    /// Look at messages without getting them
    #[command(after_help = "\
Example:
  reveille queue peek 'sqlite:jobs.db?queue=orders' --max 5")]
    Peek {
        #[command(flatten)]
        named: Named,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = usage::number::<usize>)]
        max: usize,
    },
    /// Count the messages, hidden ones included
    #[command(after_help = "\
Example:
  reveille queue depth 'sqlite:jobs.db?queue=orders'")]
    Depth(Named),
    /// Move messages into another queue: most often out of a poison queue, back to their source
    #[command(after_help = "\
Example:
  reveille queue move 'sqlite:jobs.db?queue=orders-poison' 'sqlite:jobs.db?queue=orders' --notify")]
    Move(moving::Move),
    /// Delete all messages
    #[command(after_help = "\
Example:
  reveille queue purge 'sqlite:jobs.db?queue=orders'")]
    Purge(Named),
    /// Print the address under which a queue is notified
    #[command(after_help = "\
Example:
  reveille notify \"$(reveille queue address 'sqlite:jobs.db?queue=orders')\"")]
    Address {
        /// The queue
        #[arg(value_name = "QUEUE_URL")]
        url: String,
    },
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

#[derive(Debug, clap::Args)]
struct Put {
    /// The queue: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`
    #[arg(value_name = "QUEUE_URL")]
    url: String,
    /// A message each; without any, each line of the standard input is one
    #[arg(value_name = "BODY")]
    bodies: Vec<String>,
    /// Nobody sees them before this has passed
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "0s")]
    delay: Duration,
    /// They are gone after this, whether or not they were handled [default: never]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Make the queue first where it is missing
    #[arg(long)]
    create: bool,
    /// Tell the relay, so that listeners wake
    #[arg(long)]
    notify: bool,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, clap::Args)]
struct Get {
    #[command(flatten)]
    named: Named,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = usage::number::<usize>)]
    max: usize,
    /// Nobody else sees them for this long
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "30s")]
    visibility_timeout: Duration,
    /// Delete them once they are printed
    #[arg(long)]
    delete: bool,
}

/// A message as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    id: String,
    /// `null` where it is not UTF-8.
    body: Option<String>,
    bytes: usize,
    dequeue_count: u32,
    #[serde(serialize_with = "output::serialize_time")]
    inserted_at: Option<SystemTime>,
}

/// What was done to a queue, or what is known of it.
#[derive(Debug, Serialize)]
struct Told {
    queue: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    listeners: Option<u32>,
}

/// Messages of one call to the queue.
const BATCH: usize = 1000;

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        match self.verb {
            Verb::Create(named) => {
                let queue = open(&named.url).await?;
                let mut told = Told::of(&*queue);
                told.created = Some(queue.create().await?);
                let line = match told.created {
                    Some(true) => format!("made {}", told.queue),
                    _ => format!("{} was there already", told.queue),
                };
                named.format(settings).next(&told, line)?;
            }
            Verb::Put(put) => put.run(settings).await?,
            Verb::Get(get) => get.run(settings).await?,
            Verb::Peek { named, max } => {
                let peeked = open(&named.url).await?.peek(max).await?;
                let rows: Vec<_> = peeked.iter().map(Shown::from).collect();
                named.format(settings).list(&rows)?;
            }
            Verb::Depth(named) => {
                let queue = open(&named.url).await?;
                let mut told = Told::of(&*queue);
                let depth = queue.depth().await?;
                told.messages = Some(depth);
                named.format(settings).next(&told, depth)?;
            }
            Verb::Move(messages) => messages.run(settings).await?,
            Verb::Purge(named) => {
                let queue = open(&named.url).await?;
                queue.purge().await?;
                let told = Told::of(&*queue);
                let line = format!("deleted all messages of {}", told.queue);
                named.format(settings).next(&told, line)?;
            }
            Verb::Address { url } => output::text(&format!("{}\n", queue::address(&url)?))?,
        }
        Ok(Exit::OK)
    }
}

impl Named {
    fn format(&self, settings: &Settings) -> Format {
        self.output.or(settings.output).unwrap_or_default()
    }
}

impl Put {
    async fn run(mut self, settings: &Settings) -> anyhow::Result<()> {
        let target = self.target.resolve(settings);
        let queue = open(&self.url).await?;
        let mut told = Told::of(&*queue);
        if self.create {
            told.created = Some(queue.create().await?);
        }
        let bodies = std::mem::take(&mut self.bodies);
        let (messages, bytes) = if bodies.is_empty() {
            self.put_lines(&*queue).await?
        } else {
            let bodies = bodies.into_iter().map(String::into_bytes);
            self.put(&*queue, bodies.collect()).await?
        };
        told.messages = Some(messages);
        if self.notify && messages > 0 {
            let options = PublisherOptions {
                name: "reveille-cli".to_owned(),
                deadline: target.timeout.unwrap_or(Duration::MAX),
                ..PublisherOptions::default()
            };
            let client = target.client()?;
            let publisher = client.publisher_with(options);
            let notification = Notification {
                payload_size: bytes,
                messages,
                delay: self.delay,
                ..Notification::new(queue.address().clone())
            };
            let notified = target::patiently(&client, publisher.notify(notification)).await;
            let accepted = notified.with_context(|| {
                format!(
                    "put {messages} messages, but nobody was told: `reveille notify {}` does",
                    queue.address()
                )
            })?;
            told.listeners = Some(accepted.listeners);
        }
        let mut line = format!("put {messages} messages into {}", told.queue);
        if told.created == Some(true) {
            line.push_str(", which was made");
        }
        if let Some(listeners) = told.listeners {
            line.push_str(&format!(", and told {listeners} listeners"));
        }
        target.format.next(&told, line)?;
        Ok(())
    }

    /// Puts each line of the standard input, many at a time; returns how many, and their bytes.
    async fn put_lines(&self, queue: &dyn WorkQueue) -> anyhow::Result<(u64, u64)> {
        let (mut messages, mut bytes) = (0, 0);
        let mut lines = BufReader::new(tokio::io::stdin()).split(b'\n');
        let mut batch = Vec::new();
        loop {
            let line = lines.next_segment().await;
            let line = line.context("the standard input cannot be read")?;
            let ended = line.is_none();
            batch.extend(line);
            if ended || batch.len() == BATCH {
                let (more, size) = self.put(queue, std::mem::take(&mut batch)).await?;
                (messages, bytes) = (messages + more, bytes + size);
            }
            if ended {
                return Ok((messages, bytes));
            }
        }
    }

    async fn put(&self, queue: &dyn WorkQueue, bodies: Vec<Vec<u8>>) -> anyhow::Result<(u64, u64)> {
        let bytes = bodies.iter().map(|body| body.len() as u64).sum();
        let messages = bodies.into_iter().map(|body| {
            let message = NewMessage::new(body).after(self.delay);
            match self.ttl {
                Some(ttl) => message.expiring(ttl),
                None => message,
            }
        });
        let put = queue.put(messages.collect()).await?;
        Ok((put.len() as u64, bytes))
    }
}

impl Get {
    async fn run(self, settings: &Settings) -> anyhow::Result<()> {
        let queue = open(&self.named.url).await?;
        let messages = queue.get(self.max, self.visibility_timeout).await?;
        let rows: Vec<_> = messages.iter().map(Shown::from).collect();
        self.named.format(settings).list(&rows)?;
        if self.delete {
            // Printed first: what is deleted before it was seen would be lost.
            for message in &messages {
                queue.delete(&message.receipt).await?;
            }
        }
        Ok(())
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

impl Told {
    fn of(queue: &dyn WorkQueue) -> Self {
        Self {
            queue: queue.address().to_string(),
            created: None,
            messages: None,
            listeners: None,
        }
    }
}

impl Shown {
    fn new(id: &MessageId, body: &[u8], dequeue_count: u32, inserted_at: SystemTime) -> Self {
        Self {
            id: id.to_string(),
            body: std::str::from_utf8(body).ok().map(str::to_owned),
            bytes: body.len(),
            dequeue_count,
            inserted_at: Some(inserted_at),
        }
    }
}

impl From<&PeekedMessage> for Shown {
    fn from(message: &PeekedMessage) -> Self {
        let (count, at) = (message.dequeue_count, message.inserted_at);
        Self::new(&message.id, &message.body, count, at)
    }
}

impl From<&Message> for Shown {
    fn from(message: &Message) -> Self {
        let (count, at) = (message.dequeue_count, message.inserted_at);
        Self::new(&message.id, &message.body, count, at)
    }
}

impl Row for Shown {
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
            self.id.clone(),
            line,
            self.bytes.to_string(),
            self.dequeue_count.to_string(),
            self.inserted_at.map(output::time).unwrap_or_default(),
        ]
    }
}
