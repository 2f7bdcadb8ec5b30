//! Messages that cannot be handled: they are moved to a poison queue with their errors.

use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{handler::HandlerError, hooks::Action, shared::Shared};
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
/// message that is too long for the poison queue even then is put with the beginning of its body: the
/// rest is lost, and [`body_bytes`](Self::body_bytes) is set.
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
    /// The length of the whole body in bytes, if `body` is only its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<usize>,
    /// The whole body in base64, if `body` cannot hold it; `body` is empty then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

/// The maximum length of an error's text with its causes, in bytes. In a poison queue for short
/// messages a quarter of the message limit applies.
const MAX_ERROR: usize = 2048;
/// A slower put into the poison queue has failed: its task has other messages to handle.
const PUT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the notification of the poison queue's listeners.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// Puts a message into the poison queue, which is created if it is missing.
pub(super) async fn put(shared: &Shared, message: &Message, error: &HandlerError) -> Result<()> {
    let Some(poison) = &shared.poison else {
        return Ok(());
    };
    let limit = poison.limits().body;
    let (body, mut cut) = envelope(shared, message, error, limit);
    let put = async {
        match put_or_create(&**poison, body).await {
            // As it is: a queue of text takes no bytes, and no control characters.
            Err(refusal) if refusal.kind() == ErrorKind::Invalid && !cut => {
                let mut poisoned = poisoned(shared, message, error, limit);
                poisoned.body_base64 = Some(STANDARD.encode(&message.body));
                let body = json(&poisoned, limit).unwrap_or_else(|| {
                    cut = true;
                    poisoned.body_base64 = None;
                    beginning(poisoned, message, limit)
                });
                put_or_create(&**poison, body).await
            }
            put => put,
        }
    };
    let put = tokio::time::timeout(PUT_TIMEOUT, put).await;
    put.unwrap_or_else(|_| {
        let message = format!("`{poison}` did not answer within {PUT_TIMEOUT:?}");
        Err(Error::new(ErrorKind::Timeout, message))
    })?;
    let (queue, id) = (&shared.queue, &message.id);
    if cut {
        let bytes = message.body.len();
        tracing::error!(
            %queue, %id, %poison, bytes,
            "a message did not fit into the poison queue: only the beginning of its text was put"
        );
    }
    tracing::warn!(%queue, %id, %poison, %error, "a message was moved to the poison queue");
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

/// Notifies the poison queue's listeners.
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
            "the relay did not answer in time",
        ))
    };
    if let Err(error) = told.unwrap_or_else(|_| late()) {
        shared.report_error(Action::Poison, None, error);
    }
}

/// Returns the body for a poison queue with messages of up to `limit` bytes, and whether it holds
/// only the beginning of the message.
fn envelope(
    shared: &Shared,
    message: &Message,
    error: &HandlerError,
    limit: usize,
) -> (Bytes, bool) {
    let mut poisoned = poisoned(shared, message, error, limit);
    if let Ok(body) = str::from_utf8(&message.body) {
        body.clone_into(&mut poisoned.body);
        if let Some(json) = json(&poisoned, limit) {
            return (json, false);
        }
    }
    if message.body.len() <= limit {
        return (message.body.clone(), false);
    }
    (beginning(poisoned, message, limit), true)
}

/// Returns the entry without a body.
fn poisoned(
    shared: &Shared,
    message: &Message,
    error: &HandlerError,
    limit: usize,
) -> PoisonedMessage {
    let since = message.inserted_at.duration_since(SystemTime::UNIX_EPOCH);
    let mut text = with_causes(&**error);
    text.truncate(text.floor_char_boundary(MAX_ERROR.min(limit / 4)));
    PoisonedMessage {
        queue: shared.queue.address().to_string(),
        id: message.id.as_str().to_owned(),
        dequeue_count: message.dequeue_count,
        inserted_at: since.unwrap_or_default().as_secs(),
        error: text,
        body: String::new(),
        body_bytes: None,
        body_base64: None,
    }
}

/// Returns the entry with the beginning of the body.
fn beginning(mut poisoned: PoisonedMessage, message: &Message, limit: usize) -> Bytes {
    poisoned.body_bytes = Some(message.body.len());
    let beginning = &message.body[..limit.min(message.body.len())];
    let beginning = String::from_utf8_lossy(beginning).into_owned();
    longest(poisoned, &beginning, limit)
}

/// Returns the JSON with the longest beginning of the body that fits. If even an empty body does
/// not fit, the queue refuses the message.
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
