//! A queue in this process's memory: for tests, demos and work that may be lost at exit.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue,
    invalid_receipt, local_group,
};
use crate::{
    base::{
        clock::{Clock, Tick, wall},
        sync::lock,
    },
    error::Result,
    types::{GroupName, QueueAddress},
};

/// A queue in memory. Clones are the same queue.
#[derive(Debug, Clone)]
pub struct MemoryQueue {
    address: QueueAddress,
    /// Distinguishes it from memory queues of other processes under the same address.
    identity: u64,
    clock: Clock,
    messages: Arc<Mutex<MessageTable>>,
}

#[derive(Debug, Default)]
struct MessageTable {
    by_id: BTreeMap<u64, StoredMessage>,
    /// All messages, ordered by the time at which they become visible.
    by_visibility: BTreeSet<(Tick, u64)>,
    last_id: u64,
    last_receipt: u64,
}

#[derive(Debug)]
struct StoredMessage {
    body: Bytes,
    visible_at: Tick,
    dequeue_count: u32,
    inserted_at: SystemTime,
    /// The number of the newest receipt; 0 before the first.
    receipt: u64,
}

impl MemoryQueue {
    /// Creates an empty queue.
    pub fn new(address: QueueAddress) -> Self {
        Self {
            address,
            identity: fastrand::u64(..),
            clock: Clock::new(),
            messages: Arc::default(),
        }
    }

    /// Hides the message of a receipt until `until`, and subtracts `uncounted` from its dequeue
    /// count; returns the new receipt.
    fn hide(&self, receipt: &Receipt, until: Tick, uncounted: u32) -> Result<Receipt> {
        let mut messages = lock(&self.messages);
        let id = messages
            .find(receipt)
            .ok_or_else(|| invalid_receipt(self, receipt))?;
        let stored = messages.by_id.get_mut(&id).expect("it was just found");
        stored.dequeue_count = stored.dequeue_count.saturating_sub(uncounted);
        Ok(messages.hide(id, until))
    }
}

#[async_trait]
impl WorkQueue for MemoryQueue {
    fn address(&self) -> &QueueAddress {
        &self.address
    }

    fn listener_group(&self) -> GroupName {
        local_group(&self.address, self.identity)
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits::EMBEDDED
    }

    async fn create(&self) -> Result<bool> {
        Ok(false)
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.limits().check_put(&messages)?;
        let (now, inserted_at) = (self.clock.now(), wall());
        let mut table = lock(&self.messages);
        let ids = messages.into_iter().map(|message| {
            let stored = StoredMessage {
                visible_at: now + message.delay,
                body: message.body,
                dequeue_count: 0,
                inserted_at,
                receipt: 0,
            };
            message_id(table.insert(stored))
        });
        Ok(ids.collect())
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let max = self.limits().check_max(max)?;
        self.limits().check_visibility(visibility_timeout)?;
        let now = self.clock.now();
        let mut messages = lock(&self.messages);
        let ids = messages.visible(now, max);
        let got = ids.into_iter().map(|id| {
            let receipt = messages.hide(id, now + visibility_timeout);
            let stored = messages.by_id.get_mut(&id).expect("it was just found");
            stored.dequeue_count += 1;
            Message::new(
                receipt,
                stored.body.clone(),
                stored.dequeue_count,
                stored.inserted_at,
            )
        });
        Ok(got.collect())
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        let mut messages = lock(&self.messages);
        let id = messages
            .find(receipt)
            .ok_or_else(|| invalid_receipt(self, receipt))?;
        if let Some(stored) = messages.by_id.remove(&id) {
            messages.by_visibility.remove(&(stored.visible_at, id));
        }
        Ok(())
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        self.limits().check_visibility(visibility_timeout)?;
        self.hide(receipt, self.clock.now() + visibility_timeout, 0)
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.limits().check_delay(delay)?;
        let until = self.clock.now() + delay;
        self.hide(receipt, until, 0).map(|_| ())
    }

    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        self.limits().check_delay(delay)?;
        let until = self.clock.now() + delay;
        self.hide(receipt, until, 1).map(|_| true)
    }

    async fn depth(&self) -> Result<u64> {
        Ok(lock(&self.messages).by_id.len() as u64)
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        let max = self.limits().check_max(max)?;
        let now = self.clock.now();
        let messages = lock(&self.messages);
        let peeked = messages.visible(now, max).into_iter().map(|id| {
            let stored = &messages.by_id[&id];
            PeekedMessage::new(
                message_id(id),
                stored.body.clone(),
                stored.dequeue_count,
                stored.inserted_at,
            )
        });
        Ok(peeked.collect())
    }

    async fn purge(&self) -> Result<()> {
        let mut messages = lock(&self.messages);
        messages.by_id.clear();
        messages.by_visibility.clear();
        Ok(())
    }
}

impl MessageTable {
    fn insert(&mut self, stored: StoredMessage) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.by_visibility.insert((stored.visible_at, id));
        self.by_id.insert(id, stored);
        id
    }

    /// Returns the visible messages, the longest visible first.
    fn visible(&self, now: Tick, max: usize) -> Vec<u64> {
        let visible = self.by_visibility.iter().take_while(|(at, _)| *at <= now);
        visible.map(|(_, id)| *id).take(max).collect()
    }

    /// Hides a message until `until`; returns a new receipt, which invalidates older ones.
    fn hide(&mut self, id: u64, until: Tick) -> Receipt {
        self.last_receipt += 1;
        let stored = self.by_id.get_mut(&id).expect("callers looked it up");
        self.by_visibility.remove(&(stored.visible_at, id));
        (stored.visible_at, stored.receipt) = (until, self.last_receipt);
        self.by_visibility.insert((until, id));
        Receipt::new(message_id(id), &self.last_receipt.to_string())
    }

    /// Returns the message of a receipt if the receipt is its newest one.
    fn find(&self, receipt: &Receipt) -> Option<u64> {
        let id: u64 = receipt.message_id().as_str().parse().ok()?;
        let stored = self.by_id.get(&id)?;
        (stored.receipt.to_string() == receipt.token()).then_some(id)
    }
}

fn message_id(id: u64) -> MessageId {
    MessageId::new(&id.to_string())
}

impl fmt::Display for MemoryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory:{}", self.address.queue_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::queue_contract as contract;

    fn queue() -> MemoryQueue {
        MemoryQueue::new("local/jobs".parse().expect("an address"))
    }

    #[tokio::test(start_paused = true)]
    async fn it_keeps_the_contract() {
        contract::check(&queue()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn it_keeps_the_contract_among_many() {
        let queue = Arc::new(queue());
        contract::check_races(&[Arc::clone(&queue) as Arc<dyn WorkQueue>, queue]).await;
    }
}
