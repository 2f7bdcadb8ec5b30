//! The end of a delivery, with or without an attempt: the message is deleted, released, or moved to
//! the poison queue.
//!
//! Calls with temporary errors are retried while the message is hidden. A message is renewed while
//! it is deleted or moved, so that no other listener handles or moves it as well.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    super::{
        handler::HandlerError,
        hooks::Action,
        poison::{Disposition, Settled, Verdict},
        poison_queue,
        shared::Shared,
    },
    InFlightMessage, LONGEST_CALL, RENEW_AFTER,
};
use crate::{
    base::clock::instant_after,
    error::{Error, ErrorKind, Result},
    queue::{RetryConfig, RetryOn, RetryState},
};

/// Retries go on while the message is hidden: a handled message should not be handled again without
/// need.
const RETRIES: RetryConfig = RetryConfig {
    tries: u32::MAX,
    base: Duration::from_millis(200),
    max: Duration::from_secs(5),
};
/// The minimum time limit of a delete.
const SHORTEST_CALL: Duration = Duration::from_secs(1);
/// The error of a handler that was dropped.
const GIVEN_UP: &str = "the handler was given up";
/// A handled message that cannot be deleted is kept hidden for this long. After that its place is
/// worth more than the risk of a second handling elsewhere.
const DELETE_DEADLINE: Duration = Duration::from_secs(300);

impl InFlightMessage<'_> {
    /// Deletes the message. During temporary errors it is kept hidden. If the deletion fails, the
    /// message is deleted without an attempt when this listener gets it again.
    pub(super) async fn delete(&mut self, settled: Settled) {
        // If another listener has it, the handler may have ended because it learned that.
        let settled_here = !self.taken_elsewhere || settled == Settled::Poisoned;
        let (outcome, in_doubt) = self
            .delete_while_hidden(settled_here.then_some(settled))
            .await;
        let conflict = |error: &Error| error.kind() == ErrorKind::Conflict;
        if outcome.is_ok() {
            tracing::debug!("the message is deleted");
            self.shared.attempts().forget(&self.message.id);
        }
        match outcome {
            // The listener that got it since handles it once more; there is nothing to do here.
            Err(error) if conflict(&error) && !in_doubt => {
                if !self.taken_elsewhere {
                    self.on_lost();
                }
            }
            Err(error) if !conflict(&error) => {
                self.report_error(Action::Delete, error);
                self.report_return();
            }
            // An earlier try may have deleted it, and its answer was lost.
            _ => {
                if settled == Settled::Handled {
                    self.shared.counters.add(|stats| stats.handled += 1);
                }
            }
        }
    }

    /// Tries to delete the message, and renews it in between. Also returns whether a try may have
    /// succeeded with its answer lost. `settled` is recorded before a second try: this listener may
    /// get the message again while that try hangs.
    async fn delete_while_hidden(&mut self, settled: Option<Settled>) -> (Result<()>, bool) {
        let give_up = instant_after(Instant::now(), DELETE_DEADLINE);
        // A call that hangs leaves time for a renewal.
        let timeout = self.shared.config.visibility_timeout;
        let patience = (timeout / RENEW_AFTER).clamp(SHORTEST_CALL, LONGEST_CALL);
        let mut retry = RetryState::new(&RETRIES, RetryOn::Temporary);
        loop {
            let called = self.shared.queue.delete(&self.receipt);
            let Err(error) = in_time(patience, called).await else {
                return (Ok(()), retry.is_in_doubt());
            };
            if let Some(settled) = settled {
                self.shared.attempts().settle(self.message, settled);
            }
            let now = Instant::now();
            let is_over = now >= give_up
                || now >= self.hidden_until
                || self.taken_elsewhere
                || self.shared.abandoning.is_cancelled();
            let wait = self.shared.next_wait(&mut retry, &error);
            let Some(wait) = wait.filter(|_| !is_over) else {
                return (Err(error), retry.is_in_doubt());
            };
            let next = instant_after(now, wait);
            while self.renew_at <= next
                && !self.taken_elsewhere
                && self.renew_at < self.hidden_until
            {
                tokio::time::sleep_until(self.renew_at).await;
                self.renew().await;
            }
            tokio::time::sleep_until(next.min(self.hidden_until)).await;
        }
    }

    /// Decides about a message after its handler's error, and carries that out.
    pub(super) async fn judge(&mut self, error: HandlerError, verdict: Verdict, attempts: u32) {
        let shared = self.shared;
        let disposition = shared.attempts().on_failed(self.message, attempts, verdict);
        if !matches!(disposition, Disposition::ReleaseUncounted(_)) {
            shared.counters.add(|stats| stats.failed += 1);
            // A rejected message is logged when it is moved to the poison queue.
            if (verdict, disposition) != (Verdict::Rejected, Disposition::Poison) {
                let (id, gets) = (&self.message.id, self.message.dequeue_count);
                let text = format!("message `{id}`, got {gets} times: {error}");
                self.report_error(Action::Handle, Error::new(ErrorKind::Internal, text));
            }
        }
        self.dispose(disposition, error, attempts).await;
    }

    /// Disposes of a message without a readable body; the handler is not called.
    pub(super) async fn unreadable(&mut self, fault: Error) {
        let shared = self.shared;
        shared.counters.add(|stats| stats.failed += 1);
        self.report_error(Action::Handle, fault.clone());
        let (disposition, untried) = {
            let mut attempts = shared.attempts();
            let disposition = attempts.on_unreadable(self.message, &fault);
            (disposition, attempts.untried(&self.message.id))
        };
        // A queue that removes such gets from its count counts none of them.
        let gets = self.message.dequeue_count.max(untried);
        self.dispose(disposition, fault.into(), gets).await;
    }

    /// Releases a message whose handler did not run to its end.
    pub(super) async fn abandon(&mut self) {
        let disposition = self.shared.attempts().on_abandoned(self.message);
        self.dispose(disposition, GIVEN_UP.into(), 1).await;
    }

    /// Moves the message to the poison queue with its error, or releases it. The listener's own
    /// wait grows with `retry`, the number of tries.
    async fn dispose(&mut self, disposition: Disposition, error: HandlerError, retry: u32) {
        let own = |wait: Option<Duration>| wait.unwrap_or_else(|| self.shared.retry_after(retry));
        match disposition {
            Disposition::Poison => self.poison(error).await,
            Disposition::ReleaseUncounted(wait) => self.release_uncounted(own(wait)).await,
            Disposition::Retry(wait) => self.release(own(wait)).await,
        }
    }

    /// Releases a message whose get was no attempt. That is recorded before the call, because the
    /// next get may come before the answer.
    async fn release_uncounted(&mut self, delay: Duration) {
        let delay = delay.min(self.shared.queue.limits().delay);
        let released = || self.shared.queue.release_untried(&self.receipt, delay);
        let (outcome, in_doubt) = self.retry(released).await;
        if matches!(outcome, Ok(true)) {
            // The queue's count equals the attempts again.
            self.shared.attempts().count_again(&self.message.id);
        }
        self.released(outcome.map(|_| ()), in_doubt, delay);
    }

    /// Releases the message: it becomes visible after `delay`, which is reported to the relay.
    async fn release(&mut self, delay: Duration) {
        let delay = delay.min(self.shared.queue.limits().delay);
        let released = || self.shared.queue.release(&self.receipt, delay);
        let (outcome, in_doubt) = self.retry(released).await;
        self.released(outcome, in_doubt, delay);
    }

    fn released(&self, outcome: Result<()>, in_doubt: bool, delay: Duration) {
        match outcome {
            Ok(()) => {
                tracing::debug!(?delay, "the message is released");
                return self.shared.report_hidden(delay);
            }
            // Another listener has it, or an earlier call succeeded and its answer was lost: here,
            // or inside a queue that retries. Then the message is visible after the delay.
            Err(error) if error.kind() == ErrorKind::Conflict => self.shared.report_hidden(delay),
            Err(error) => {
                self.report_error(Action::Release, error);
                if in_doubt {
                    self.shared.report_hidden(delay);
                }
            }
        }
        self.report_return();
    }

    /// Moves the message to the poison queue. It stays hidden during the move: otherwise another
    /// listener would move it as well.
    pub(super) async fn poison(&mut self, error: HandlerError) {
        let (shared, message) = (self.shared, self.message);
        let put = poison_queue::put(shared, message, &error);
        tokio::pin!(put);
        let put = loop {
            tokio::select! {
                biased;
                outcome = &mut put => break outcome,
                () = tokio::time::sleep_until(self.renew_at), if !self.taken_elsewhere => self.renew().await,
            }
        };
        match put {
            Ok(()) => {
                shared.counters.add(|stats| stats.poisoned += 1);
                // Concurrently: an unreachable relay must not delay the deletion, and an
                // unreachable queue must not delay the notification.
                tokio::join!(self.delete(Settled::Poisoned), poison_queue::notify(shared));
            }
            Err(error) => {
                self.report_error(Action::Poison, error);
                let delay = shared.retry_after(message.dequeue_count);
                self.release(delay).await;
            }
        }
    }

    /// The message becomes visible when its time-out ends, and only this listener can report that.
    fn report_return(&self) {
        let left = self.visible_by.saturating_duration_since(Instant::now());
        self.shared.report_hidden(left);
    }

    /// Retries a call after temporary errors, while the message is hidden. Also returns whether a
    /// try may have succeeded with its answer lost.
    async fn retry<T, F>(&self, call: impl Fn() -> F) -> (Result<T>, bool)
    where
        F: Future<Output = Result<T>>,
    {
        let mut retry = RetryState::new(&RETRIES, RetryOn::Temporary);
        loop {
            let error = match in_time(LONGEST_CALL, call()).await {
                Ok(answer) => return (Ok(answer), retry.is_in_doubt()),
                Err(error) => error,
            };
            let next = self
                .shared
                .next_wait(&mut retry, &error)
                .map(|wait| instant_after(Instant::now(), wait))
                .filter(|next| *next < self.hidden_until);
            match next {
                Some(next) if !self.shared.abandoning.is_cancelled() => {
                    tokio::time::sleep_until(next).await;
                }
                _ => return (Err(error), retry.is_in_doubt()),
            }
        }
    }
}

async fn in_time<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Err(Error::new(ErrorKind::Timeout, "no answer in time"));
    tokio::time::timeout(limit, call).await.unwrap_or_else(late)
}

impl Shared {
    fn next_wait(&self, retry: &mut RetryState, error: &Error) -> Option<Duration> {
        self.with_core(|core, _| retry.next_wait(error, &mut core.rng))
    }

    /// Returns the wait before the next attempt: doubled each time, with a random half.
    fn retry_after(&self, retry: u32) -> Duration {
        let (base, most) = self.config.retry;
        let doubled = base.saturating_mul(1 << retry.saturating_sub(1).min(20));
        let ceiling = doubled.min(most);
        let spread = self.with_core(|core, _| core.chance());
        ceiling.mul_f64(0.5 + spread / 2.0)
    }
}
