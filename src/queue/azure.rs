//! Queues of Azure Queue Storage, by the official client.
//!
//! The service reckons in whole seconds: every time-out, delay and time to live is rounded up. It
//! puts one message a request, so a put of many is many requests, some of them at the same time. A
//! request is sent once: wrap the queue in [`Retrying`](super::Retrying) for faults that pass, as
//! [`open`](super::open) does; it puts again only the messages that failed.
//! Opening a queue asks nobody anything; the first call finds out whether the credential is right.

mod encoding;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use azure_core::{
    http::{RequestContent, XmlFormat},
    time::OffsetDateTime,
};
use azure_storage_queue::{
    QueueClient, QueueClientOptions,
    models::{
        QueueClientGetPropertiesResultHeaders as _, QueueClientPeekMessagesOptions,
        QueueClientReceiveMessagesOptions, QueueClientSendMessageOptions, QueueMessage,
        ReceivedMessage,
    },
};
use futures_util::{StreamExt as _, stream};

pub use self::encoding::MessageEncoding;
use super::{
    Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WEEK, WorkQueue,
    local_group, lost, outcome, queue_group,
};
use crate::{
    azure::{AzureError, StorageAccount, check_name, client_options},
    error::{Error, ErrorKind, Result},
    fnv::fnv1a,
    words::{GroupName, QueueAddress},
};

/// A queue of Azure Queue Storage. Clones are the same queue, and share its connections.
///
/// A put of many messages that fails may have put any of them, not only the first few. The error is
/// a [refusal](ErrorKind::is_refusal) only where none was put.
#[derive(Clone)]
pub struct AzureQueue {
    client: Arc<QueueClient>,
    address: QueueAddress,
    encoding: MessageEncoding,
    group: GroupName,
}

/// Which queue, and how it is used.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AzureQueueConfig {
    /// Whose queue it is, and by what right it is used.
    pub account: StorageAccount,
    /// Its name: 3 to 63 letters, digits and single hyphens. The service keeps it in lower case.
    pub queue_name: String,
    /// How messages are written; base64 by default, which carries any bytes.
    pub encoding: MessageEncoding,
    /// The time of one request, from connecting to the end of the answer. 30 s by default, as long
    /// as the service itself works on one.
    pub timeout: Duration,
}

/// A message that is ready to be sent.
struct Ready {
    content: RequestContent<QueueMessage, XmlFormat>,
    options: QueueClientSendMessageOptions<'static>,
}

/// The newest version that the emulator (3.35) knows as well; all that is used here is older.
const VERSION: &str = "2025-11-05";
/// Puts that one call sends at the same time: a tenth of what fills a queue's 2,000 a second at
/// 10 ms each, so that one call never has the service turn others away.
const PUTS: usize = 16;
/// The service clears a large queue in several steps, each ended by a time-out of its own.
const PURGES: usize = 10;
/// Stands for no time to live; without it the service takes 7 days.
const FOREVER: i32 = -1;

impl AzureQueueConfig {
    /// Makes the configuration of a queue; its other fields have their defaults.
    pub fn new(account: StorageAccount, queue_name: impl Into<String>) -> Self {
        Self {
            account,
            queue_name: queue_name.into(),
            encoding: MessageEncoding::default(),
            timeout: Duration::from_secs(30),
        }
    }
}

impl AzureQueue {
    /// Opens a queue; nothing is sent yet. The queue is made by [`WorkQueue::create`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name that cannot be a queue's.
    pub fn open(config: &AzureQueueConfig) -> Result<Self> {
        let address = azure_address(config.account.name(), &config.queue_name)?;
        let options = QueueClientOptions {
            client_options: client_options(&config.account, config.timeout)?,
            version: VERSION.to_owned(),
        };
        let url = config.account.queue_url(address.queue_name());
        let client = QueueClient::new(url, None, Some(options))
            .map_err(|error| AzureError::from(error).of(format_args!("queue `{address}`")))?;
        Ok(Self {
            client: Arc::new(client),
            group: listener_group(&config.account, &address),
            address,
            encoding: config.encoding,
        })
    }

    /// Opens a queue of the account that a connection string names.
    ///
    /// # Errors
    /// As [`AzureQueue::open`] and [`StorageAccount::from_connection_string`].
    pub fn from_connection_string(connection_string: &str, queue_name: &str) -> Result<Self> {
        let account = StorageAccount::from_connection_string(connection_string)?;
        Self::open(&AzureQueueConfig::new(account, queue_name))
    }

    fn ready(&self, message: &NewMessage) -> Result<Ready> {
        let text = self.encoding.encode(&message.body)?;
        let content = QueueMessage {
            message_text: Some(text),
        };
        Ok(Ready {
            content: content.try_into().map_err(|error| self.failed(error))?,
            options: QueueClientSendMessageOptions {
                message_time_to_live: Some(message.time_to_live.map_or(FOREVER, seconds)),
                visibility_timeout: Some(seconds(message.delay)),
                ..Default::default()
            },
        })
    }

    /// Checks all messages, and makes each ready to be sent.
    fn all_ready(&self, messages: &[NewMessage]) -> Result<Vec<Ready>> {
        self.limits().check_put(messages)?;
        messages.iter().map(|message| self.ready(message)).collect()
    }

    /// Sends a message, unless one before it has failed: what a service refuses or does not answer
    /// is not asked a thousand times.
    async fn send_unless(&self, failed: &OnceLock<Error>, message: Ready) -> Result<MessageId> {
        if let Some(error) = failed.get() {
            return Err(error.clone());
        }
        let sent = self.send(message).await;
        if let Err(error) = &sent {
            // The first one stays.
            let _ = failed.set(error.clone());
        }
        sent
    }

    async fn send(&self, message: Ready) -> Result<MessageId> {
        let sent = self
            .client
            .send_message(message.content, Some(message.options));
        let sent = sent.await.map_err(|error| self.failed(error))?;
        let sent = sent.into_model().map_err(|error| self.failed(error))?;
        let id = sent.items.into_iter().flatten().next();
        let id = id.and_then(|sent| sent.message_id);
        Ok(MessageId::new(&self.stated(id, "message's id")?))
    }

    /// Hides the message of a receipt for this long; returns the receipt that is worth something
    /// now.
    async fn hide(&self, receipt: &Receipt, time: Duration) -> Result<Receipt> {
        let (id, token) = (receipt.message_id(), receipt.token());
        let updated = self
            .client
            .update_message(id.as_str(), token, seconds(time), None);
        let updated = updated
            .await
            .map_err(|error| self.refused(receipt, error))?;
        let token = updated
            .headers()
            .get_optional_string(&"x-ms-popreceipt".into());
        Ok(Receipt::new(id.clone(), &self.stated(token, "receipt")?))
    }

    fn got(&self, message: ReceivedMessage) -> Result<Message> {
        let token = self.stated(message.pop_receipt, "receipt")?;
        let PeekedMessage {
            id,
            body,
            dequeue_count,
            inserted_at,
            fault,
        } = self.seen(
            message.message_id,
            message.message_text,
            message.dequeue_count,
            message.insertion_time,
        )?;
        Ok(Message {
            receipt: Receipt::new(id.clone(), &token),
            id,
            body,
            dequeue_count,
            inserted_at,
            fault,
        })
    }

    fn seen(
        &self,
        id: Option<String>,
        text: Option<String>,
        dequeue_count: Option<i64>,
        inserted_at: Option<OffsetDateTime>,
    ) -> Result<PeekedMessage> {
        let count = self.stated(dequeue_count, "dequeue count")?;
        let inserted_at = self.stated(inserted_at, "insertion time")?;
        Ok(PeekedMessage {
            id: MessageId::new(&self.stated(id, "message's id")?),
            // The text of an empty message is none.
            body: self.encoding.decode(text.unwrap_or_default()),
            dequeue_count: u32::try_from(count).unwrap_or(u32::MAX),
            inserted_at: SystemTime::from(inserted_at),
            fault: None,
        })
    }

    fn stated<T>(&self, value: Option<T>, field: &'static str) -> Result<T> {
        value.ok_or_else(|| self.failed(AzureError::Incomplete { field }))
    }

    /// Of a request that a receipt was shown with.
    #[cold]
    fn refused(&self, receipt: &Receipt, error: azure_core::Error) -> Error {
        let error = AzureError::from(error);
        let no_queue = error.code() == "QueueNotFound";
        // The service says either, by whether the message is still there.
        let gone = error.kind() == ErrorKind::NotFound && !no_queue;
        if gone || error.code() == "PopReceiptMismatch" {
            return lost(self, receipt);
        }
        self.failed(error)
    }

    #[cold]
    fn failed(&self, error: impl Into<AzureError>) -> Error {
        let error = error.into();
        if error.kind() == ErrorKind::NotFound {
            let message = format!(
                "queue `{self}` does not exist: make it first, as `reveille queue create` does"
            );
            return Error::new(ErrorKind::NotFound, message).with_source(error);
        }
        error.of(format_args!("queue `{self}`"))
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
        /// Where it was there already, the service answers with another success.
        const CREATED: u16 = 201;
        match self.client.create(None).await {
            Ok(answer) => Ok(u16::from(answer.status()) == CREATED),
            Err(error) => match AzureError::from(error) {
                // It is there, with metadata that somebody gave it.
                error if error.code() == "QueueAlreadyExists" => Ok(false),
                error => Err(self.failed(error)),
            },
        }
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        outcome::of_all(self.put_each(messages).await)
    }

    async fn put_each(&self, messages: Vec<NewMessage>) -> Vec<Result<MessageId>> {
        let ready = match self.all_ready(&messages) {
            Ok(ready) => ready,
            Err(error) => return outcome::of_each(messages.len(), Err(error)),
        };
        let failed = OnceLock::new();
        let sending = ready.into_iter();
        let sending = sending.map(|message| self.send_unless(&failed, message));
        // Those on their way are waited for after a failure: dropped, they would be in doubt.
        stream::iter(sending).buffered(PUTS).collect().await
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
        let received = received.map_err(|error| self.failed(error))?;
        let items = received.items.unwrap_or_default().into_iter();
        items.map(|message| self.got(message)).collect()
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        let (id, token) = (receipt.message_id().as_str(), receipt.token());
        let deleted = self.client.delete_message(id, token, None).await;
        deleted.map_err(|error| self.refused(receipt, error))?;
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
        let count = count.map_err(|error| self.failed(error))?;
        let count = self.stated(count, "count of messages")?;
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
        let peeked = peeked.map_err(|error| self.failed(error))?;
        let items = peeked.items.unwrap_or_default().into_iter();
        let seen = items.map(|message| {
            self.seen(
                message.message_id,
                message.message_text,
                message.dequeue_count,
                message.insertion_time,
            )
        });
        seen.collect()
    }

    async fn purge(&self) -> Result<()> {
        let mut left = PURGES;
        loop {
            let Err(error) = self.client.clear(None).await else {
                return Ok(());
            };
            let error = AzureError::from(error);
            left -= 1;
            // Each try has deleted some of them: it goes on at once.
            if left == 0 || error.code() != "OperationTimedOut" {
                return Err(self.failed(error));
            }
        }
    }
}

/// Returns the address of an account's queue: both in lower case, as the service keeps them.
///
/// # Errors
/// [`ErrorKind::Invalid`] for what cannot be an account's or a queue's name there.
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

/// Returns whole seconds, rounded up.
fn seconds(time: Duration) -> i32 {
    let more = u64::from(time.subsec_nanos() > 0);
    i32::try_from(time.as_secs().saturating_add(more)).unwrap_or(i32::MAX)
}

impl fmt::Display for AzureQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "azure://{}", self.address)
    }
}

impl fmt::Debug for AzureQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client is left out: it knows by what right it works.
        f.debug_struct("AzureQueue")
            .field("address", &self.address)
            .field("encoding", &self.encoding)
            .finish_non_exhaustive()
    }
}

/// Returns the group of a queue's listeners. Every emulator has an account of the same name, with other
/// queues: its endpoint tells it apart.
fn listener_group(account: &StorageAccount, address: &QueueAddress) -> GroupName {
    match account.is_emulator() {
        true => local_group(address, fnv1a(account.queue_endpoint().bytes())),
        false => queue_group(address),
    }
}
