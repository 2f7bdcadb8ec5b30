//! `queue put`: puts messages from the command line, a file or the standard input.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use reveille::{
    duration,
    queue::{NewMessage, WorkQueue},
};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt as _, BufReader};

use super::{
    create,
    notification::{StoredMessages, notified},
    open,
};
use crate::{
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
    /// The messages; without any, each line of the standard input is a message
    #[arg(value_name = "BODY")]
    bodies: Vec<String>,
    /// Put the bytes of this file as one message
    #[arg(long, value_name = "FILE", conflicts_with = "bodies")]
    body_file: Option<PathBuf>,
    /// Put the bytes of the standard input as one message
    #[arg(long, conflicts_with_all = ["bodies", "body_file"])]
    stdin: bool,
    /// How long the messages stay hidden
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "0s")]
    delay: Duration,
    /// When the messages expire, handled or not [default: never]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Create the queue first if it is missing
    #[arg(long)]
    create: bool,
    /// Notify the relay, so that listeners wake
    #[arg(long)]
    notify: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// Maximum number of messages of one call to the queue.
const BATCH: usize = 1000;

/// The result of a put as a row.
#[derive(Debug, Serialize)]
struct PutRow {
    queue: String,
    /// Whether this command created the queue; `null` without --create.
    created: Option<bool>,
    messages: u64,
    /// Whether the relay has acknowledged the notification; `null` without one.
    notified: Option<bool>,
    listeners: Option<u32>,
}

impl Put {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve(settings);
        // A bad relay URL fails here, before any message is put.
        let client = self.notify.then(|| target.client()).transpose()?;
        let (queue, created) = match self.create {
            true => create(&self.url)
                .await
                .map(|(queue, made)| (queue, Some(made)))?,
            false => (open(&self.url).await?, None),
        };
        let stored = self.put_all(&*queue).await?;
        let mut row = PutRow {
            queue: queue.address().to_string(),
            created,
            messages: stored.messages,
            notified: None,
            listeners: None,
        };
        let mut failure = None;
        if let Some(client) = client.filter(|_| stored.messages > 0) {
            let notified = stored
                .notify(queue.address(), self.delay, &client, &target)
                .await;
            row.notified = Some(notified.is_ok());
            match notified {
                Ok(listeners) => row.listeners = Some(listeners),
                Err(error) => failure = Some(error),
            }
        }
        target.format.next(&row, row.line())?;
        let advice = "do not put them again";
        let not_notified = |error| stored.not_notified(queue.address(), &target, &error, advice);
        Ok(failure.map_or(Exit::OK, not_notified))
    }

    async fn put_all(&self, queue: &dyn WorkQueue) -> anyhow::Result<StoredMessages> {
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

    /// Puts each line of the standard input as a message, in batches.
    async fn put_lines(&self, queue: &dyn WorkQueue) -> anyhow::Result<StoredMessages> {
        let mut sum = StoredMessages::default();
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
                    format!("{messages} of the input are stored")
                })?;
                sum.messages += more.messages;
                sum.bytes += more.bytes;
            }
            if ended {
                return Ok(sum);
            }
        }
    }

    async fn put(
        &self,
        queue: &dyn WorkQueue,
        bodies: Vec<Vec<u8>>,
    ) -> anyhow::Result<StoredMessages> {
        let bytes = bodies.iter().map(|body| body.len() as u64).sum();
        let messages = bodies.into_iter().map(|body| {
            let message = NewMessage::new(body).after(self.delay);
            match self.ttl {
                Some(ttl) => message.expiring(ttl),
                None => message,
            }
        });
        let put = queue.put(messages.collect()).await?;
        Ok(StoredMessages {
            messages: put.len() as u64,
            bytes,
        })
    }
}

impl PutRow {
    /// Returns the result as a line for people.
    fn line(&self) -> String {
        let messages = output::count(self.messages, "message");
        let mut line = format!("put {messages} into {}", self.queue);
        if self.created == Some(true) {
            line.push_str(", which was created");
        }
        line.push_str(&notified(self.listeners));
        line
    }
}
