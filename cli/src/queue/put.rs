//! `queue put` and `queue move`: store messages, and notify the relay.

use std::time::Duration;

use anyhow::Context as _;
use reveille::{
    Client, Notification, PublisherOptions, QueueAddress, duration,
    listener::{RedriveOptions, redrive},
    queue::{NewMessage, WorkQueue},
};
use serde_json::{Value, json};

use super::{create, open};
use crate::{
    exit::Exit,
    message::Bodies,
    output,
    target::{Target, TargetArgs},
    values,
};

#[derive(Debug, clap::Args)]
pub(super) struct Put {
    /// The queue: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`
    #[arg(value_name = "QUEUE_URL")]
    url: String,
    #[command(flatten)]
    bodies: Bodies,
    /// How long the messages stay hidden
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "0s")]
    delay: Duration,
    /// When the messages expire, handled or not [default: never]
    #[arg(long, value_name = "D", value_parser = values::pause)]
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

#[derive(Debug, clap::Args)]
pub(super) struct Move {
    /// The source queue
    #[arg(value_name = "FROM_URL")]
    from: String,
    /// The destination queue
    #[arg(value_name = "TO_URL")]
    to: String,
    /// Maximum number of messages [default: all]
    #[arg(long, value_name = "N", value_parser = values::positive::<u64>)]
    count: Option<u64>,
    /// Move poison messages with the error that a listener added, instead of the original messages
    #[arg(long)]
    as_is: bool,
    /// Notify the relay, so that listeners wake
    #[arg(long)]
    notify: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// Messages that a queue has stored.
#[derive(Debug, Clone, Copy, Default)]
struct Stored {
    messages: u64,
    bytes: u64,
    delay: Duration,
}

/// Maximum number of messages of one call to the queue.
const BATCH: usize = 1000;

impl Put {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        // A bad relay URL fails here, before any message is put.
        let client = self.notify.then(|| target.client()).transpose()?;
        let (queue, created) = if self.create {
            let (queue, created) = create(&self.url).await?;
            (queue, Some(created))
        } else {
            (open(&self.url).await?, None)
        };
        let mut stored = Stored {
            delay: self.delay,
            ..Stored::default()
        };
        let put = async |bodies: Vec<Vec<u8>>| {
            let messages = bodies.len() as u64;
            let bytes = bodies.iter().map(|body| body.len() as u64).sum::<u64>();
            self.put(&*queue, bodies).await.with_context(|| {
                let messages = output::count(stored.messages, "message");
                format!("{messages} of the input are stored")
            })?;
            stored.messages += messages;
            stored.bytes += bytes;
            Ok(())
        };
        self.bodies.each(BATCH, put).await?;
        let address = queue.address();
        let row = json!({
            "queue": address.to_string(),
            "created": created,
            "messages": stored.messages,
        });
        let messages = output::count(stored.messages, "message");
        let made = match created {
            Some(true) => ", which was created",
            _ => "",
        };
        let line = format!("put {messages} into {address}{made}");
        stored.finish(address, client, &target, row, line).await
    }

    async fn put(&self, queue: &dyn WorkQueue, bodies: Vec<Vec<u8>>) -> reveille::Result<()> {
        let messages = bodies.into_iter().map(|body| {
            let message = NewMessage::new(body).after(self.delay);
            match self.ttl {
                Some(ttl) => message.expiring(ttl),
                None => message,
            }
        });
        queue.put(messages.collect()).await.map(drop)
    }
}

impl Move {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        // A bad relay URL fails here, before any message is moved.
        let client = self.notify.then(|| target.client()).transpose()?;
        let (from, to) = (open(&self.from).await?, open(&self.to).await?);
        let options = RedriveOptions {
            count: self.count,
            as_is: self.as_is,
        };
        let done = redrive(&*from, &*to, &options).await?;
        let stored = Stored {
            messages: done.moved,
            bytes: done.bytes,
            ..Stored::default()
        };
        let row = json!({
            "from": from.to_string(),
            "to": to.to_string(),
            "moved": done.moved,
            "left": done.left,
        });
        let messages = output::count(done.moved, "message");
        let mut line = format!("moved {messages} from {from} to {to}");
        if done.left > 0 {
            let left = output::count(done.left, "message");
            line.push_str(&format!(
                " (left {left} in {from}: unreadable, or too long for {to})"
            ));
        }
        stored
            .finish(to.address(), client, &target, row, line)
            .await
    }
}

impl Stored {
    /// Notifies the relay, if there is a client and at least one message, and prints the result. If the
    /// relay does not acknowledge, prints what to do.
    async fn finish(
        self,
        queue: &QueueAddress,
        client: Option<Client>,
        target: &Target,
        mut row: Value,
        mut line: String,
    ) -> anyhow::Result<Exit> {
        let mut exit = Exit::OK;
        (row["notified"], row["listeners"]) = (Value::Null, Value::Null);
        if let Some(client) = client.filter(|_| self.messages > 0) {
            let publisher = client.publisher_with(PublisherOptions {
                name: "reveille-cli".to_owned(),
                deadline: target.timeout.unwrap_or(Duration::MAX),
                ..PublisherOptions::default()
            });
            let notifying = publisher.notify(Notification {
                payload_size: self.bytes,
                messages: self.messages,
                delay: self.delay,
                ..Notification::new(queue.clone())
            });
            let accepted = target
                .acknowledged(&client, notifying, || publisher.failure())
                .await;
            row["notified"] = accepted.is_ok().into();
            match accepted.map(|accepted| accepted.listeners) {
                Ok(listeners) => {
                    row["listeners"] = listeners.into();
                    line.push_str(&told(listeners));
                }
                Err(error) => {
                    let (messages, relay) = (self.messages, &target.relay);
                    output::note(format_args!(
                        "error: the messages are stored, but the relay did not acknowledge the \
                         notification: {error}; do not put them again, but run `reveille notify {queue} \
                         --messages {messages} --relay {relay}`"
                    ));
                    exit = Exit::NOT_NOTIFIED;
                }
            }
        }
        target.format.next(&row, line)?;
        Ok(exit)
    }
}

/// Returns the result of a notification, as the rest of a sentence.
fn told(listeners: u32) -> String {
    match listeners {
        0 => "; the relay knows, and no listener is connected yet".to_owned(),
        some => format!(", and notified {}", output::count(some.into(), "listener")),
    }
}
