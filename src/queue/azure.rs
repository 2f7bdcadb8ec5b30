//! Queues of Azure Queue Storage, with the official client.
//!
//! The service works in whole seconds: every time-out and delay is rounded up. It
//! takes one message per request, so a put of many messages sends many requests, some of them
//! concurrently. A request is sent once. For temporary failures wrap the queue in
//! [`Retrying`](super::Retrying), as [`open`](super::open) does; it repeats only the failed messages.
//! Opening a queue sends no request; the first call shows whether the credential is valid.

mod encoding;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use azure_core::time::OffsetDateTime;
use azure_storage_queue::{
    QueueClient, QueueClientOptions,
    models::{
        QueueClientGetPropertiesResultHeaders as _, QueueClientPeekMessagesOptions,
        QueueClientReceiveMessagesOptions, QueueClientSendMessageOptions, ReceivedMessage,
    },
};
use bytes::Bytes;

pub use self::encoding::MessageEncoding;
use super::{
    Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue,
    invalid_receipt, limits::WEEK, local_group, missing_queue, outcome, queue_group,
};
use crate::{
    backend::azure::{StorageAccount, check_name, client_options},
    base::{fnv::fnv1a, request_error::RequestError, text::opaque_debug},
    error::{Error, ErrorKind, Result},
    types::{GroupName, QueueAddress},
};

/// A queue of Azure Queue Storage. Clones are the same queue and share its connections.
///
/// If a put of many messages fails, any of them may have been put, not only the first few. The error
/// is a [refusal](ErrorKind::is_refusal) only if no message was put.
#[derive(Clone)]
pub struct AzureQueue {
    client: Arc<QueueClient>,
    address: QueueAddress,
    encoding: MessageEncoding,
    group: GroupName,
}

/// The time limit of one request, from connecting to the end of the answer: the service's own limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The newest API version that the emulator (3.35) supports; everything used here is older.
const VERSION: &str = "2025-11-05";
/// The maximum number of requests of one purge. The service clears a large queue in several steps,
/// each of which ends with a time-out.
const PURGE_ATTEMPTS: usize = 10;
/// The service's value for no time to live; without a value it uses 7 days.
const FOREVER: i32 = -1;

impl AzureQueue {
    /// Opens a queue without sending a request. [`WorkQueue::create`] creates the queue. Its name has 3
    /// to 63 letters, digits and single hyphens; the service keeps names in lower case.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an invalid queue name.
    pub fn open(account: &StorageAccount, name: &str, encoding: MessageEncoding) -> Result<Self> {
        Self::open_with(account, name, encoding, REQUEST_TIMEOUT)
    }

    fn open_with(
        account: &StorageAccount,
        name: &str,
        encoding: MessageEncoding,
        timeout: Duration,
    ) -> Result<Self> {
        let address = azure_address(account.name(), name)?;
        let options = QueueClientOptions {
            client_options: client_options(account, timeout)?,
            version: VERSION.to_owned(),
        };
        let url = account.queue_url(address.queue_name());
        let client = QueueClient::new(url, None, Some(options))
            .map_err(|error| RequestError::from(error).about(format_args!("queue `{address}`")))?;
        Ok(Self {
            client: Arc::new(client),
            group: listener_group(account, &address),
            address,
            encoding,
        })
    }

    /// Opens a queue of a connection string's account, whose bodies are base64.
    ///
    /// # Errors
    /// As [`AzureQueue::open`] and [`StorageAccount::from_connection_string`].
    pub fn from_connection_string(connection_string: &str, queue_name: &str) -> Result<Self> {
        let account = StorageAccount::from_connection_string(connection_string)?;
        Self::open(&account, queue_name, MessageEncoding::default())
    }

    async fn send(&self, text: String, delay: Duration) -> Result<MessageId> {
        let options = QueueClientSendMessageOptions {
            message_time_to_live: Some(FOREVER),
            visibility_timeout: Some(seconds(delay)),
            ..Default::default()
        };
        let content = Bytes::from(encoding::request(&text)).into();
        let sent = self.client.send_message(content, Some(options));
        let sent = sent.await.map_err(|error| self.request_error(error))?;
        let sent = sent
            .into_model()
            .map_err(|error| self.request_error(error))?;
        let id = sent.items.into_iter().flatten().next();
        let id = id.and_then(|sent| sent.message_id);
        Ok(MessageId::new(&self.required(id, "message's id")?))
    }

    /// Hides the message of a receipt for `time`; returns the new receipt.
    async fn hide(&self, receipt: &Receipt, time: Duration) -> Result<Receipt> {
        let (id, token) = (receipt.message_id(), receipt.token());
        let updated = self
            .client
            .update_message(id.as_str(), token, seconds(time), None);
        let updated = updated
            .await
            .map_err(|error| self.receipt_error(receipt, error))?;
        let token = updated
            .headers()
            .get_optional_string(&"x-ms-popreceipt".into());
        Ok(Receipt::new(id.clone(), &self.required(token, "receipt")?))
    }

    fn message(&self, message: ReceivedMessage) -> Result<Message> {
        let token = self.required(message.pop_receipt, "receipt")?;
        let read = self.peeked_message(
            message.message_id,
            message.message_text,
            message.dequeue_count,
            message.insertion_time,
        )?;
        let receipt = Receipt::new(read.id, &token);
        let (count, inserted_at) = (read.dequeue_count, read.inserted_at);
        Ok(Message::new(receipt, read.body, count, inserted_at))
    }

    fn peeked_message(
        &self,
        id: Option<String>,
        text: Option<String>,
        dequeue_count: Option<i64>,
        inserted_at: Option<OffsetDateTime>,
    ) -> Result<PeekedMessage> {
        let count = self.required(dequeue_count, "dequeue count")?;
        let inserted_at = self.required(inserted_at, "insertion time")?;
        // The service omits the text of an empty message.
        let body = self.encoding.decode(text.unwrap_or_default());
        Ok(PeekedMessage {
            id: MessageId::new(&self.required(id, "message's id")?),
            body,
            dequeue_count: u32::try_from(count).unwrap_or(u32::MAX),
            inserted_at: SystemTime::from(inserted_at),
            fault: None,
        })
    }

    fn required<T>(&self, value: Option<T>, field: &'static str) -> Result<T> {
        value.ok_or_else(|| {
            self.request_error(RequestError::Other {
                cause: format!("the answer has no {field}"),
            })
        })
    }

    /// Converts the error of a request with a receipt.
    #[cold]
    fn receipt_error(&self, receipt: &Receipt, error: azure_core::Error) -> Error {
        let error = RequestError::from(error);
        let no_queue = error.code() == "QueueNotFound";
        // The service answers with one of the two codes, depending on whether the message exists.
        let gone = error.kind() == ErrorKind::NotFound && !no_queue;
        if gone || error.code() == "PopReceiptMismatch" {
            return invalid_receipt(self, receipt);
        }
        self.request_error(error)
    }

    #[cold]
    fn request_error(&self, error: impl Into<RequestError>) -> Error {
        let error = error.into();
        if error.kind() == ErrorKind::NotFound {
            return missing_queue(self).with_source(error);
        }
        error.about(format_args!("queue `{self}`"))
    }
}

#[async_trait]
impl WorkQueue for AzureQueue {
    fn address(&self) -> &QueueAddress {
        &self.address
    }

    fn listener_group(&self) -> GroupName {
        self.group.clone()
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits {
            batch: 32,
            body: self.encoding.largest(),
            visibility: (Duration::from_secs(1), WEEK),
            delay: WEEK,
            // Whole seconds, rounded up.
            resolution: Duration::from_secs(1),
        }
    }

    async fn create(&self) -> Result<bool> {
        /// For a queue that exists already, the service answers with another success status.
        const CREATED: u16 = 201;
        match self.client.create(None).await {
            Ok(answer) => Ok(u16::from(answer.status()) == CREATED),
            Err(error) => match RequestError::from(error) {
                // The queue exists and has metadata.
                error if error.code() == "QueueAlreadyExists" => Ok(false),
                error => Err(self.request_error(error)),
            },
        }
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.limits().check_put(&messages)?;
        let encoded = messages.iter().map(|message| {
            let text = self.encoding.encode(&message.body)?;
            Ok((text, message.delay))
        });
        let encoded = encoded.collect::<Result<_>>()?;
        outcome::put_each(encoded, |(text, delay)| self.send(text, delay)).await
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let max = self.limits().check_max(max)?;
        self.limits().check_visibility(visibility_timeout)?;
        let options = QueueClientReceiveMessagesOptions {
            number_of_messages: i32::try_from(max).ok(),
            visibility_timeout: Some(seconds(visibility_timeout)),
            ..Default::default()
        };
        let received = self.client.receive_messages(Some(options)).await;
        let received = received.and_then(|answer| answer.into_model());
        let received = received.map_err(|error| self.request_error(error))?;
        let items = received.items.unwrap_or_default().into_iter();
        items.map(|message| self.message(message)).collect()
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        let (id, token) = (receipt.message_id().as_str(), receipt.token());
        let deleted = self.client.delete_message(id, token, None).await;
        deleted.map_err(|error| self.receipt_error(receipt, error))?;
        Ok(())
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        self.limits().check_visibility(visibility_timeout)?;
        self.hide(receipt, visibility_timeout).await
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.limits().check_delay(delay)?;
        self.hide(receipt, delay).await.map(|_| ())
    }

    async fn depth(&self) -> Result<u64> {
        let answer = self.client.get_properties(None).await;
        let count = answer.and_then(|answer| answer.approximate_messages_count());
        let count = count.map_err(|error| self.request_error(error))?;
        let count = self.required(count, "count of messages")?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        let max = self.limits().check_max(max)?;
        let options = QueueClientPeekMessagesOptions {
            number_of_messages: i32::try_from(max).ok(),
            ..Default::default()
        };
        let peeked = self.client.peek_messages(Some(options)).await;
        let peeked = peeked.and_then(|answer| answer.into_model());
        let peeked = peeked.map_err(|error| self.request_error(error))?;
        let items = peeked.items.unwrap_or_default().into_iter();
        let peeked = items.map(|message| {
            self.peeked_message(
                message.message_id,
                message.message_text,
                message.dequeue_count,
                message.insertion_time,
            )
        });
        peeked.collect()
    }

    async fn purge(&self) -> Result<()> {
        let mut left = PURGE_ATTEMPTS;
        loop {
            let Err(error) = self.client.clear(None).await else {
                return Ok(());
            };
            let error = RequestError::from(error);
            left -= 1;
            // Each attempt has deleted some messages, so the next one follows at once.
            if left == 0 || error.code() != "OperationTimedOut" {
                return Err(self.request_error(error));
            }
        }
    }
}

/// Returns the address of an account's queue; both names in lower case, as the service keeps them.
///
/// # Errors
/// [`ErrorKind::Invalid`] for an invalid account name or queue name.
pub(super) fn azure_address(account: &str, queue: &str) -> Result<QueueAddress> {
    let account = check_name(account)?;
    let queue = queue.to_ascii_lowercase();
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let hyphens_fit = !queue.starts_with('-') && !queue.ends_with('-') && !queue.contains("--");
    if !(3..=63).contains(&queue.len()) || !queue.chars().all(fits) || !hyphens_fit {
        let rule = "must be 3 to 63 letters, digits and single hyphens between them";
        return Err(Error::invalid("queue_name", rule));
    }
    QueueAddress::new(&account, &queue)
}

/// Rounds up to whole seconds.
fn seconds(time: Duration) -> i32 {
    let more = u64::from(time.subsec_nanos() > 0);
    i32::try_from(time.as_secs().saturating_add(more)).unwrap_or(i32::MAX)
}

impl fmt::Display for AzureQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "azure://{}", self.address)
    }
}

// Without the client, which holds the credential.
opaque_debug!(AzureQueue: address, encoding);

/// Returns the group of a queue's listeners. All emulators have an account of the same name, so the
/// endpoint distinguishes their queues.
fn listener_group(account: &StorageAccount, address: &QueueAddress) -> GroupName {
    if account.is_emulator() {
        local_group(address, fnv1a(account.queue_endpoint().bytes()))
    } else {
        queue_group(address)
    }
}
