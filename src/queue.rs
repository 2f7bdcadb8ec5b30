//! Work queues: consumers get messages, handle them, and delete them or give them back.
//!
//! A [`WorkQueue`] has the operations that all queue services with a visibility time-out share:
//! Azure Queue Storage, SQS, a database table. All back-ends keep the same contract, and one test
//! suite checks it: [`testing::queue_contract`](crate::testing::queue_contract). A back-end in
//! another crate can run the same suite (`examples/own_queue.rs`). This module knows nothing of
//! wake-ups: after a put, the caller notifies the queue's address with a publisher, and a listener
//! gets the message.
//!
//! The contract, in addition to the documentation of each method:
//! * A message is delivered at least once, until it is deleted or its time to live, if it has one,
//!   ends.
//! * After a get, no other consumer sees the message until its visibility time-out ends. Then it is
//!   visible again, unless it was deleted.
//! * A [`Receipt`] stays valid until the message is got again, released or renewed, even after its
//!   time-out. So a handled message is not delivered again without need.
//! * Messages come roughly in the order in which they became visible. Callers must not depend on
//!   the order.

#[cfg(feature = "azure")]
mod azure;
mod claim_check;
pub(crate) mod forward;
pub mod json;
mod memory;
mod metered;
mod outcome;
mod partitioned;
pub(crate) mod retry_state;
mod retrying;
#[cfg(feature = "sqlite")]
mod sqlite;
mod url;

use std::{
    fmt::{self, Debug, Display},
    sync::Arc,
    time::{Duration, SystemTime},
};

/// The attribute that an `impl WorkQueue` needs. A back-end in another crate can use it without its
/// own dependency on `async-trait`.
pub use async_trait::async_trait;
use bytes::Bytes;

#[cfg(feature = "azure")]
pub use self::azure::{AzureQueue, AzureQueueConfig, MessageEncoding};
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteQueue;
pub use self::{
    claim_check::{ClaimCheck, ClaimConfig},
    json::{JsonMessage, JsonQueue},
    memory::MemoryQueue,
    metered::{Metered, QueueUsage, Tariff},
    partitioned::Partitioned,
    retrying::{RetryConfig, Retrying},
    url::{address, open, with_suffix},
};
use crate::{
    error::{Error, ErrorKind, Result},
    words::{GroupName, QueueAddress},
};

/// A queue of messages that several processes work on. `Arc` and `Box` of a queue implement this
/// trait too, so a wrapper can wrap an `Arc<dyn WorkQueue>`.
///
/// # Cancel safety
/// A cancelled call may have taken effect.
#[async_trait]
pub trait WorkQueue: Display + Debug + Send + Sync + 'static {
    /// Returns the address under which its wake-ups are published.
    fn address(&self) -> &QueueAddress;

    /// Returns the addresses of all queues behind this one; each address is notified separately.
    /// Default: its own address only.
    fn addresses(&self) -> Vec<&QueueAddress> {
        vec![self.address()]
    }

    /// Returns the default group of this queue's listeners. The members share its wake-ups: the
    /// relay wakes as many members as there is work for. Default: a group with the queue's name.
    ///
    /// All processes that read this queue must return the same name. A process that reads another
    /// queue under the same address must return a different one: otherwise its listener is woken
    /// in place of a listener of this queue.
    fn listener_group(&self) -> GroupName {
        queue_group(self.address())
    }

    /// Returns the queue's limits.
    fn limits(&self) -> QueueLimits;

    /// Creates the queue if it does not exist; returns whether it was created.
    ///
    /// # Errors
    /// Any failure of the queue service.
    async fn create(&self) -> Result<bool>;

    /// Puts messages; returns their ids in the same order.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a message breaks a limit; then nothing was put.
    /// [`ErrorKind::NotFound`] if the queue does not exist. After any
    /// [refusal](ErrorKind::is_refusal) nothing was put. After any other error some messages may
    /// have been put.
    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>>;

    /// Puts messages; returns the outcome of each, in the same order. The default suits a queue
    /// that puts all or none: each message has the outcome of [`WorkQueue::put`]. A queue that sends
    /// messages one by one returns the outcome of each, so that [`Retrying`] repeats only the
    /// failed ones.
    async fn put_each(&self, messages: Vec<NewMessage>) -> Vec<Result<MessageId>> {
        let count = messages.len();
        outcome::for_each(count, self.put(messages).await)
    }

    /// Gets up to `max` messages and hides them for `visibility_timeout`. Returns an empty list if
    /// no message is visible, and never more than [`QueueLimits::batch`] messages.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a `max` of 0 or a time-out outside of the limits;
    /// [`ErrorKind::NotFound`] if the queue does not exist.
    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>>;

    /// Deletes a message that was got.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the receipt is no longer valid: another consumer has got the
    /// message since, or it is gone.
    async fn delete(&self, receipt: &Receipt) -> Result<()>;

    /// Hides a message for `visibility_timeout` from now on. The returned receipt replaces the old
    /// one.
    ///
    /// # Errors
    /// As [`WorkQueue::delete`], and [`ErrorKind::Invalid`] for a time-out outside of the limits.
    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt>;

    /// Gives a message back: it is visible again after `delay`.
    ///
    /// # Errors
    /// As [`WorkQueue::renew`].
    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()>;

    /// Gives a message back as [`WorkQueue::release`] does, for a message that no handler tried. If
    /// the queue supports it, the dequeue count goes down by one. Returns whether it did; the
    /// default is `false`.
    ///
    /// # Errors
    /// As [`WorkQueue::renew`].
    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        self.release(receipt, delay).await.map(|()| false)
    }

    /// Returns the approximate number of messages, including hidden ones.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the queue does not exist.
    async fn depth(&self) -> Result<u64>;

    /// Returns up to `max` visible messages without getting them.
    ///
    /// # Errors
    /// As [`WorkQueue::get`].
    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>>;

    /// Deletes all messages.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the queue does not exist.
    async fn purge(&self) -> Result<()>;

    /// Returns whether an empty get proves that no message was visible; the default is `true`.
    /// `false` for a service that queries only some of its servers, as SQS does with short polling.
    /// A consumer that wants to drain such a queue needs more than one empty get.
    fn empty_is_certain(&self) -> bool {
        true
    }
}

/// A message to put.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewMessage {
    /// The payload.
    pub body: Bytes,
    /// The message is invisible for this long after the put.
    pub delay: Duration,
    /// The message is removed after this long, handled or not. `None`, the default, keeps it for
    /// ever, independent of the service's default.
    pub time_to_live: Option<Duration>,
}

/// A message returned by a get.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Set if `body` is not the body that was put; see [`Message::payload`].
    pub fault: Option<Fault>,
}

/// A message returned by a peek.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub fault: Option<Fault>,
}

/// Why a message does not have the body that was put: a wrapper encoded the body and cannot restore
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// If the kind [is retryable](ErrorKind::is_retryable), the fault is temporary and may be gone
    /// at the next get. Any other kind is permanent.
    pub kind: ErrorKind,
    /// A description of the fault.
    pub message: Arc<str>,
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

/// A queue's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLimits {
    /// The maximum number of messages per get or peek.
    pub batch: usize,
    /// The maximum size of a body, in bytes.
    pub body: usize,
    /// The shortest and the longest visibility time-out.
    pub visibility: (Duration, Duration),
    /// The longest delay of a put and of a release.
    pub delay: Duration,
    /// The resolution of all times: a message may become visible this much later.
    pub resolution: Duration,
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

    /// Sets [`NewMessage::time_to_live`].
    #[must_use]
    pub fn expiring(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = Some(time_to_live);
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

    /// Returns `body`, or an error if the message has a [`Fault`].
    ///
    /// # Errors
    /// The fault. A handler should release a message with a temporary fault, at any dequeue count,
    /// and treat a permanent fault like any message that it cannot handle.
    pub fn payload(&self) -> Result<&Bytes> {
        match &self.fault {
            None => Ok(&self.body),
            Some(fault) => Err(fault.clone().into()),
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

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self {
            kind: error.kind(),
            message: error.message().into(),
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::new(fault.kind, &*fault.message)
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

impl QueueLimits {
    /// The limits of the embedded queues: those of Azure Queue Storage, so that programs can move
    /// there. Also the default for the limits of other back-ends.
    pub const EMBEDDED: Self = Self {
        batch: 32,
        body: 64 * 1024,
        visibility: (Duration::from_millis(1), WEEK),
        delay: WEEK,
        resolution: Duration::from_millis(1),
    };

    /// Checks all messages of a put before any of them is put.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a body or a delay is too long, a time to live is zero, or a time to
    /// live is not longer than the delay after both are rounded up to [`QueueLimits::resolution`].
    pub fn check_put(&self, messages: &[NewMessage]) -> Result<()> {
        messages.iter().try_for_each(|message| {
            if message.body.len() > self.body {
                let rule = format_args!(
                    "must be at most {} bytes, but has {}",
                    self.body,
                    message.body.len()
                );
                return Err(Error::invalid("body", rule));
            }
            self.check_delay(message.delay)?;
            match message.time_to_live {
                Some(life) => self.check_life(life, message.delay),
                None => Ok(()),
            }
        })
    }

    /// Checks the `max` of a get or a peek; returns it, limited to one batch.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for 0.
    pub fn check_max(&self, max: usize) -> Result<usize> {
        match max {
            0 => Err(Error::invalid("max", "must be at least 1")),
            max => Ok(max.min(self.batch)),
        }
    }

    /// Checks a visibility time-out.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is outside of [`QueueLimits::visibility`].
    pub fn check_visibility(&self, timeout: Duration) -> Result<()> {
        let (least, most) = self.visibility;
        if (least..=most).contains(&timeout) {
            return Ok(());
        }
        let rule = format_args!("must be {least:?} to {most:?}, but is {timeout:?}");
        Err(Error::invalid("visibility_timeout", rule))
    }

    /// Checks the delay of a put or of a release.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is above [`QueueLimits::delay`].
    pub fn check_delay(&self, delay: Duration) -> Result<()> {
        if delay <= self.delay {
            return Ok(());
        }
        let rule = format_args!("must be at most {:?}, but is {delay:?}", self.delay);
        Err(Error::invalid("delay", rule))
    }

    /// Checks that a message becomes visible before it expires. The queue rounds both times.
    fn check_life(&self, life: Duration, delay: Duration) -> Result<()> {
        if life.is_zero() {
            return Err(Error::invalid("time_to_live", "must be above zero"));
        }
        let (life, delay) = (self.rounded(life), self.rounded(delay));
        if delay < life {
            return Ok(());
        }
        let rule = format_args!(
            "must be shorter than time_to_live, but they are {delay:?} and {life:?} when rounded \
             up to {:?}",
            self.resolution
        );
        Err(Error::invalid("delay", rule))
    }

    /// Rounds a time up to the queue's resolution.
    fn rounded(&self, time: Duration) -> Duration {
        let step = self.resolution.as_nanos();
        if step == 0 {
            return time;
        }
        let steps = time.as_nanos().div_ceil(step);
        let nanos = steps.saturating_mul(step);
        u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
    }
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self::EMBEDDED
    }
}

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

fn queue_group(address: &QueueAddress) -> GroupName {
    let name = GroupName::new(address.queue_name());
    name.expect("names of queues keep the rule of groups' names")
}

/// Returns the group of a queue that may share its address with other queues.
fn local_group(address: &QueueAddress, identity: u64) -> GroupName {
    let name = GroupName::new(&format!("{:.100}-{identity:016x}", address.queue_name()));
    name.expect("names of queues keep the rule of groups' names")
}

#[cold]
pub(crate) fn lost(queue: &dyn WorkQueue, receipt: &Receipt) -> Error {
    let message = format!(
        "message `{}` of queue `{queue}` is gone, or another consumer has got it",
        receipt.id
    );
    Error::new(ErrorKind::Conflict, message)
}

impl Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token allows to delete the message, so it must not appear in logs.
        f.debug_struct("Receipt")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
