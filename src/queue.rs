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
//! * A message is delivered at least once, until it is deleted.
//! * After a get, no other consumer sees the message until its visibility time-out ends. Then it is
//!   visible again, unless it was deleted.
//! * A [`Receipt`] stays valid until the message is got again, released or renewed, even after its
//!   time-out. So a handled message is not delivered again without need.
//! * Messages come roughly in the order in which they became visible. Callers must not depend on
//!   the order.

#[cfg(feature = "azure")]
mod azure;
pub(crate) mod claim_check;
pub mod json;
mod limits;
mod memory;
mod message;
mod outcome;
mod retrying;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
mod url;

use std::{
    fmt::{Debug, Display},
    time::Duration,
};

/// The attribute that an `impl WorkQueue` needs. A back-end in another crate can use it without its
/// own dependency on `async-trait`.
pub use async_trait::async_trait;

#[cfg(feature = "azure")]
pub use self::azure::{AzureQueue, MessageEncoding};
pub(crate) use self::retrying::{RetryOn, RetryState};
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteQueue;
pub use self::{
    claim_check::{ClaimCheck, ClaimConfig},
    limits::QueueLimits,
    memory::MemoryQueue,
    message::{Message, MessageId, NewMessage, PeekedMessage, Receipt},
    retrying::{RetryConfig, Retrying},
    url::{address, create, open, with_suffix},
};
use crate::{
    error::{Error, ErrorKind, Result},
    types::{GroupName, QueueAddress},
};

/// A queue of messages that several processes work on.
///
/// # Cancel safety
/// A cancelled call may have taken effect.
#[async_trait]
pub trait WorkQueue: Display + Debug + Send + Sync + 'static {
    /// Returns the address under which its wake-ups are published.
    fn address(&self) -> &QueueAddress;

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

fn queue_group(address: &QueueAddress) -> GroupName {
    let name = GroupName::new(address.queue_name());
    name.expect("names of queues keep the rule of groups' names")
}

/// Returns the group of a queue that may share its address with other queues.
fn local_group(address: &QueueAddress, identity: u64) -> GroupName {
    let name = GroupName::new(&format!("{:.100}-{identity:016x}", address.queue_name()));
    name.expect("names of queues keep the rule of groups' names")
}

#[cfg(any(feature = "azure", feature = "sqlite"))]
#[cold]
pub(crate) fn missing_queue(queue: impl Display) -> Error {
    let message = format!(
        "queue `{queue}` does not exist: create it first, for example with `reveille queue create`"
    );
    Error::new(ErrorKind::NotFound, message)
}

#[cold]
fn invalid_receipt(queue: &dyn WorkQueue, receipt: &Receipt) -> Error {
    let message = format!(
        "message `{}` of queue `{queue}` is gone, or another consumer has got it",
        receipt.message_id()
    );
    Error::new(ErrorKind::Conflict, message)
}
