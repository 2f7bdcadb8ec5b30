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
    time::Duration,
};

use async_trait::async_trait;

use super::{
    Message, MessageId, NewMessage, PeekedMessage, Receipt, WorkQueue, forward::forward, outcome,
};
use crate::{
    base::backoff::Backoff,
    error::{Error, ErrorKind, Result},
};

/// Repeats calls after temporary failures.
///
/// A call whose answer was lost may have taken effect. The retry depends on the call:
/// * `put`: each failed message is put again, and no other. A message whose answer was lost may be
///   put twice. Listeners allow for that, because delivery is at least once.
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
pub struct Retrying<Q> {
    inner: Q,
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
    in_doubt: bool,
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

impl<Q: WorkQueue> Retrying<Q> {
    /// Wraps a queue.
    pub fn new(inner: Q, config: RetryConfig) -> Self {
        Self { inner, config }
    }

    /// Returns the wrapped queue.
    pub fn inner(&self) -> &Q {
        &self.inner
    }

    /// Waits until the next attempt, or returns the error if there is none.
    async fn wait_or_fail(&self, state: &mut RetryState, error: Error) -> Result<()> {
        // Drawn at once, so that no generator is held across the wait.
        let wait = state.next_wait(&error, &mut fastrand::Rng::new());
        let Some(wait) = wait else {
            return Err(error);
        };
        tracing::debug!(queue = %self.inner, %error, ?wait, "a queue call failed and is repeated");
        tokio::time::sleep(wait).await;
        Ok(())
    }

    async fn retry<T, F>(&self, retry_on: RetryOn, call: impl Fn() -> F + Send + Sync) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        let mut state = RetryState::new(&self.config, retry_on);
        loop {
            match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.wait_or_fail(&mut state, error).await?,
            }
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<Q: WorkQueue> WorkQueue for Retrying<Q> {
    forward!([inner] address, listener_group, limits, empty_is_certain);

    async fn create(&self) -> Result<bool> {
        self.retry(RetryOn::Temporary, || self.inner.create()).await
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        outcome::combine(self.put_each(messages).await)
    }

    async fn put_each(&self, messages: Vec<NewMessage>) -> Vec<Result<MessageId>> {
        let mut state = RetryState::new(&self.config, RetryOn::Temporary);
        let mut outcomes = self.inner.put_each(messages.clone()).await;
        while let Some(error) = longest_wait(&outcomes) {
            if self.wait_or_fail(&mut state, error).await.is_err() {
                break;
            }
            let failed: Vec<_> = (0..outcomes.len())
                .filter(|index| outcomes[*index].is_err())
                .collect();
            let again = failed.iter().map(|index| messages[*index].clone());
            let next = self.inner.put_each(again.collect()).await;
            for (index, outcome) in failed.into_iter().zip(next) {
                outcomes[index] = after_retry(&outcomes[index], outcome);
            }
        }
        outcomes
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        self.retry(RetryOn::Refusals, || {
            self.inner.get(max, visibility_timeout)
        })
        .await
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        let mut state = RetryState::new(&self.config, RetryOn::Temporary);
        loop {
            match self.inner.delete(receipt).await {
                Ok(()) => return Ok(()),
                // The lost answer was most likely "deleted". It cannot be told from a message that
                // another consumer has got since. The caller can do nothing in either case: its
                // work is done, and a second delivery is allowed (at least once). An error would
                // only count finished work as failed.
                Err(error) if state.is_in_doubt() && error.kind() == ErrorKind::Conflict => {
                    return Ok(());
                }
                Err(error) => self.wait_or_fail(&mut state, error).await?,
            }
        }
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        self.retry(RetryOn::Temporary, || {
            self.inner.renew(receipt, visibility_timeout)
        })
        .await
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.retry(RetryOn::Temporary, || self.inner.release(receipt, delay))
            .await
    }

    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        self.retry(RetryOn::Temporary, || {
            self.inner.release_untried(receipt, delay)
        })
        .await
    }

    async fn depth(&self) -> Result<u64> {
        self.retry(RetryOn::Temporary, || self.inner.depth()).await
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        self.retry(RetryOn::Temporary, || self.inner.peek(max))
            .await
    }

    async fn purge(&self) -> Result<()> {
        self.retry(RetryOn::Temporary, || self.inner.purge()).await
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

    /// Returns whether an attempt failed but may have taken effect.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
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

impl<Q: Display> Display for Retrying<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Returns the error with the longest `retry_after`, which decides when the failed messages are put
/// again. `None` if no message failed, or if one failed for good: its next attempt would fail too.
fn longest_wait(outcomes: &[Result<MessageId>]) -> Option<Error> {
    let errors = || outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
    if errors().any(|error| !error.is_retryable()) {
        return None;
    }
    errors().max_by_key(|error| error.retry_after()).cloned()
}

/// Returns the outcome of a message's next attempt. It is not a refusal if the attempt before may
/// have taken effect.
fn after_retry(before: &Result<MessageId>, next: Result<MessageId>) -> Result<MessageId> {
    let in_doubt = before
        .as_ref()
        .is_err_and(|error| !error.kind().is_refusal());
    next.map_err(|error| {
        if in_doubt && error.kind().is_refusal() {
            outcome::in_doubt(format!("put without an answer; then {error}"), error)
        } else {
            error
        }
    })
}
