//! Messages that cannot be handled, kept apart with what was wrong with them.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{handler::HandlerError, hooks::Action, shared::Shared};
use crate::{
    error::{Error, ErrorKind, Result},
    queue::{Message, NewMessage, WorkQueue},
    words::Notification,
};

/// What stands in the poison queue, as JSON: a message and why it could not be handled.
///
/// A message that would be too long with its error, or whose body is no UTF-8, is put as it is.
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
    /// What it says.
    pub body: String,
}

/// An error's text, with what caused it; the rest is of no use to anybody.
const LONGEST_ERROR: usize = 2048;
/// Nobody waits longer for who watches over a poison queue.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// Puts a message into the poison queue, which is made where it is missing.
pub(super) async fn put(shared: &Shared, message: &Message, error: &HandlerError) -> Result<()> {
    let Some(poison) = &shared.poison else {
        return Ok(());
    };
    let body = envelope(shared, message, error, poison.limits().body);
    let mut put = poison.put(vec![NewMessage::new(body.clone())]).await;
    if put.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
        poison.create().await?;
        put = poison.put(vec![NewMessage::new(body)]).await;
    }
    put?;
    tracing::warn!(
        queue = %shared.queue, message = %message.id, %poison, %error,
        "a message went to the poison queue"
    );
    shared.hooks.on_poisoned(message, error);
    Ok(())
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

fn envelope(shared: &Shared, message: &Message, error: &HandlerError, limit: usize) -> Bytes {
    let Ok(body) = str::from_utf8(&message.body) else {
        return message.body.clone();
    };
    let since = message.inserted_at.duration_since(SystemTime::UNIX_EPOCH);
    let mut text = error.to_string();
    text.truncate(text.floor_char_boundary(LONGEST_ERROR));
    let poisoned = PoisonedMessage {
        queue: shared.queue.address().to_string(),
        id: message.id.as_str().to_owned(),
        dequeue_count: message.dequeue_count,
        inserted_at: since.unwrap_or_default().as_secs(),
        error: text,
        body: body.to_owned(),
    };
    match serde_json::to_vec(&poisoned) {
        Ok(json) if json.len() <= limit => json.into(),
        _ => message.body.clone(),
    }
}
