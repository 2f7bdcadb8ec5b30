//! Work queues: messages that are got, handled and deleted, or come back.
//!
//! A [`WorkQueue`] is what every queue service can do that hides a message for a while instead of
//! handing it out for good: Azure Queue Storage, SQS, a table of a database. All of them keep the
//! same contract, and one suite of checks holds them to it:
//! [`testing::queue_contract`](crate::testing::queue_contract), which a back-end of another crate
//! passes as well (`examples/own_queue.rs`). Knows nothing of wake-ups: whoever puts a message says
//! so by a publisher, and a listener gets it.
//!
//! The contract, beyond what each call says:
//! * a message that was put is got at least once, until somebody deletes it or its time to live,
//!   where it was given one, is over;
//! * a message that was got is seen by nobody else before its visibility time-out ends, and by
//!   everybody after it, unless it was deleted;
//! * a [`Receipt`] is worth something until the message is got again, released or renewed, also
//!   after its time-out has passed: nothing that was handled is handed out again without need;
//! * messages come roughly in the order in which they became visible; nothing rests on it.

#[cfg(feature = "azure")]
mod azure;
mod claim_check;
pub mod json;
mod memory;
mod metered;
mod outcome;
mod partitioned;
mod pointer;
mod retrying;
#[cfg(feature = "sqlite")]
mod sqlite;
pub(crate) mod tries;
mod url;

use std::{
    fmt::{self, Debug, Display},
    sync::Arc,
    time::{Duration, SystemTime},
};

/// What a back-end of another crate writes above its `impl WorkQueue`, without a dependency of its
/// own.
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
    url::{address, beside, open},
};
use crate::{
    error::{Error, ErrorKind, Result},
    words::{GroupName, QueueAddress},
};

/// A queue of messages that several processes work on. `Arc` and `Box` of one are one as well, so
/// that what wraps a queue wraps an `Arc<dyn WorkQueue>`.
///
/// # Cancel safety
/// A call that is given up may have happened all the same.
#[async_trait]
pub trait WorkQueue: Display + Debug + Send + Sync + 'static {
    /// Returns the address under which its wake-ups are published.
    fn address(&self) -> &QueueAddress;

    /// Returns the addresses of all queues that it is made of, each of which is notified by itself:
    /// its own by default.
    fn addresses(&self) -> Vec<&QueueAddress> {
        vec![self.address()]
    }

    /// Returns the group whose listeners share this queue's wake-ups by default: of a wake-up, as many
    /// of its members hear as there is work for. By default it has the queue's name.
    ///
    /// Every process that reads this queue has to come to the same name, and none that reads another
    /// queue under the same address: it would be woken in place of one of this queue's listeners.
    fn listener_group(&self) -> GroupName {
        queue_group(self.address())
    }

    /// Returns what the queue allows.
    fn limits(&self) -> QueueLimits;

    /// Makes the queue where it is missing; returns whether it was.
    ///
    /// # Errors
    /// Whatever kept the queue from answering.
    async fn create(&self) -> Result<bool>;

    /// Puts messages; returns their ids in the same order.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where one breaks a limit; nothing was put then.
    /// [`ErrorKind::NotFound`] where the queue does not exist. After any
    /// [refusal](ErrorKind::is_refusal) nothing was put; after another error some may have been.
    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>>;

    /// Puts messages; returns what became of each, in the same order. By default, as of a queue
    /// that puts all or none, each has the outcome of [`WorkQueue::put`]; a queue that sends them
    /// one by one says more, so that [`Retrying`] puts again only those that failed.
    async fn put_each(&self, messages: Vec<NewMessage>) -> Vec<Result<MessageId>> {
        let count = messages.len();
        outcome::of_each(count, self.put(messages).await)
    }

    /// Gets up to `max` messages and hides them for `visibility_timeout`; none where none is
    /// visible. More than [`QueueLimits::batch`] are never got at once.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a `max` of 0 or a time-out outside of the limits;
    /// [`ErrorKind::NotFound`] where the queue does not exist.
    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>>;

    /// Deletes a message that was got.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where the receipt is worth nothing any more: somebody else has got
    /// the message since, or it is gone.
    async fn delete(&self, receipt: &Receipt) -> Result<()>;

    /// Hides a message for `visibility_timeout` from now on; the receipt that is returned replaces
    /// the one that was given.
    ///
    /// # Errors
    /// As [`WorkQueue::delete`], and [`ErrorKind::Invalid`] for a time-out outside of the limits.
    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt>;

    /// Gives a message back: it is seen again after `delay`.
    ///
    /// # Errors
    /// As [`WorkQueue::renew`].
    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()>;

    /// Gives a message back as [`WorkQueue::release`] does, and takes back its get from the
    /// dequeue count, where the queue can: nobody tried to handle it. Returns whether the count was
    /// taken back; never, by default.
    ///
    /// # Errors
    /// As [`WorkQueue::renew`].
    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        self.release(receipt, delay).await.map(|()| false)
    }

    /// Returns about how many messages there are, hidden ones included.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where the queue does not exist.
    async fn depth(&self) -> Result<u64>;

    /// Returns up to `max` visible messages without getting them.
    ///
    /// # Errors
    /// As [`WorkQueue::get`].
    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>>;

    /// Deletes all messages.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where the queue does not exist.
    async fn purge(&self) -> Result<()>;

    /// Returns whether a get that brings nothing means that nothing was visible: `true` by default.
    /// `false` of a service that asks a part of its servers only, as SQS does where a get does not
    /// wait: whoever reads it until it is empty asks more than once.
    fn empty_is_certain(&self) -> bool {
        true
    }
}

/// A message to put.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewMessage {
    /// What it says.
    pub body: Bytes,
    /// Nobody sees it before this has passed.
    pub delay: Duration,
    /// It is gone when this has passed, got or not. `None`, the default, keeps it for ever, whatever
    /// the service's own default is.
    pub time_to_live: Option<Duration>,
}

/// A message that was got.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Its name, the same each time that it is got.
    pub id: MessageId,
    /// What it says.
    pub body: Bytes,
    /// By which it is deleted, renewed or released.
    pub receipt: Receipt,
    /// How often it was got so far, this time included: 1 or more.
    pub dequeue_count: u32,
    /// When it was put, by the queue's clock.
    pub inserted_at: SystemTime,
    /// Why `body` is not what was put, where it is not; see [`Message::payload`].
    pub fault: Option<Fault>,
}

/// A message that was only looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeekedMessage {
    /// Its name.
    pub id: MessageId,
    /// What it says.
    pub body: Bytes,
    /// How often it was got so far.
    pub dequeue_count: u32,
    /// When it was put, by the queue's clock.
    pub inserted_at: SystemTime,
    /// As [`Message::fault`].
    pub fault: Option<Fault>,
}

/// Why a message has not the body that was put: what a wrapper made of it could not be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// What to do about it: what [is retryable](ErrorKind::is_retryable) is no fault of the message
    /// and may be gone when it comes again; all else stays.
    pub kind: ErrorKind,
    /// What is wrong, in words.
    pub message: Arc<str>,
}

/// A message's name within its queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(Arc<str>);

/// The right to delete, renew or release a message. Opaque; of the queue that gave it only.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Receipt {
    id: MessageId,
    token: Arc<str>,
}

/// What a queue allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLimits {
    /// Messages of one get, or of one peek.
    pub batch: usize,
    /// Bytes of a message.
    pub body: usize,
    /// The shortest and the longest visibility time-out.
    pub visibility: (Duration, Duration),
    /// The longest delay of a put and of a release.
    pub delay: Duration,
    /// How exactly spans are kept: a message may become visible later by this.
    pub resolution: Duration,
}

impl NewMessage {
    /// Makes a message that is visible at once and kept until it is deleted.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            ..Self::default()
        }
    }

    /// Delays it.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Limits its life.
    #[must_use]
    pub fn expiring(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = Some(time_to_live);
        self
    }
}

impl Message {
    /// Makes a message that was got for the `dequeue_count`th time; its id is that of its receipt.
    /// A back-end calls this.
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

    /// Returns what was put, which is `body` but for a message with a [`Fault`].
    ///
    /// # Errors
    /// The fault: whoever handles messages gives back one whose fault passes, whatever its dequeue
    /// count, and does away with any other as with a message that it cannot handle.
    pub fn payload(&self) -> Result<&Bytes> {
        match &self.fault {
            None => Ok(&self.body),
            Some(fault) => Err(fault.clone().into()),
        }
    }
}

impl PeekedMessage {
    /// Makes a message that was looked at, and got `dequeue_count` times before. A back-end calls
    /// this.
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
    /// Makes the name that a back-end has given a message.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns it as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Receipt {
    /// Makes a receipt; the token tells this hand-out of the message from all others. A back-end
    /// calls this.
    pub fn new(id: MessageId, token: &str) -> Self {
        Self {
            id,
            token: token.into(),
        }
    }

    /// Returns whose it is.
    pub fn message_id(&self) -> &MessageId {
        &self.id
    }

    /// Returns what the back-end knows the hand-out by. With it the message can be deleted: not for
    /// logs.
    pub fn token(&self) -> &str {
        &self.token
    }
}

impl QueueLimits {
    /// What the embedded queues allow: as Azure Queue Storage, so that what runs on them runs there.
    /// Also the default, from which a back-end's own limits are made.
    pub const EMBEDDED: Self = Self {
        batch: 32,
        body: 64 * 1024,
        visibility: (Duration::from_millis(1), WEEK),
        delay: WEEK,
        resolution: Duration::from_millis(1),
    };

    /// Checks messages that are to be put, before any of them is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: a body is too long, a delay too long, a time to live zero, or not
    /// longer than the delay once both are rounded up to [`QueueLimits::resolution`].
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

    /// Checks how many messages are asked for; returns how many to get, which is one batch at most.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for none.
    pub fn check_max(&self, max: usize) -> Result<usize> {
        match max {
            0 => Err(Error::invalid("max", "must be at least 1")),
            max => Ok(max.min(self.batch)),
        }
    }

    /// Checks a visibility time-out.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for one outside of [`QueueLimits::visibility`].
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
    /// [`ErrorKind::Invalid`] for one above [`QueueLimits::delay`].
    pub fn check_delay(&self, delay: Duration) -> Result<()> {
        if delay <= self.delay {
            return Ok(());
        }
        let rule = format_args!("must be at most {:?}, but is {delay:?}", self.delay);
        Err(Error::invalid("delay", rule))
    }

    /// Checks that a message is seen before it ends, as the queue rounds both times.
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

    /// Returns a time as the queue keeps it: rounded up.
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

/// Returns the group that has the queue's name.
fn queue_group(address: &QueueAddress) -> GroupName {
    let name = GroupName::new(address.queue_name());
    name.expect("names of queues keep the rule of groups' names")
}

/// Returns the group of a queue whose address other queues may have as well.
fn local_group(address: &QueueAddress, identity: u64) -> GroupName {
    let name = GroupName::new(&format!("{:.100}-{identity:016x}", address.queue_name()));
    name.expect("names of queues keep the rule of groups' names")
}

/// The receipt is worth nothing any more.
#[cold]
pub(crate) fn lost(queue: &dyn WorkQueue, receipt: &Receipt) -> Error {
    let message = format!(
        "message `{}` of queue `{queue}` is gone, or somebody else has got it",
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
        // The token is a right: not for logs.
        f.debug_struct("Receipt")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
