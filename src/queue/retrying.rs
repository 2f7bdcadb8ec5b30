//! A queue that repeats calls after temporary failures.
//!
//! A call that may succeed later without a change (busy server, cut connection, time-out) is
//! repeated after a growing, jittered wait. Any other error is returned at once. A call without an
//! answer may have taken effect: [`Retrying`] documents which calls are repeated then.

#[cfg(test)]
mod tests;

use std::{
    fmt::{self, Display},
    future::Future,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;

use super::{
    Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue, outcome,
};
use crate::{
    base::backoff::Backoff,
    error::{Error, ErrorKind, Result},
    types::{GroupName, QueueAddress},
};

/// Repeats calls after temporary failures. Each message is put by a call of its own, so do not wrap a
/// queue that puts all messages or none, such as that of SQLite.
///
/// A call whose answer was lost may have taken effect. The retry depends on the call:
/// * `put`: each message is put with a call of its own, and no other is repeated with it. A message whose
///   answer was lost may be put twice. Listeners allow for that, because delivery is at least once.
/// * `get`: repeated only after a [refusal](ErrorKind::is_refusal). After any other error it may
///   have hidden messages, so the error is returned at once, and a
///   [`Listener`](crate::listener::Listener) reports when the messages become visible again.
/// * `renew`: the lost answer may have replaced the receipt; then the next attempt ends in
///   [`ErrorKind::Conflict`].
/// * `release`: the message may have been given back; then the next attempt ends in
///   [`ErrorKind::Conflict`]. After a conflict the message comes back after the delay, or another
///   listener has it.
/// * `create`: it may return `false` for a queue that an earlier attempt created.
/// * `delete`: a conflict after an attempt without an answer counts as success.
///
/// # Cancel safety
/// As [`WorkQueue`]; after cancellation nothing is repeated.
#[derive(Debug, Clone)]
pub struct Retrying {
    inner: Arc<dyn WorkQueue>,
    config: RetryConfig,
}

/// The number of attempts and the waits between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryConfig {
    /// The maximum number of attempts of a call, including the first; 0 counts as 1.
    pub tries: u32,
    /// The upper bound of the first wait. The bound doubles with each attempt.
    pub base: Duration,
    /// The upper bound of all waits. A `retry_after` of the service is added to it.
    pub max: Duration,
}

/// The retries of one call: whether a failed call is repeated, and when. Pure: randomness is an argument.
#[derive(Debug)]
pub(crate) struct RetryState {
    attempts_left: u32,
    backoff: Backoff,
    retry_on: RetryOn,
    /// An attempt failed but may have taken effect.
    pub(crate) in_doubt: bool,
}

/// The failures after which a call is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryOn {
    /// All temporary failures: a second call does no harm.
    Temporary,
    /// Refusals only. A get without an answer may have hidden messages. The listener must see that
    /// error, because it then reports when the messages become visible again.
    Refusals,
}

impl Retrying {
    /// Wraps a queue.
    pub fn new(inner: Arc<dyn WorkQueue>, config: RetryConfig) -> Self {
        Self { inner, config }
    }

    async fn retry<T, F>(&self, call: impl Fn() -> F + Send + Sync) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        self.retry_in_doubt(RetryOn::Temporary, call).await.0
    }

    /// As [`Self::retry`]; also returns whether an attempt failed but may have taken effect.
    async fn retry_in_doubt<T, F>(
        &self,
        retry_on: RetryOn,
        call: impl Fn() -> F + Send + Sync,
    ) -> (Result<T>, bool)
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        let mut state = RetryState::new(&self.config, retry_on);
        loop {
            let error = match call().await {
                Ok(answer) => return (Ok(answer), state.in_doubt),
                Err(error) => error,
            };
            // Drawn at once, so that no generator is held across the wait.
            let wait = state.next_wait(&error, &mut fastrand::Rng::new());
            let Some(wait) = wait else {
                return (Err(error), state.in_doubt);
            };
            tracing::debug!(queue = %self.inner, %error, ?wait, "a queue call failed and is repeated");
            tokio::time::sleep(wait).await;
        }
    }

    async fn put_one(&self, message: NewMessage) -> Result<MessageId> {
        let put = || self.inner.put(vec![message.clone()]);
        let (put, in_doubt) = self.retry_in_doubt(RetryOn::Temporary, put).await;
        match put {
            Ok(ids) => ids.into_iter().next().ok_or_else(|| {
                Error::new(
                    ErrorKind::Internal,
                    "the queue returned no id of the message",
                )
            }),
            Err(error) if in_doubt && error.kind().is_refusal() => {
                let words = format!("put without an answer; then {error}");
                Err(outcome::in_doubt(words, error))
            }
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl WorkQueue for Retrying {
    fn address(&self) -> &QueueAddress {
        self.inner.address()
    }

    fn listener_group(&self) -> GroupName {
        self.inner.listener_group()
    }

    fn limits(&self) -> QueueLimits {
        self.inner.limits()
    }

    fn empty_is_certain(&self) -> bool {
        self.inner.empty_is_certain()
    }

    async fn create(&self) -> Result<bool> {
        self.retry(|| self.inner.create()).await
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.limits().check_put(&messages)?;
        outcome::put_each(messages, |message| self.put_one(message)).await
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let get = || self.inner.get(max, visibility_timeout);
        self.retry_in_doubt(RetryOn::Refusals, get).await.0
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        let delete = || self.inner.delete(receipt);
        match self.retry_in_doubt(RetryOn::Temporary, delete).await {
            // The lost answer was most likely "deleted". It cannot be told from a message that
            // another consumer has got since. The caller can do nothing in either case: its
            // work is done, and a second delivery is allowed (at least once). An error would
            // only count finished work as failed.
            (Err(error), true) if error.kind() == ErrorKind::Conflict => Ok(()),
            (deleted, _) => deleted,
        }
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        self.retry(|| self.inner.renew(receipt, visibility_timeout))
            .await
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.retry(|| self.inner.release(receipt, delay)).await
    }

    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        self.retry(|| self.inner.release_untried(receipt, delay))
            .await
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
}

impl RetryState {
    pub(crate) fn new(config: &RetryConfig, retry_on: RetryOn) -> Self {
        Self {
            attempts_left: config.tries.max(1),
            backoff: Backoff::new(config.base, config.max),
            retry_on,
            in_doubt: false,
        }
    }

    /// Returns the wait before the next attempt; `None` if the call has failed for good.
    pub(crate) fn next_wait(&mut self, error: &Error, rng: &mut fastrand::Rng) -> Option<Duration> {
        let refused = error.kind().is_refusal();
        self.in_doubt |= error.is_retryable() && !refused;
        self.attempts_left = self.attempts_left.saturating_sub(1);
        let repeats = refused || self.retry_on == RetryOn::Temporary;
        if self.attempts_left == 0 || !error.is_retryable() || !repeats {
            return None;
        }
        // The jitter is added to the service's `retry_after`. Otherwise all callers that it turned
        // away would return at the same time.
        let asked = error.retry_after().unwrap_or_default();
        Some(asked.saturating_add(self.backoff.next(rng)))
    }
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            // Seven waits, together at most 11 s and 5.5 s on average. That is longer than a service
            // takes to move a partition, and shorter than the usual visibility time-out of 30 s, so
            // the receipt is still valid when the last attempt succeeds.
            tries: 8,
            // About ten round trips within a region, so that a short fault costs little.
            base: Duration::from_millis(100),
            // Longer waits would detect a recovered service late and save few requests.
            max: Duration::from_secs(5),
        }
    }
}

impl Display for Retrying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
