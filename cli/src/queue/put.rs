//! `queue put` and `queue move`: store messages, and notify the relay.

use std::time::Duration;

use anyhow::Context as _;
use reveille::{
    Accepted, Notification, Publisher, QueueAddress, duration, listener::redrive, queue::NewMessage,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{open, open_or_create};
use crate::{
    exit::Exit,
    message::Bodies,
    output,
    target::{PUBLISHER, Target, TargetArgs},
    values,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Put {
    /// The queue: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`
    #[arg(value_name = "QUEUE_URL")]
    url: String,
    #[command(flatten)]
    bodies: Bodies,
    /// How long the messages stay hidden
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "0s")]
    delay: Duration,
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
pub(crate) struct Move {
    /// The source queue
    #[arg(value_name = "FROM_URL")]
    from: String,
    /// The destination queue
    #[arg(value_name = "TO_URL")]
    to: String,
    /// Maximum number of messages [default: all]
    #[arg(long, value_name = "N", value_parser = values::positive::<u64>)]
    count: Option<u64>,
    /// Notify the relay, so that listeners wake
    #[arg(long)]
    notify: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// Messages that a queue has stored, and of which the relay is notified at once: the input may be slow, or
/// end with an error.
struct Stored<'a> {
    target: &'a Target,
    delay: Duration,
    /// `None`: the relay is not notified.
    publisher: Option<Publisher>,
    /// The notifications so far.
    notifying: JoinSet<reveille::Result<Accepted>>,
    messages: u64,
}

/// Maximum number of messages of one call to the queue.
const BATCH: usize = 1000;

impl Put {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        // A bad relay URL fails here, before any message is put.
        let mut stored = Stored::new(&target, self.notify, self.delay)?;
        let (queue, created) = open_or_create(&self.url, self.create).await?;
        let address = queue.address();
        let put = async |bodies: Vec<Vec<u8>>| {
            let messages = bodies.len() as u64;
            let bytes = bodies.iter().map(|body| body.len() as u64).sum::<u64>();
            let bodies = bodies.into_iter();
            let bodies = bodies.map(|body| NewMessage::new(body).after(self.delay));
            let done = queue.put(bodies.collect()).await;
            match &done {
                Ok(_) => stored.add(address, messages, bytes),
                Err(error) if error.kind().is_refusal() => {}
                // Some of them may be stored.
                Err(_) => stored.notify(address, 1, 0),
            }
            done.map(drop).with_context(|| {
                let messages = output::count(stored.messages, "message");
                format!("{messages} of the input are stored")
            })
        };
        if let Err(error) = self.bodies.each(BATCH, put).await {
            stored.acknowledged(address).await;
            return Err(error);
        }
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
        stored.finish(address, row, line).await
    }
}

impl Move {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        // A bad relay URL fails here, before any message is moved.
        let mut stored = Stored::new(&target, self.notify, Duration::ZERO)?;
        let (from, to) = (open(&self.from).await?, open(&self.to).await?);
        let done = redrive(&*from, &*to, self.count).await?;
        if done.moved > 0 {
            stored.add(to.address(), done.moved, done.bytes);
        }
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
        stored.finish(to.address(), row, line).await
    }
}

impl<'a> Stored<'a> {
    fn new(target: &'a Target, notifies: bool, delay: Duration) -> reveille::Result<Self> {
        let publisher = notifies.then(|| target.publisher(PUBLISHER)).transpose()?;
        Ok(Self {
            target,
            delay,
            publisher,
            notifying: JoinSet::new(),
            messages: 0,
        })
    }

    fn add(&mut self, queue: &QueueAddress, messages: u64, bytes: u64) {
        self.messages += messages;
        self.notify(queue, messages, bytes);
    }

    /// Notifies the relay, if it is to be, without a wait for the acknowledgement.
    fn notify(&mut self, queue: &QueueAddress, messages: u64, bytes: u64) {
        let Some(publisher) = self.publisher.clone() else {
            return;
        };
        let notification = Notification {
            payload_size: bytes,
            messages,
            delay: self.delay,
            ..Notification::new(queue.clone())
        };
        let notify = async move { publisher.notify(notification).await };
        self.notifying.spawn(notify);
    }

    /// Waits for the acknowledgement of all notifications; returns the number of listeners. `None` if the
    /// relay was not notified. If it does not acknowledge, prints what to do.
    async fn acknowledged(&mut self, queue: &QueueAddress) -> Option<Result<u32, ()>> {
        let notifying = std::mem::take(&mut self.notifying);
        let publisher = self.publisher.as_ref().filter(|_| !notifying.is_empty())?;
        let all = async {
            let accepted: reveille::Result<Vec<_>> =
                notifying.join_all().await.into_iter().collect();
            let newest = accepted?.into_iter().max_by_key(|one| one.sequence);
            Ok(newest.unwrap_or_default())
        };
        let accepted = self.target.acknowledged(publisher, all).await;
        Some(accepted.map(|one| one.listeners).map_err(|error| {
            let (messages, relay) = (self.messages, &self.target.relay);
            if messages == 0 {
                let rule = "messages may be stored, and the relay did not acknowledge the notification";
                let again = format_args!("`reveille notify {queue} --relay {relay}`");
                return output::note(format_args!("error: {rule}: {error}; run {again}"));
            }
            output::note(format_args!(
                "error: the messages are stored, but the relay did not acknowledge the notification: \
                 {error}; do not put them again, but run `reveille notify {queue} --messages {messages} \
                 --relay {relay}`"
            ));
        }))
    }

    /// Prints the result, with that of the notifications.
    async fn finish(
        mut self,
        queue: &QueueAddress,
        mut row: Value,
        mut line: String,
    ) -> anyhow::Result<Exit> {
        let acknowledged = self.acknowledged(queue).await;
        row["notified"] = json!(acknowledged.map(|one| one.is_ok()));
        row["listeners"] = json!(acknowledged.and_then(Result::ok));
        if let Some(Ok(listeners)) = acknowledged {
            line.push_str(&told(listeners));
        }
        self.target.format.next(&row, line)?;
        Ok(match acknowledged {
            Some(Err(())) => Exit::NOT_NOTIFIED,
            _ => Exit::OK,
        })
    }
}

/// Returns the result of a notification, as the rest of a sentence.
fn told(listeners: u32) -> String {
    match listeners {
        0 => "; the relay knows, and no listener is connected yet".to_owned(),
        some => format!(", and notified {}", output::count(some.into(), "listener")),
    }
}
