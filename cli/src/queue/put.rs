//! `queue put` and `queue move`: store messages, and notify the relay.

use std::time::Duration;

use anyhow::Context as _;
use reveille::{
    Client, Notification, PublisherOptions, QueueAddress, duration,
    listener::{RedriveOptions, redrive},
    queue::{NewMessage, WorkQueue},
};
use serde_json::json;

use super::{create, open};
use crate::{
    exit::Exit,
    message::{Bodies, Lines},
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

/// Number and size of messages that a queue has stored.
#[derive(Debug, Clone, Copy, Default)]
struct Stored {
    messages: u64,
    bytes: u64,
}

/// The outcome of --notify.
struct Notified {
    /// `None` where there was no notification.
    acknowledged: Option<bool>,
    listeners: Option<u32>,
    exit: Exit,
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
        let stored = match self.bodies.whole().await? {
            Some(bodies) => self.put(&*queue, bodies).await?,
            None => self.put_lines(&*queue).await?,
        };
        let notified = stored
            .notify(queue.address(), self.delay, client, &target)
            .await;
        let row = json!({
            "queue": queue.address().to_string(),
            "created": created,
            "messages": stored.messages,
            "notified": notified.acknowledged,
            "listeners": notified.listeners,
        });
        let line = format!(
            "put {} into {}{}{}",
            output::count(stored.messages, "message"),
            queue.address(),
            match created {
                Some(true) => ", which was created",
                _ => "",
            },
            notified.rest_of_line(),
        );
        target.format.next(&row, line)?;
        Ok(notified.exit)
    }

    /// Puts each line of the standard input as a message, in batches.
    async fn put_lines(&self, queue: &dyn WorkQueue) -> anyhow::Result<Stored> {
        let mut sum = Stored::default();
        let mut lines = Lines::of_stdin();
        let mut batch = Vec::new();
        loop {
            let line = lines.next().await?;
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
        };
        let notified = stored
            .notify(to.address(), Duration::ZERO, client, &target)
            .await;
        let row = json!({
            "from": from.to_string(),
            "to": to.to_string(),
            "moved": done.moved,
            "left": done.left,
            "notified": notified.acknowledged,
            "listeners": notified.listeners,
        });
        let messages = output::count(done.moved, "message");
        let mut line = format!(
            "moved {messages} from {from} to {to}{}",
            notified.rest_of_line()
        );
        if done.left > 0 {
            let left = output::count(done.left, "message");
            line.push_str(&format!(
                "\nleft {left} in {from}: unreadable, or too long for {to}"
            ));
        }
        target.format.next(&row, line)?;
        Ok(notified.exit)
    }
}

impl Stored {
    /// Notifies the relay, if there is a client and at least one message. If the relay does not
    /// acknowledge, prints what to do.
    async fn notify(
        self,
        queue: &QueueAddress,
        delay: Duration,
        client: Option<Client>,
        target: &Target,
    ) -> Notified {
        let Some(client) = client.filter(|_| self.messages > 0) else {
            return Notified {
                acknowledged: None,
                listeners: None,
                exit: Exit::OK,
            };
        };
        let publisher = client.publisher_with(PublisherOptions {
            name: "reveille-cli".to_owned(),
            deadline: target.timeout.unwrap_or(Duration::MAX),
            ..PublisherOptions::default()
        });
        let notifying = publisher.notify(Notification {
            payload_size: self.bytes,
            messages: self.messages,
            delay,
            ..Notification::new(queue.clone())
        });
        let accepted = target
            .acknowledged(&client, notifying, || publisher.failure())
            .await;
        if let Err(error) = &accepted {
            let (messages, relay) = (self.messages, &target.relay);
            output::note(format_args!(
                "error: the messages are stored, but the relay did not acknowledge the notification: \
                 {error}; do not put them again, but run `reveille notify {queue} --messages {messages} \
                 --relay {relay}`"
            ));
        }
        Notified {
            acknowledged: Some(accepted.is_ok()),
            exit: match accepted {
                Ok(_) => Exit::OK,
                Err(_) => Exit::NOT_NOTIFIED,
            },
            listeners: accepted.ok().map(|accepted| accepted.listeners),
        }
    }
}

impl Notified {
    /// Returns the result for people, as the rest of a sentence.
    fn rest_of_line(&self) -> String {
        match self.listeners {
            None => String::new(),
            Some(0) => "; the relay knows, and no listener is connected yet".to_owned(),
            Some(listeners) => {
                let listeners = output::count(u64::from(listeners), "listener");
                format!(", and notified {listeners}")
            }
        }
    }
}
