//! `queue put`: messages from the command line, a file or the standard input.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use reveille::{
    duration,
    queue::{NewMessage, WorkQueue},
};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt as _, BufReader};

use super::{notification::Stored, open, open_existing};
use crate::cli::{
    exit::{Exit, Usage},
    output,
    settings::Settings,
    target::TargetArgs,
};

#[derive(Debug, clap::Args)]
pub(super) struct Put {
    /// The queue: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`
    #[arg(value_name = "QUEUE_URL")]
    url: String,
    /// A message each; without any, each line of the standard input is one
    #[arg(value_name = "BODY")]
    bodies: Vec<String>,
    /// One message of all bytes of this file
    #[arg(long, value_name = "FILE", conflicts_with = "bodies")]
    body_file: Option<PathBuf>,
    /// One message of all bytes of the standard input
    #[arg(long, conflicts_with_all = ["bodies", "body_file"])]
    stdin: bool,
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

/// Messages of one call to the queue.
const BATCH: usize = 1000;

/// What was put.
#[derive(Debug, Serialize)]
struct Done {
    queue: String,
    /// Whether the queue was made for it; `null` without --create.
    created: Option<bool>,
    messages: u64,
    /// Whether the relay has acknowledged the notification; `null` where it was not to be told.
    notified: Option<bool>,
    listeners: Option<u32>,
}

impl Put {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve(settings);
        // What is wrong with the relay's URL is said before anything is put.
        let client = self.notify.then(|| target.client()).transpose()?;
        let queue = match self.create {
            true => open(&self.url).await?,
            false => open_existing(&self.url).await?,
        };
        let created = match self.create {
            true => Some(queue.create().await?),
            false => None,
        };
        let sum = self.put_all(&*queue).await?;
        let mut told = Done {
            queue: queue.address().to_string(),
            created,
            messages: sum.messages,
            notified: None,
            listeners: None,
        };
        let mut failure = None;
        if let Some(client) = client.filter(|_| sum.messages > 0) {
            let notified = sum
                .notify(queue.address(), self.delay, &client, &target)
                .await;
            told.notified = Some(notified.is_ok());
            match notified {
                Ok(listeners) => told.listeners = Some(listeners),
                Err(error) => failure = Some(error),
            }
        }
        target.format.next(&told, line(&told))?;
        let again = "do not put them again";
        let not_told = |error| sum.not_told(queue.address(), &target, &error, again);
        Ok(failure.map_or(Exit::OK, not_told))
    }

    async fn put_all(&self, queue: &dyn WorkQueue) -> anyhow::Result<Stored> {
        if let Some(path) = &self.body_file {
            let body = tokio::fs::read(path).await.map_err(|error| {
                Usage(format!(
                    "--body-file: `{}` cannot be read: {error}",
                    path.display()
                ))
            })?;
            return self.put(queue, vec![body]).await;
        }
        if self.stdin {
            let mut body = Vec::new();
            let read = tokio::io::stdin().read_to_end(&mut body).await;
            read.context("the standard input cannot be read")?;
            return self.put(queue, vec![body]).await;
        }
        if self.bodies.is_empty() {
            return self.put_lines(queue).await;
        }
        let bodies = self.bodies.iter().map(|body| body.clone().into_bytes());
        self.put(queue, bodies.collect()).await
    }

    /// Puts each line of the standard input, many at a time.
    async fn put_lines(&self, queue: &dyn WorkQueue) -> anyhow::Result<Stored> {
        let mut sum = Stored::default();
        let mut lines = BufReader::new(tokio::io::stdin()).split(b'\n');
        let mut batch = Vec::new();
        loop {
            let line = lines.next_segment().await;
            let line = line.context("the standard input cannot be read")?;
            let ended = line.is_none();
            batch.extend(line);
            if ended || batch.len() == BATCH {
                let put = self.put(queue, std::mem::take(&mut batch)).await;
                let more = put.with_context(|| {
                    let messages = output::count(sum.messages, "message");
                    format!("{messages} of the input were put before")
                })?;
                sum.messages += more.messages;
                sum.bytes += more.bytes;
            }
            if ended {
                return Ok(sum);
            }
        }
    }

    async fn put(&self, queue: &dyn WorkQueue, bodies: Vec<Vec<u8>>) -> anyhow::Result<Stored> {
        let bytes = bodies.iter().map(|body| body.len() as u64).sum();
        let messages = bodies.into_iter().map(|body| {
            let message = NewMessage::new(body).after(self.delay);
            match self.ttl {
                Some(ttl) => message.expiring(ttl),
                None => message,
            }
        });
        let put = queue.put(messages.collect()).await?;
        Ok(Stored {
            messages: put.len() as u64,
            bytes,
        })
    }
}

/// Returns what was done, for people.
fn line(told: &Done) -> String {
    let messages = output::count(told.messages, "message");
    let mut line = format!("put {messages} into {}", told.queue);
    if told.created == Some(true) {
        line.push_str(", which was made");
    }
    if let Some(listeners) = told.listeners {
        let listeners = output::count(u64::from(listeners), "listener");
        line.push_str(&format!(", and told {listeners}"));
    }
    line
}
