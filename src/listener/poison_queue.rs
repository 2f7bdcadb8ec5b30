//! The poison queue: messages that cannot be handled are put there with their errors, and move back.
//!
//! `poison` decides which messages these are.

use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    handler::HandlerError,
    hooks::Action,
    shared::{Shared, in_time},
};
use crate::{
    base::causes::with_causes,
    error::{Error, ErrorKind, Result},
    queue::{Message, NewMessage, WorkQueue},
    types::Notification,
};

/// An entry of the poison queue, as JSON: a message and its error.
///
/// A message that would be too long with its error, or whose body is no UTF-8, is put unchanged. If the
/// queue refuses that, because it takes text only, [`body_base64`](Self::body_base64) has the body. A
/// message that the poison queue does not take in any form stays in its own queue, and is tried again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoisonedMessage {
    /// The queue that it came from.
    pub queue: String,
    /// Its id there.
    pub id: String,
    /// How often it was got.
    pub dequeue_count: u32,
    /// Seconds since 1970 when it was put there.
    pub inserted_at: u64,
    /// The last error.
    pub error: String,
    /// The body; a byte that is no UTF-8 becomes a `\u{fffd}`.
    pub body: String,
    /// The whole body in base64, if `body` cannot hold it; `body` is empty then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

/// The result of [`redrive`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redriven {
    /// Messages that were moved.
    pub moved: u64,
    /// The bytes of their bodies.
    pub bytes: u64,
    /// Messages that stay in their queue: their body cannot be read, or the other queue does not take
    /// it, such as one that is too long. They become visible again after a minute.
    pub left: u64,
}

/// The maximum length of an error's text with its causes, in bytes. In a poison queue for short
/// messages a quarter of the message limit applies.
const MAX_ERROR: usize = 2048;
/// A slower put into the poison queue has failed: its task has other messages to handle.
const PUT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the notification of the poison queue's listeners.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// A message that is not moved by then becomes visible again.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(60);

/// Puts a message into the poison queue, which is created if it is missing.
pub(super) async fn put(shared: &Shared, message: &Message, error: &HandlerError) -> Result<()> {
    let Some(poison) = &shared.poison else {
        return Ok(());
    };
    let limit = poison.limits().body;
    let mut entry = PoisonedMessage::new(shared, message, error, limit);
    let text = str::from_utf8(&message.body).ok().and_then(|body| {
        body.clone_into(&mut entry.body);
        entry.json(limit)
    });
    let put = async {
        match put_or_create(&**poison, text.unwrap_or_else(|| message.body.clone())).await {
            // A queue of text takes no bytes, and no control characters.
            Err(refusal) if refusal.kind() == ErrorKind::Invalid => {
                entry.body = String::new();
                entry.body_base64 = Some(STANDARD.encode(&message.body));
                let Some(encoded) = entry.json(limit) else {
                    return Err(refusal);
                };
                put_or_create(&**poison, encoded).await
            }
            put => put,
        }
    };
    in_time(PUT_TIMEOUT, "the put", put).await?;
    let (queue, id) = (&shared.queue, &message.id);
    tracing::warn!(%queue, %id, %poison, %error, "a message was moved to the poison queue");
    shared.hook((), |hooks| hooks.on_poisoned(message, error));
    Ok(())
}

async fn put_or_create(poison: &dyn WorkQueue, body: Bytes) -> Result<()> {
    match poison.put(vec![NewMessage::new(body.clone())]).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            poison.create().await?;
            poison.put(vec![NewMessage::new(body)]).await.map(drop)
        }
        put => put.map(drop),
    }
}

/// Notifies the poison queue's listeners.
pub(super) async fn notify(shared: &Shared) {
    let (Some(publisher), Some(poison)) = (&shared.publisher, &shared.poison) else {
        return;
    };
    let notification = Notification {
        messages: 1,
        ..Notification::new(poison.address().clone())
    };
    let notify = publisher.notify(vec![notification]);
    if let Err(error) = in_time(NOTIFY_TIMEOUT, "the notification", notify).await {
        shared.report_error(Action::Poison, None, &error);
    }
}

/// Moves at most `count` messages from one queue into another; `None` moves as many as the queue holds at
/// the start, so that messages that arrive or return during the move do not prolong it. Each message is
/// put before it is deleted: after an interruption a message may be in both queues, and none is lost.
///
/// A [`PoisonedMessage`] becomes the message that could not be handled, under a new id and with a
/// new dequeue count. No listener is notified: the caller does that.
///
/// # Errors
/// [`ErrorKind::Invalid`] where both are the same queue; else the error of a queue. Some
/// messages may have been moved by then.
///
/// # Cancel safety
/// As an interruption.
pub async fn redrive(
    from: &dyn WorkQueue,
    to: &dyn WorkQueue,
    count: Option<u64>,
) -> Result<Redriven> {
    // Not by their addresses: two databases may have a queue of one name.
    if from.to_string() == to.to_string() {
        let rule = format_args!("must be another queue than `{from}`");
        return Err(Error::invalid("to", rule));
    }
    let mut left = match count {
        Some(count) => count,
        None => from.depth().await?,
    };
    let mut done = Redriven::default();
    while left > 0 {
        let batch = usize::try_from(left).unwrap_or(usize::MAX);
        let batch = batch.min(from.limits().batch);
        let messages = from.get(batch, VISIBILITY_TIMEOUT).await?;
        if messages.is_empty() {
            break;
        }
        left = left.saturating_sub(messages.len() as u64);
        for message in messages {
            match move_one(from, to, message).await? {
                Some(bytes) => {
                    done.moved += 1;
                    done.bytes += bytes;
                }
                None => done.left += 1,
            }
        }
    }
    Ok(done)
}

/// Returns the length of the body, or `None` if the message stays.
async fn move_one(
    from: &dyn WorkQueue,
    to: &dyn WorkQueue,
    message: Message,
) -> Result<Option<u64>> {
    let body = original(&message).filter(|body| body.len() <= to.limits().body);
    let Some(body) = body else { return Ok(None) };
    match to.put(vec![NewMessage::new(body.clone())]).await {
        Err(error) if error.kind() == ErrorKind::Invalid => return Ok(None),
        put => put?,
    };
    match from.delete(&message.receipt).await {
        // Already deleted: another process moved it as well, and it will be handled twice.
        Err(error) if error.kind() == ErrorKind::Conflict => {}
        deleted => deleted?,
    }
    Ok(Some(body.len() as u64))
}

impl PoisonedMessage {
    /// Returns the entry without a body, for a poison queue with messages of up to `limit` bytes.
    fn new(shared: &Shared, message: &Message, error: &HandlerError, limit: usize) -> Self {
        let since = message.inserted_at.duration_since(SystemTime::UNIX_EPOCH);
        let mut text = with_causes(&**error);
        text.truncate(text.floor_char_boundary(MAX_ERROR.min(limit / 4)));
        Self {
            queue: shared.queue.address().to_string(),
            id: message.id.as_str().to_owned(),
            dequeue_count: message.dequeue_count,
            inserted_at: since.unwrap_or_default().as_secs(),
            error: text,
            body: String::new(),
            body_base64: None,
        }
    }

    /// Returns the JSON if it is not too long.
    fn json(&self, limit: usize) -> Option<Bytes> {
        let json = serde_json::to_vec(self).ok()?;
        (json.len() <= limit).then(|| json.into())
    }
}

/// Returns the body for the other queue; `None` where it cannot be read.
fn original(message: &Message) -> Option<Bytes> {
    let body = message.payload().ok()?;
    match serde_json::from_slice::<PoisonedMessage>(body) {
        Ok(poisoned) => match poisoned.body_base64 {
            Some(body) => STANDARD.decode(body).ok().map(Bytes::from),
            None => Some(poisoned.body.into()),
        },
        Err(_) => Some(body.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        queue::MemoryQueue,
        testing::{Call, ScriptedQueue},
    };

    fn queue(name: &str) -> MemoryQueue {
        MemoryQueue::new(format!("local/{name}").parse().expect("an address"))
    }

    async fn put(queue: &MemoryQueue, bodies: impl IntoIterator<Item = String>) {
        let messages = bodies.into_iter().map(NewMessage::new).collect();
        queue.put(messages).await.expect("put");
    }

    fn poisoned(body: &str) -> String {
        serde_json::json!({
            "queue": "local/orders", "id": "7", "dequeue_count": 5,
            "inserted_at": 1, "error": "the bank is closed", "body": body,
        })
        .to_string()
    }

    async fn bodies(queue: &MemoryQueue) -> Vec<String> {
        let second = Duration::from_secs(1);
        let mut bodies = Vec::new();
        while let [message, ..] = &queue.get(1, second * 60).await.expect("in memory")[..] {
            assert_eq!(message.dequeue_count, 1);
            bodies.push(String::from_utf8_lossy(&message.body).into_owned());
        }
        bodies
    }

    #[tokio::test]
    async fn poisoned_messages_come_back_as_what_they_were() {
        let (poison, orders) = (queue("orders-poison"), queue("orders"));
        put(&poison, (0..70).map(|number| poisoned(&number.to_string()))).await;
        put(&poison, ["as it was".to_owned()]).await;
        let done = redrive(&poison, &orders, None).await;
        let done = done.expect("in memory");
        assert_eq!((done.moved, done.left), (71, 0));
        assert_eq!(poison.depth().await.expect("in memory"), 0);
        let mut expected: Vec<_> = (0..70).map(|number| number.to_string()).collect();
        expected.push("as it was".to_owned());
        assert_eq!(bodies(&orders).await, expected);
    }

    #[tokio::test]
    async fn no_more_are_moved_than_asked_for() {
        let (poison, orders) = (queue("orders-poison"), queue("orders"));
        put(&poison, (0..5).map(|number| poisoned(&number.to_string()))).await;
        let done = redrive(&poison, &orders, Some(2)).await.expect("moved");
        assert_eq!(done.moved, 2);
        assert_eq!(poison.depth().await.expect("in memory"), 3);
        assert_eq!(bodies(&orders).await, ["0", "1"]);
    }

    #[tokio::test]
    async fn bytes_that_went_to_a_queue_of_text_come_back_whole() {
        let (poison, orders) = (queue("orders-poison"), queue("orders"));
        let mut wrapped: serde_json::Value = serde_json::from_str(&poisoned("")).expect("JSON");
        wrapped["body_base64"] = "/wAN".into();
        put(&poison, [wrapped.to_string()]).await;
        let done = redrive(&poison, &orders, None).await;
        assert_eq!(done.expect("in memory").moved, 1);
        let got = orders.get(1, VISIBILITY_TIMEOUT).await.expect("in memory");
        assert_eq!(&got[0].body[..], [255, 0, 13]);
    }

    #[tokio::test]
    async fn a_failed_put_ends_the_move_and_loses_nothing() {
        let poison = queue("orders-poison");
        let orders = ScriptedQueue::new("local/orders".parse().expect("an address"));
        put(&poison, (0..3).map(|number| poisoned(&number.to_string()))).await;
        let away = Error::new(ErrorKind::Unavailable, "it restarts");
        orders.fail(Call::Put, 1, away);
        let failed = redrive(&poison, &orders, None).await;
        assert_eq!(failed.expect_err("one").kind(), ErrorKind::Unavailable);
        assert_eq!(poison.depth().await.expect("in memory"), 3);
        assert_eq!(orders.depth().await.expect("in memory"), 0);
    }

    #[tokio::test]
    async fn a_body_that_the_queue_does_not_take_stays_and_holds_up_no_other() {
        let poison = queue("orders-poison");
        let orders = ScriptedQueue::new("local/orders".parse().expect("an address"));
        put(&poison, (0..3).map(|number| poisoned(&number.to_string()))).await;
        orders.fail(Call::Put, 1, Error::invalid("body", "must be text"));
        let done = redrive(&poison, &orders, None).await;
        let done = done.expect("moved");
        assert_eq!((done.moved, done.left), (2, 1));
        assert_eq!(poison.depth().await.expect("in memory"), 1);
    }

    #[tokio::test]
    async fn a_queue_is_not_moved_into_itself() {
        let orders = queue("orders");
        put(&orders, ["one".to_owned()]).await;
        let refused = redrive(&orders, &orders, None).await;
        let error = refused.expect_err("the same queue");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("to: must be another"), "{error}");
        assert_eq!(orders.depth().await.expect("in memory"), 1);
    }
}
