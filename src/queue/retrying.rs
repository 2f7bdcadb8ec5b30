//! A queue whose passing faults are tried again.
//!
//! What may succeed later without any change (a busy server, a cut connection, a time-out) is
//! tried again after a growing, jittered wait; what will not is returned at once. Never knows
//! whether a call without an answer has happened, so what a second try may repeat is said at
//! [`Retrying`].

#[cfg(test)]
mod tests;

use std::{
    fmt::{self, Display},
    future::Future,
    time::Duration,
};

use async_trait::async_trait;

use super::{Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue};
use crate::{
    backoff::Backoff,
    error::{Error, ErrorKind, Result},
    words::QueueAddress,
};

/// Tries again what failed for the moment.
///
/// A call whose answer was lost may have happened, and happens again when it is tried again:
/// * a `put` may put its messages twice, all of them or the first few: listeners handle each at
///   least once anyway;
/// * a `get` may hide messages that nobody was told of; they come back when their time-out ends,
///   got once more by their count;
/// * a `renew` may have replaced the receipt by one that nobody knows, and a `release` may have
///   given the message back: the next try of either ends in [`ErrorKind::Conflict`], and the
///   message comes back by itself;
/// * a `create` may return `false` for a queue that it made itself.
///
/// A `delete` that may have happened, and then finds its receipt worth nothing, has succeeded.
///
/// # Cancel safety
/// As [`WorkQueue`]; nothing is tried again after the call was given up.
#[derive(Debug, Clone)]
pub struct Retrying<Q> {
    inner: Q,
    config: RetryConfig,
}

/// How often and how soon to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryConfig {
    /// A call is tried this often, the first time included; 0 counts as 1.
    pub tries: u32,
    /// The wait before the second try is up to this long, and the next ones up to twice the one
    /// before.
    pub base: Duration,
    /// No wait is longer, unless the service asks for it: what it asks for always comes on top.
    pub max: Duration,
}

/// The tries of one call.
struct Tries<'a> {
    queue: &'a dyn WorkQueue,
    left: u32,
    backoff: Backoff,
    rng: fastrand::Rng,
    /// One of them may have happened.
    in_doubt: bool,
}

impl<Q: WorkQueue> Retrying<Q> {
    /// Wraps a queue.
    pub fn new(inner: Q, config: RetryConfig) -> Self {
        Self { inner, config }
    }

    /// Returns the queue that is wrapped.
    pub fn inner(&self) -> &Q {
        &self.inner
    }

    fn tries(&self) -> Tries<'_> {
        Tries {
            queue: &self.inner,
            left: self.config.tries.max(1),
            backoff: Backoff::new(self.config.base, self.config.max),
            rng: fastrand::Rng::new(),
            in_doubt: false,
        }
    }

    async fn retry<T, F>(&self, call: impl Fn() -> F + Send + Sync) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        let mut tries = self.tries();
        loop {
            match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => tries.again(error).await?,
            }
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<Q: WorkQueue> WorkQueue for Retrying<Q> {
    fn address(&self) -> &QueueAddress {
        self.inner.address()
    }

    fn addresses(&self) -> Vec<&QueueAddress> {
        self.inner.addresses()
    }

    fn limits(&self) -> QueueLimits {
        self.inner.limits()
    }

    async fn create(&self) -> Result<bool> {
        self.retry(|| self.inner.create()).await
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.retry(|| self.inner.put(messages.clone())).await
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        self.retry(|| self.inner.get(max, visibility_timeout)).await
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        let mut tries = self.tries();
        loop {
            match self.inner.delete(receipt).await {
                Ok(()) => return Ok(()),
                // The answer that was lost was most likely "deleted", and nothing tells it from
                // "somebody else has got it since". The caller can do nothing about either: its
                // work is done, and whoever else got the message handles it again, as at-least-once
                // allows. An error would only make it take work that was done for work that failed.
                Err(error) if tries.in_doubt && error.kind() == ErrorKind::Conflict => {
                    return Ok(());
                }
                Err(error) => tries.again(error).await?,
            }
        }
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        self.retry(|| self.inner.renew(receipt, visibility_timeout))
            .await
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.retry(|| self.inner.release(receipt, delay)).await
    }

    async fn depth(&self) -> Result<u64> {
        self.retry(|| self.inner.depth()).await
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        self.retry(|| self.inner.peek(max)).await
    }

    async fn purge(&self) -> Result<()> {
        self.retry(|| self.inner.purge()).await
    }

    fn empty_is_certain(&self) -> bool {
        self.inner.empty_is_certain()
    }
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            // Seven waits, together 11 s at most and half of that on average: longer than a service
            // takes to move a partition, and shorter than the 30 s for which messages are usually
            // hidden, so that a receipt is still worth something when the last try succeeds.
            tries: 8,
            // About ten round trips within a region: a moment's fault costs a moment.
            base: Duration::from_millis(100),
            // Longer ones would find a healed service late, and hardly spare one that is not.
            max: Duration::from_secs(5),
        }
    }
}

impl Tries<'_> {
    /// Waits until the next try, or returns the error where there is none.
    async fn again(&mut self, error: Error) -> Result<()> {
        self.left -= 1;
        if self.left == 0 || !error.is_retryable() {
            return Err(error);
        }
        self.in_doubt |= matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable);
        // On top of what the service asks for, or all that it turned away would come back at once.
        let asked = error.retry_after().unwrap_or_default();
        let wait = asked.saturating_add(self.backoff.next(&mut self.rng));
        tracing::debug!(queue = %self.queue, %error, ?wait, "tries again");
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

impl<Q: Display> Display for Retrying<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
