//! Messages that cannot be handled, kept apart with what was wrong with them.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    handler::{HandlerError, text_of},
    hooks::Action,
    shared::Shared,
};
use crate::{
    error::{Error, ErrorKind, Result},
    queue::{Message, NewMessage, WorkQueue},
    words::Notification,
};

/// What stands in the poison queue, as JSON: a message and why it could not be handled.
///
/// A message that would be too long with its error, or whose body is no UTF-8, is put as it is. One
/// that is too long for the poison queue by itself is put with the beginning of its body: the rest is
/// lost, and [`body_bytes`](Self::body_bytes) says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoisonedMessage {
    /// The queue that it came from.
    pub queue: String,
    /// Its name there.
    pub id: String,
    /// How often it was got.
    pub dequeue_count: u32,
    /// Seconds since 1970 when it was put there.
    pub inserted_at: u64,
    /// What was wrong at last.
    pub error: String,
    /// What it says; of bytes that are no UTF-8, with a `\u{fffd}` for each that is none.
    pub body: String,
    /// Bytes of the whole body, where `body` is its beginning only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<usize>,
}

/// An error's text, with what caused it; the rest is of no use to anybody. In a poison queue for
/// short messages it has a quarter of the room.
const LONGEST_ERROR: usize = 2048;
/// A put into the poison queue that takes longer has failed: its task has other messages to see to.
const PUT_TIMEOUT: Duration = Duration::from_secs(60);
/// Nobody waits longer for who watches over a poison queue.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// Puts a message into the poison queue, which is made where it is missing.
pub(super) async fn put(shared: &Shared, message: &Message, error: &HandlerError) -> Result<()> {
    let Some(poison) = &shared.poison else {
        return Ok(());
    };
    let (body, cut) = envelope(shared, message, error, poison.limits().body);
    let put = tokio::time::timeout(PUT_TIMEOUT, put_or_create(&**poison, body));
    put.await.unwrap_or_else(|_| {
        let message = format!("`{poison}` gave no answer within {PUT_TIMEOUT:?}");
        Err(Error::new(ErrorKind::Timeout, message))
    })?;
    let (queue, id) = (&shared.queue, &message.id);
    if cut {
        let bytes = message.body.len();
        tracing::error!(
            %queue, message = %id, %poison, bytes,
            "a message was too long for the poison queue: only its beginning is there"
        );
    }
    tracing::warn!(%queue, message = %id, %poison, %error, "a message went to the poison queue");
    shared.hooks.on_poisoned(message, error);
    Ok(())
}

async fn put_or_create(poison: &dyn WorkQueue, body: Bytes) -> Result<()> {
    let put = poison.put(vec![NewMessage::new(body.clone())]).await;
    if put.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
        poison.create().await?;
        return poison.put(vec![NewMessage::new(body)]).await.map(|_| ());
    }
    put.map(|_| ())
}

/// Tells the poison queue's listeners.
pub(super) async fn notify(shared: &Shared) {
    let (Some(publisher), Some(poison)) = (&shared.publisher, &shared.poison) else {
        return;
    };
    let notification = Notification {
        messages: 1,
        ..Notification::new(poison.address().clone())
    };
    let told = tokio::time::timeout(NOTIFY_TIMEOUT, publisher.notify(vec![notification])).await;
    let late = || {
        Err(Error::new(
            ErrorKind::Timeout,
            "the relay gave no answer in time",
        ))
    };
    if let Err(error) = told.unwrap_or_else(|_| late()) {
        shared.complain(Action::Poison, None, error);
    }
}

/// Returns what is put into a poison queue for messages up to `limit` bytes, and whether it is the
/// beginning of the message only.
fn envelope(
    shared: &Shared,
    message: &Message,
    error: &HandlerError,
    limit: usize,
) -> (Bytes, bool) {
    let since = message.inserted_at.duration_since(SystemTime::UNIX_EPOCH);
    let mut text = text_of(error);
    text.truncate(text.floor_char_boundary(LONGEST_ERROR.min(limit / 4)));
    let mut poisoned = PoisonedMessage {
        queue: shared.queue.address().to_string(),
        id: message.id.as_str().to_owned(),
        dequeue_count: message.dequeue_count,
        inserted_at: since.unwrap_or_default().as_secs(),
        error: text,
        body: String::new(),
        body_bytes: None,
    };
    if let Ok(body) = str::from_utf8(&message.body) {
        body.clone_into(&mut poisoned.body);
        if let Some(json) = json(&poisoned, limit) {
            return (json, false);
        }
    }
    if message.body.len() <= limit {
        return (message.body.clone(), false);
    }
    poisoned.body_bytes = Some(message.body.len());
    let beginning = &message.body[..limit.min(message.body.len())];
    let beginning = String::from_utf8_lossy(beginning).into_owned();
    (longest(poisoned, &beginning, limit), true)
}

/// Returns the JSON with as much of the body as there is room for; without a byte of it where even
/// that is too long, which the queue then says.
fn longest(mut poisoned: PoisonedMessage, body: &str, limit: usize) -> Bytes {
    let (mut fits, mut too_long) = (0, body.len() + 1);
    while too_long - fits > 1 {
        let middle = fits.midpoint(too_long);
        body[..body.floor_char_boundary(middle)].clone_into(&mut poisoned.body);
        match json(&poisoned, limit) {
            Some(_) => fits = middle,
            None => too_long = middle,
        }
    }
    body[..body.floor_char_boundary(fits)].clone_into(&mut poisoned.body);
    json(&poisoned, usize::MAX).unwrap_or_default()
}

fn json(poisoned: &PoisonedMessage, limit: usize) -> Option<Bytes> {
    let json = serde_json::to_vec(poisoned).ok()?;
    (json.len() <= limit).then(|| json.into())
}
