//! A queue of another implementation: it counts every get, and the test sets its limits and the
//! ages of its messages.

use super::*;
use crate::{
    Result,
    queue::{Message, MessageId, PeekedMessage, QueueLimits, Receipt},
    types::QueueAddress,
};

/// Implements only the required methods of a queue.
#[derive(Debug)]
pub(super) struct Foreign {
    pub(super) inner: MemoryQueue,
    /// The maximum length of a message in bytes.
    pub(super) body: usize,
    /// Added to the age of each message.
    pub(super) age: Duration,
}

impl Foreign {
    pub(super) fn new(name: &str) -> Self {
        let inner = MemoryQueue::new(name.parse().expect("an address"));
        Self {
            body: inner.limits().body,
            age: Duration::ZERO,
            inner,
        }
    }

    /// Gets all messages this many times, and waits for each time-out.
    pub(super) async fn waste(&self, gets: usize) {
        for _ in 0..gets {
            let got = self.get(32, Duration::from_secs(1)).await;
            assert!(!got.expect("got").is_empty());
            seconds(2).await;
        }
    }
}

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait::async_trait]
impl WorkQueue for Foreign {
    fn address(&self) -> &QueueAddress {
        self.inner.address()
    }

    async fn create(&self) -> Result<bool> {
        self.inner.create().await
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        self.inner.delete(receipt).await
    }

    async fn renew(&self, receipt: &Receipt, timeout: Duration) -> Result<Receipt> {
        self.inner.renew(receipt, timeout).await
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.inner.release(receipt, delay).await
    }

    async fn depth(&self) -> Result<u64> {
        self.inner.depth().await
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        self.inner.peek(max).await
    }

    async fn purge(&self) -> Result<()> {
        self.inner.purge().await
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits {
            body: self.body,
            ..self.inner.limits()
        }
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.limits().check_put(&messages)?;
        self.inner.put(messages).await
    }

    async fn get(&self, max: usize, timeout: Duration) -> Result<Vec<Message>> {
        let mut got = self.inner.get(max, timeout).await?;
        for message in &mut got {
            message.inserted_at -= self.age;
        }
        Ok(got)
    }
}
