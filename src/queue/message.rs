//! Messages, their ids and receipts.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;

use crate::{
    base::text::{opaque_debug, shown_as_text},
    error::{Error, Result},
};

/// A message to put.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewMessage {
    /// The payload.
    pub body: Bytes,
    /// The message is invisible for this long after the put.
    pub delay: Duration,
}

/// A message returned by a get.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Message {
    /// The id, the same in each get.
    pub id: MessageId,
    /// The payload.
    pub body: Bytes,
    /// Deletes, renews or releases the message.
    pub receipt: Receipt,
    /// The number of gets so far, including this one: 1 or more.
    pub dequeue_count: u32,
    /// The time of the put, by the queue's clock.
    pub inserted_at: SystemTime,
    /// Why `body` is not the body that was put, if that cannot be restored. An error that [is
    /// retryable](crate::ErrorKind::is_retryable) may be gone at the next get. Any other one is permanent.
    pub fault: Option<Error>,
}

/// A message returned by a peek.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeekedMessage {
    /// The id.
    pub id: MessageId,
    /// The payload.
    pub body: Bytes,
    /// The number of gets so far.
    pub dequeue_count: u32,
    /// The time of the put, by the queue's clock.
    pub inserted_at: SystemTime,
    /// As [`Message::fault`].
    pub fault: Option<Error>,
}

/// A message's id within its queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(Arc<str>);

/// The right to delete, renew or release a message. Opaque, and valid only for the queue that
/// returned it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Receipt {
    id: MessageId,
    token: Arc<str>,
}

impl NewMessage {
    /// Creates a message that is visible at once and kept until it is deleted.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            ..Self::default()
        }
    }

    /// Sets [`NewMessage::delay`].
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

impl Message {
    /// Creates the result of the `dequeue_count`th get of a message; its id is the receipt's. For
    /// back-ends.
    pub fn new(
        receipt: Receipt,
        body: impl Into<Bytes>,
        dequeue_count: u32,
        inserted_at: SystemTime,
    ) -> Self {
        Self {
            id: receipt.id.clone(),
            body: body.into(),
            receipt,
            dequeue_count,
            inserted_at,
            fault: None,
        }
    }

    /// Returns `body`, or the message's [`fault`](Self::fault).
    ///
    /// # Errors
    /// The fault. A handler should release a message with a temporary fault, at any dequeue count,
    /// and treat a permanent fault like any message that it cannot handle.
    pub fn payload(&self) -> Result<&Bytes> {
        match &self.fault {
            None => Ok(&self.body),
            Some(fault) => Err(fault.clone()),
        }
    }
}

impl PeekedMessage {
    /// Creates the result of a peek of a message that was got `dequeue_count` times before. For
    /// back-ends.
    pub fn new(
        id: MessageId,
        body: impl Into<Bytes>,
        dequeue_count: u32,
        inserted_at: SystemTime,
    ) -> Self {
        Self {
            id,
            body: body.into(),
            dequeue_count,
            inserted_at,
            fault: None,
        }
    }
}

impl MessageId {
    /// Creates an id from the back-end's id of a message.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns it as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Receipt {
    /// Creates a receipt. The token identifies this delivery among all deliveries of the message.
    /// For back-ends.
    pub fn new(id: MessageId, token: &str) -> Self {
        Self {
            id,
            token: token.into(),
        }
    }

    /// Returns the id of its message.
    pub fn message_id(&self) -> &MessageId {
        &self.id
    }

    /// Returns the back-end's token of the delivery. Do not log it: it allows to delete the message.
    pub fn token(&self) -> &str {
        &self.token
    }
}

shown_as_text!(0: MessageId);

// The token allows to delete the message, so it must not appear in logs.
opaque_debug!(Receipt: id);
