//! A queue in this process's memory: for tests, demos and work that need not survive.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue, local_group,
    lost,
};
use crate::{
    clock::{Clock, Tick, wall},
    error::Result,
    words::{GroupName, QueueAddress},
};

/// A queue in memory. Clones are the same queue.
#[derive(Debug, Clone)]
pub struct MemoryQueue {
    address: QueueAddress,
    /// Tells it from the memory queues of other processes under the same address.
    identity: u64,
    clock: Clock,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    messages: BTreeMap<u64, Stored>,
    /// Every message by when it is visible.
    by_time: BTreeSet<(Tick, u64)>,
    /// Those that end by themselves, by when.
    ends: BTreeSet<(Tick, u64)>,
    last_id: u64,
    last_receipt: u64,
}

#[derive(Debug)]
struct Stored {
    body: Bytes,
    visible_at: Tick,
    ends_at: Tick,
    dequeue_count: u32,
    inserted_at: SystemTime,
    /// Of the newest receipt; 0 before the first.
    receipt: u64,
}

impl MemoryQueue {
    /// Makes an empty queue.
    pub fn new(address: QueueAddress) -> Self {
        Self {
            address,
            identity: fastrand::u64(..),
            clock: Clock::new(),
            state: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hides the message of a receipt until then, and takes so many gets back from its count;
    /// returns the receipt that is worth something now.
    fn hide(&self, receipt: &Receipt, until: Tick, uncounted: u32) -> Result<Receipt> {
        let now = self.clock.now();
        let mut state = self.lock();
        state.expire(now);
        let id = state.holder(receipt).ok_or_else(|| lost(self, receipt))?;
        let stored = state.messages.get_mut(&id).expect("it was just found");
        stored.dequeue_count = stored.dequeue_count.saturating_sub(uncounted);
        Ok(state.hand_out(id, until))
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
        let mut state = self.lock();
        let ids = messages.into_iter().map(|message| {
            let stored = Stored {
                visible_at: now + message.delay,
                ends_at: message.time_to_live.map_or(Tick::NEVER, |ttl| now + ttl),
                body: message.body,
                dequeue_count: 0,
                inserted_at,
                receipt: 0,
            };
            name(state.insert(stored))
        });
        Ok(ids.collect())
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let max = self.limits().check_max(max)?;
        self.limits().check_visibility(visibility_timeout)?;
        let now = self.clock.now();
        let mut state = self.lock();
        state.expire(now);
        let ids = state.visible(now, max);
        let messages = ids.into_iter().map(|id| {
            let receipt = state.hand_out(id, now + visibility_timeout);
            let stored = state.messages.get_mut(&id).expect("it was just found");
            stored.dequeue_count += 1;
            Message {
                id: name(id),
                body: stored.body.clone(),
                receipt,
                dequeue_count: stored.dequeue_count,
                inserted_at: stored.inserted_at,
                fault: None,
            }
        });
        Ok(messages.collect())
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        let mut state = self.lock();
        state.expire(self.clock.now());
        let id = state.holder(receipt).ok_or_else(|| lost(self, receipt))?;
        state.remove(id);
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
        let mut state = self.lock();
        state.expire(self.clock.now());
        Ok(state.messages.len() as u64)
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        let max = self.limits().check_max(max)?;
        let now = self.clock.now();
        let mut state = self.lock();
        state.expire(now);
        let peeked = state.visible(now, max).into_iter().map(|id| {
            let stored = &state.messages[&id];
            PeekedMessage {
                id: name(id),
                body: stored.body.clone(),
                dequeue_count: stored.dequeue_count,
                inserted_at: stored.inserted_at,
                fault: None,
            }
        });
        Ok(peeked.collect())
    }

    async fn purge(&self) -> Result<()> {
        let mut state = self.lock();
        state.messages.clear();
        state.by_time.clear();
        state.ends.clear();
        Ok(())
    }
}

impl State {
    fn insert(&mut self, stored: Stored) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.by_time.insert((stored.visible_at, id));
        if stored.ends_at != Tick::NEVER {
            self.ends.insert((stored.ends_at, id));
        }
        self.messages.insert(id, stored);
        id
    }

    /// Returns the messages that are visible, those first that have been for longest.
    fn visible(&self, now: Tick, max: usize) -> Vec<u64> {
        let visible = self.by_time.iter().take_while(|(at, _)| *at <= now);
        visible.map(|(_, id)| *id).take(max).collect()
    }

    /// Hides a message until then, by a receipt that replaces any before.
    fn hand_out(&mut self, id: u64, until: Tick) -> Receipt {
        self.last_receipt += 1;
        let stored = self.messages.get_mut(&id).expect("callers looked it up");
        self.by_time.remove(&(stored.visible_at, id));
        (stored.visible_at, stored.receipt) = (until, self.last_receipt);
        self.by_time.insert((until, id));
        Receipt::new(name(id), &self.last_receipt.to_string())
    }

    /// Returns the message that the receipt is for, where it is the newest one.
    fn holder(&self, receipt: &Receipt) -> Option<u64> {
        let id: u64 = receipt.message_id().as_str().parse().ok()?;
        let stored = self.messages.get(&id)?;
        (stored.receipt.to_string() == receipt.token()).then_some(id)
    }

    fn remove(&mut self, id: u64) {
        if let Some(stored) = self.messages.remove(&id) {
            self.by_time.remove(&(stored.visible_at, id));
            self.ends.remove(&(stored.ends_at, id));
        }
    }

    /// Removes what has outlived its time.
    fn expire(&mut self, now: Tick) {
        while let Some(&(at, id)) = self.ends.first()
            && at <= now
        {
            self.remove(id);
        }
    }
}

fn name(id: u64) -> MessageId {
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
