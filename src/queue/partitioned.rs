//! Several queues as one: for more load than one queue of a service can take, or for several
//! accounts.
//!
//! Spreads puts over the queues, gets from them in turn, and routes each receipt to its queue. Moves
//! no message between queues and publishes no wake-up: each queue has its own address for wake-ups.

#[cfg(test)]
mod tests;

use std::{
    fmt::{self, Display},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::{
    Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue,
    invalid_receipt, outcome,
};
use crate::{
    base::fnv::fnv1a,
    error::{Error, Result},
    types::{GroupName, QueueAddress},
};

/// Several queues as one.
///
/// Partitions are numbered in the order of construction. Receipts, message ids and keys depend on
/// these numbers, so all processes must list the same queues in the same order.
///
/// A get or a peek queries one partition after the other until it has enough. An empty get
/// therefore costs one transaction per partition. If a partition fails and another has messages,
/// the failed one is skipped; otherwise its error is returned.
///
/// A put stops at the first partition that fails. Its error is a
/// [refusal](crate::ErrorKind::is_refusal) only if no message was put. A
/// [`Retrying`](super::Retrying) around this queue repeats the failed and the unsent messages, on
/// the partitions whose turn it is then.
///
/// Wake-ups are published under each partition's address ([`WorkQueue::addresses`]), so one
/// [`Listener`](crate::listener::Listener) on this queue can only poll. To receive wake-ups, start
/// one listener per partition, all with clones of one [`Budget`](crate::listener::Budget).
#[derive(Debug)]
pub struct Partitioned {
    partitions: Vec<Arc<dyn WorkQueue>>,
    limits: QueueLimits,
    // One counter per operation. With a common counter, a caller that alternates puts and gets would
    // put to every second partition only.
    next_put: AtomicUsize,
    next_get: AtomicUsize,
    next_peek: AtomicUsize,
}

impl Partitioned {
    /// Combines several queues.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an empty list.
    pub fn new(partitions: Vec<Arc<dyn WorkQueue>>) -> Result<Self> {
        let limits = partitions.iter().map(|queue| queue.limits());
        let Some(limits) = limits.reduce(strictest) else {
            return Err(Error::invalid("partitions", "must be at least 1"));
        };
        Ok(Self {
            partitions,
            limits,
            next_put: AtomicUsize::new(0),
            next_get: AtomicUsize::new(0),
            next_peek: AtomicUsize::new(0),
        })
    }

    /// Puts messages to the partition of the key; returns their ids in the same order.
    ///
    /// The partition is the key's 64-bit FNV-1a hash modulo the number of partitions. It is the same
    /// in every version as long as the number of partitions is the same.
    ///
    /// # Errors
    /// As [`WorkQueue::put`].
    pub async fn put_keyed(&self, key: &str, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.limits.check_put(&messages)?;
        outcome::combine(self.put_to(self.partition_of(key), messages).await)
    }

    fn partition_of(&self, key: &str) -> usize {
        let index = fnv1a(key.bytes()) % self.partitions.len() as u64;
        usize::try_from(index).expect("it is below a length")
    }

    async fn put_to(&self, index: usize, messages: Vec<NewMessage>) -> Vec<Result<MessageId>> {
        let outcomes = self.partitions[index].put_each(messages).await;
        let outer = |outcome: Result<MessageId>| outcome.map(|id| outer_id(index, &id));
        outcomes.into_iter().map(outer).collect()
    }

    /// Queries one partition after the other until `max` items are found.
    async fn fill<T: Send>(
        &self,
        next: &AtomicUsize,
        max: usize,
        ask: impl for<'a> Fn(&'a dyn WorkQueue, usize) -> BoxFuture<'a, Result<Vec<T>>> + Send + Sync,
    ) -> Result<Vec<(usize, T)>> {
        let start = next.fetch_add(1, Ordering::Relaxed);
        let (mut found, mut failed) = (Vec::new(), None);
        for offset in 0..self.partitions.len() {
            if found.len() == max {
                break;
            }
            let index = self.wrap(start, offset);
            let queue = &*self.partitions[index];
            match ask(queue, max - found.len()).await {
                Ok(more) => found.extend(more.into_iter().map(|one| (index, one))),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => Ok(found),
            Some(error) if found.is_empty() => Err(error),
            // The found messages are hidden already. An error would hide them until their time-out.
            Some(error) => {
                tracing::warn!(queue = %self, %error, "skipped a partition that failed");
                Ok(found)
            }
        }
    }

    fn wrap(&self, start: usize, offset: usize) -> usize {
        let partitions = self.partitions.len();
        (start % partitions + offset) % partitions
    }

    /// Returns the index of the receipt's partition, and the partition's own receipt.
    fn inner(&self, receipt: &Receipt) -> Result<(usize, Receipt)> {
        let unknown = || invalid_receipt(self, receipt);
        let (index, token) = split(receipt.token()).ok_or_else(unknown)?;
        let (of_id, id) = split(receipt.message_id().as_str()).ok_or_else(unknown)?;
        if index != of_id || index >= self.partitions.len() {
            return Err(unknown());
        }
        Ok((index, Receipt::new(MessageId::new(id), token)))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl WorkQueue for Partitioned {
    /// Returns the address of the first partition; [`WorkQueue::addresses`] returns all.
    fn address(&self) -> &QueueAddress {
        self.partitions[0].address()
    }

    /// Returns the addresses of all partitions, in their order.
    fn addresses(&self) -> Vec<&QueueAddress> {
        let all = self.partitions.iter();
        all.flat_map(|queue| queue.addresses()).collect()
    }

    fn listener_group(&self) -> GroupName {
        self.partitions[0].listener_group()
    }

    /// Returns the strictest limits of all partitions.
    fn limits(&self) -> QueueLimits {
        self.limits
    }

    async fn create(&self) -> Result<bool> {
        let mut made = false;
        for queue in &self.partitions {
            made |= queue.create().await?;
        }
        Ok(made)
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        outcome::combine(self.put_each(messages).await)
    }

    async fn put_each(&self, messages: Vec<NewMessage>) -> Vec<Result<MessageId>> {
        let (count, partitions) = (messages.len(), self.partitions.len());
        // Checked before the first put, so that a message one partition refuses fails the whole put.
        if let Err(error) = self.limits.check_put(&messages) {
            return outcome::for_each(count, Err(error));
        }
        let start = self.next_put.fetch_add(count, Ordering::Relaxed);
        // Each partition gets a contiguous run, one after the other. After an error, usually a
        // prefix of the messages is put.
        let mut outcomes = Vec::with_capacity(count);
        let mut rest = messages.into_iter();
        for offset in 0..partitions.min(count) {
            let share = count / partitions + usize::from(offset < count % partitions);
            let run = rest.by_ref().take(share).collect();
            let done = self.put_to(self.wrap(start, offset), run).await;
            let failed = done
                .iter()
                .find_map(|outcome| outcome.as_ref().err())
                .cloned();
            outcomes.extend(done);
            if let Some(error) = failed {
                outcomes.extend(outcome::for_each(rest.len(), Err(error)));
                break;
            }
        }
        outcomes
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let max = self.limits.check_max(max)?;
        self.limits.check_visibility(visibility_timeout)?;
        let got = self.fill(&self.next_get, max, |queue, max| {
            queue.get(max, visibility_timeout)
        });
        let outer = |(index, message): (usize, Message)| Message {
            id: outer_id(index, &message.id),
            receipt: outer_receipt(index, &message.receipt),
            ..message
        };
        Ok(got.await?.into_iter().map(outer).collect())
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        let (index, receipt) = self.inner(receipt)?;
        self.partitions[index].delete(&receipt).await
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        self.limits.check_visibility(visibility_timeout)?;
        let (index, receipt) = self.inner(receipt)?;
        let renewed = self.partitions[index].renew(&receipt, visibility_timeout);
        Ok(outer_receipt(index, &renewed.await?))
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.limits.check_delay(delay)?;
        let (index, receipt) = self.inner(receipt)?;
        self.partitions[index].release(&receipt, delay).await
    }

    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        self.limits.check_delay(delay)?;
        let (index, receipt) = self.inner(receipt)?;
        let released = self.partitions[index].release_untried(&receipt, delay);
        released.await
    }

    async fn depth(&self) -> Result<u64> {
        let mut depth = 0;
        for queue in &self.partitions {
            depth += queue.depth().await?;
        }
        Ok(depth)
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        let max = self.limits.check_max(max)?;
        let peeked = self.fill(&self.next_peek, max, |queue, max| queue.peek(max));
        let outer = |(index, message): (usize, PeekedMessage)| PeekedMessage {
            id: outer_id(index, &message.id),
            ..message
        };
        Ok(peeked.await?.into_iter().map(outer).collect())
    }

    async fn purge(&self) -> Result<()> {
        for queue in &self.partitions {
            queue.purge().await?;
        }
        Ok(())
    }

    /// Returns whether it is certain for all partitions: an empty get has queried each of them.
    fn empty_is_certain(&self) -> bool {
        self.partitions.iter().all(|queue| queue.empty_is_certain())
    }
}

impl Display for Partitioned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.partitions[0], f)?;
        match self.partitions.len() - 1 {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

fn strictest(one: QueueLimits, other: QueueLimits) -> QueueLimits {
    let ((least, most), (other_least, other_most)) = (one.visibility, other.visibility);
    QueueLimits {
        batch: one.batch.min(other.batch),
        body: one.body.min(other.body),
        visibility: (least.max(other_least), most.min(other_most)),
        delay: one.delay.min(other.delay),
        resolution: one.resolution.max(other.resolution),
    }
}

/// Prefixes the partition's number, because ids of different partitions may be equal.
fn outer_id(index: usize, id: &MessageId) -> MessageId {
    MessageId::new(&format!("{index}:{id}"))
}

fn outer_receipt(index: usize, receipt: &Receipt) -> Receipt {
    let token = format!("{index}:{}", receipt.token());
    Receipt::new(outer_id(index, receipt.message_id()), &token)
}

fn split(outer: &str) -> Option<(usize, &str)> {
    let (index, inner) = outer.split_once(':')?;
    Some((index.parse().ok()?, inner))
}
