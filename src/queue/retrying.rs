//! A queue whose passing faults are tried again.
//!
//! What may succeed later without any change (a busy server, a cut connection, a time-out) is
//! tried again after a growing, jittered wait; what will not is returned at once. Never knows
//! whether a call without an answer has happened: [`Retrying`] says which calls are repeated then.

#[cfg(test)]
mod tests;

use std::{
    fmt::{self, Display},
    future::Future,
    time::Duration,
};

use async_trait::async_trait;

use super::{
    Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue, outcome,
    tries::{Repeat, Tries},
};
use crate::{
    error::{Error, ErrorKind, Result},
    fault::Fault,
    words::{GroupName, QueueAddress},
};

/// Tries again what failed for the moment.
///
/// A call whose answer was lost may have happened. What is done about it depends on the call:
/// * a `put` is tried again for each message that failed, and for no other; one whose answer was
///   lost may be put twice, which listeners allow for, as they handle each at least once;
/// * a `get` is tried again only after a [refusal](ErrorKind::is_refusal). Otherwise it may have
///   hidden messages, and its error is returned at once: a
///   [`Listener`](crate::listener::Listener) reports when they come back;
/// * a `renew` may have replaced the receipt by one that is not known, and a `release` may have
///   given the message back: the next try of either ends in [`ErrorKind::Conflict`]. A caller of
///   `release` therefore takes a conflict for one of both: the message comes back after the delay,
///   or another listener has it;
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

impl<Q: WorkQueue> Retrying<Q> {
    /// Wraps a queue.
    pub fn new(inner: Q, config: RetryConfig) -> Self {
        Self { inner, config }
    }

    /// Returns the queue that is wrapped.
    pub fn inner(&self) -> &Q {
        &self.inner
    }

    fn tries(&self, repeat: Repeat) -> Tries {
        Tries::new(&self.config, repeat, Fault::NONE)
    }

    /// Waits until the next try, or returns the error where there is none.
    async fn again(&self, tries: &mut Tries, error: Error) -> Result<()> {
        // Drawn at once: a generator is not held over the wait.
        let wait = tries.after(&error, &mut fastrand::Rng::new());
        let Some(wait) = wait else {
            return Err(error);
        };
        tracing::debug!(queue = %self.inner, %error, ?wait, "tries again");
        tokio::time::sleep(wait).await;
        Ok(())
    }

    async fn retry<T, F>(&self, repeat: Repeat, call: impl Fn() -> F + Send + Sync) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        let mut tries = self.tries(repeat);
        loop {
            match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.again(&mut tries, error).await?,
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

    fn listener_group(&self) -> GroupName {
        self.inner.listener_group()
    }

    fn limits(&self) -> QueueLimits {
        self.inner.limits()
    }

    async fn create(&self) -> Result<bool> {
        self.retry(Repeat::Any, || self.inner.create()).await
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        outcome::of_all(self.put_each(messages).await)
    }

    async fn put_each(&self, messages: Vec<NewMessage>) -> Vec<Result<MessageId>> {
        let mut tries = self.tries(Repeat::Any);
        let mut outcomes = self.inner.put_each(messages.clone()).await;
        while let Some(error) = slowest(&outcomes) {
            if self.again(&mut tries, error).await.is_err() {
                break;
            }
            let failed: Vec<_> = (0..outcomes.len())
                .filter(|index| outcomes[*index].is_err())
                .collect();
            let again = failed.iter().map(|index| messages[*index].clone());
            let next = self.inner.put_each(again.collect()).await;
            for (index, outcome) in failed.into_iter().zip(next) {
                outcomes[index] = after(&outcomes[index], outcome);
            }
        }
        outcomes
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        self.retry(Repeat::Refused, || self.inner.get(max, visibility_timeout))
            .await
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        let mut tries = self.tries(Repeat::Any);
        loop {
            match self.inner.delete(receipt).await {
                Ok(()) => return Ok(()),
                // The answer that was lost was most likely "deleted", and nothing tells it from
                // "somebody else has got it since". The caller can do nothing about either: its
                // work is done, and whoever else got the message handles it again, as at-least-once
                // allows. An error would only make it take work that was done for work that failed.
                Err(error) if tries.is_in_doubt() && error.kind() == ErrorKind::Conflict => {
                    return Ok(());
                }
                Err(error) => self.again(&mut tries, error).await?,
            }
        }
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        self.retry(Repeat::Any, || {
            self.inner.renew(receipt, visibility_timeout)
        })
        .await
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.retry(Repeat::Any, || self.inner.release(receipt, delay))
            .await
    }

    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        self.retry(Repeat::Any, || self.inner.release_untried(receipt, delay))
            .await
    }

    async fn depth(&self) -> Result<u64> {
        self.retry(Repeat::Any, || self.inner.depth()).await
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        self.retry(Repeat::Any, || self.inner.peek(max)).await
    }

    async fn purge(&self) -> Result<()> {
        self.retry(Repeat::Any, || self.inner.purge()).await
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

impl<Q: Display> Display for Retrying<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Returns the error that decides when messages that failed are put again: the one that asks for
/// the longest wait. `None` where none failed, or one is refused for good, as the next try of it
/// would be.
fn slowest(outcomes: &[Result<MessageId>]) -> Option<Error> {
    let errors = || outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
    if errors().any(|error| !error.is_retryable()) {
        return None;
    }
    errors().max_by_key(|error| error.retry_after()).cloned()
}

/// Returns the outcome of a message's next try: no refusal where the try before may have happened.
fn after(before: &Result<MessageId>, next: Result<MessageId>) -> Result<MessageId> {
    let doubted = before
        .as_ref()
        .is_err_and(|error| !error.kind().is_refusal());
    next.map_err(|error| match doubted && error.kind().is_refusal() {
        true => outcome::in_doubt(format!("put without an answer; then {error}"), error),
        false => error,
    })
}
