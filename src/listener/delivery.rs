//! The delivery of one message: it is handled while it is kept hidden, then deleted, released, or
//! moved to the poison queue.
//!
//! Calls with temporary errors are retried while the message is hidden. A message is renewed while
//! it is deleted or moved, so that no other listener handles or moves it as well.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{
    handler::{Delivery, HandlerError, HandlerResult},
    hooks::Action,
    poison::{Arrival, Disposition, Settled, Verdict},
    poison_queue,
    shared::{Shared, add_to_mean, in_time},
};
use crate::{
    base::{
        clock::instant_after,
        task::{self, TaskOutcome},
    },
    error::{Error, ErrorKind, Result},
    queue::{Message, Receipt, RetryConfig, RetryOn, RetryState},
};

/// The end of an attempt.
#[derive(Debug)]
enum AttemptEnd {
    Handled,
    Failed(HandlerError, Verdict),
    /// The handler did not run to its end: it is no attempt.
    Abandoned,
}

/// A message that is kept hidden.
struct InFlightMessage<'a> {
    shared: &'a Shared,
    message: &'a Message,
    receipt: Receipt,
    /// Earliest (`hidden_until`) and latest (`visible_by`) end of the time-out, by this machine's
    /// clock: the queue counts from the moment at which it served the call.
    hidden_until: Instant,
    visible_by: Instant,
    renew_at: Instant,
    lost: CancellationToken,
    /// Another listener got the message.
    taken_elsewhere: bool,
}

/// The last call to the queue for a message.
#[derive(Clone, Copy)]
enum LastCall {
    /// With what is recorded before a second try: this listener may get the message again while
    /// that try hangs.
    Delete(Option<Settled>),
    /// If not `counted`, its get was no attempt.
    Release { delay: Duration, counted: bool },
}

/// The error of a handler that did not run to its end.
const GIVEN_UP: &str = "the handler was given up";
/// A slower call has failed, or its outcome is unknown.
const LONGEST_CALL: Duration = Duration::from_secs(30);
/// A message is renewed after a third of its time-out, and each renewal may take a sixth of it: if
/// one hangs, three more fit in before the message becomes visible.
const RENEW_AFTER: u32 = 3;
const RENEW_TIMEOUT_PART: u32 = 6;
/// Retries go on while the message is hidden: a handled message should not be handled again without
/// need.
const RETRIES: RetryConfig = RetryConfig {
    tries: u32::MAX,
    base: Duration::from_millis(200),
    max: Duration::from_secs(5),
};
/// The minimum time limit of a delete.
const SHORTEST_CALL: Duration = Duration::from_secs(1);
/// A handled message that cannot be deleted is kept hidden for this long. After that its place is
/// worth more than the risk of a second handling elsewhere.
const DELETE_DEADLINE: Duration = Duration::from_secs(300);

/// Runs one message of a get that was issued at `asked` to its end. `concurrency` limits how many
/// are handled at a time.
pub(super) async fn deliver(
    shared: &Arc<Shared>,
    concurrency: &Semaphore,
    message: Message,
    arrival: Arrival,
    asked: Instant,
) {
    let timeout = shared.config.visibility_timeout;
    let mut in_flight = InFlightMessage {
        shared,
        receipt: message.receipt.clone(),
        message: &message,
        hidden_until: instant_after(asked, timeout),
        visible_by: instant_after(Instant::now(), timeout),
        renew_at: instant_after(asked, timeout / RENEW_AFTER),
        lost: CancellationToken::new(),
        taken_elsewhere: false,
    };
    let attempts = match arrival {
        Arrival::Handle(attempts) => attempts,
        Arrival::Delete(settled) => return in_flight.delete(settled).await,
        Arrival::Unreadable(fault) => return in_flight.unreadable(fault).await,
        Arrival::PoisonUntried => {
            let gets = message.dequeue_count;
            let error = format!("was got {gets} times, and not tried here");
            return in_flight.poison(error.into()).await;
        }
    };
    match in_flight.handle(concurrency).await {
        AttemptEnd::Handled => in_flight.delete(Settled::Handled).await,
        AttemptEnd::Abandoned | AttemptEnd::Failed(_, Verdict::Postponed(_))
            if in_flight.taken_elsewhere =>
        {
            shared.attempts().uncount(&message.id);
        }
        // The listener that got the message since decides about it.
        AttemptEnd::Failed(error, _) if in_flight.taken_elsewhere => {
            shared.count(|stats| stats.failed += 1);
            let text = format!("message `{}`: {error}", message.id);
            in_flight.report_error(Action::Handle, &Error::new(ErrorKind::Internal, text));
        }
        AttemptEnd::Failed(error, verdict) => in_flight.judge(error, verdict, attempts).await,
        AttemptEnd::Abandoned => {
            let verdict = Verdict::Postponed(Duration::ZERO);
            in_flight.judge(GIVEN_UP.into(), verdict, attempts).await;
        }
    }
}

impl InFlightMessage<'_> {
    /// Runs the handler when a permit is free, and keeps the message hidden the whole time.
    async fn handle(&mut self, concurrency: &Semaphore) -> AttemptEnd {
        let shared = self.shared;
        let mut permit = pin!(concurrency.acquire());
        let _permit = loop {
            tokio::select! {
                biased;
                () = shared.stopping.cancelled() => return AttemptEnd::Abandoned,
                permit = &mut permit => break permit.expect("never closed"),
                () = tokio::time::sleep_until(self.renew_at) => self.renew().await,
            }
            if self.lost.is_cancelled() {
                return AttemptEnd::Abandoned;
            }
        };
        let delivery = Delivery {
            queue: shared.queue.address().clone(),
            message: self.message.clone(),
            lost: self.lost.clone(),
        };
        let began = Instant::now();
        let running = shared.handlings.begin(&self.message.id, shared.clock.now());
        tracing::debug!("the handler begins");
        shared.hook((), |hooks| hooks.on_start(self.message));
        let end = self.run_handler(delivery, began).await;
        drop(running);
        let took = began.elapsed();
        tracing::debug!(?took, ?end, "the handler has ended");
        if !matches!(end, AttemptEnd::Abandoned) {
            shared.handling_times.observe(took);
            shared.count(|stats| add_to_mean(&mut stats.mean_handling_time, took));
        }
        let given_up = HandlerError::from(GIVEN_UP);
        let error = match &end {
            AttemptEnd::Handled => None,
            AttemptEnd::Failed(error, _) => Some(error),
            AttemptEnd::Abandoned => Some(&given_up),
        };
        shared.hook((), |hooks| hooks.on_end(self.message, error, took));
        end
    }

    /// Keeps the message hidden until its handler ends or is dropped.
    async fn run_handler(&mut self, delivery: Delivery, began: Instant) -> AttemptEnd {
        let shared = self.shared;
        // A separate task: a handler that blocks its thread does not delay a renewal, and the
        // handler's end does not cancel a renewal, whose receipt would be lost.
        let mut handling = pin!(task::spawn_scoped(
            (shared.handler)(delivery).in_current_span()
        ));
        let most = shared.config.max_handling_time;
        let mut deadline = pin!(tokio::time::sleep_until(instant_after(began, most)));
        let mut given_up = None;
        loop {
            tokio::select! {
                biased;
                ended = &mut handling => return match (attempt_end(ended), given_up) {
                    // It ended in time.
                    (AttemptEnd::Handled, _) => AttemptEnd::Handled,
                    (_, Some(given_up)) => given_up,
                    (end, None) => end,
                },
                () = shared.abandoning.cancelled(), if given_up.is_none() => {
                    given_up = Some(AttemptEnd::Abandoned);
                }
                () = &mut deadline => match given_up {
                    Some(given_up) => return given_up,
                    None => {
                        let error = format!("took longer than {most:?}").into();
                        given_up = Some(AttemptEnd::Failed(error, Verdict::Retry));
                    }
                },
                () = tokio::time::sleep_until(self.renew_at), if !self.taken_elsewhere => {
                    self.renew().await;
                    continue;
                }
            }
            self.lost.cancel();
            deadline
                .as_mut()
                .reset(instant_after(Instant::now(), shared.config.wind_down));
        }
    }

    /// Extends the message's time-out from now on.
    async fn renew(&mut self) {
        let (queue, timeout) = (&self.shared.queue, self.shared.config.visibility_timeout);
        let began = Instant::now();
        let patience = (timeout / RENEW_TIMEOUT_PART).min(LONGEST_CALL);
        let renewed = in_time(patience, "the renewal", queue.renew(&self.receipt, timeout));
        match renewed.await {
            Ok(receipt) => {
                self.receipt = receipt;
                self.hidden_until = instant_after(began, timeout);
                self.visible_by = instant_after(Instant::now(), timeout);
                self.renew_at = instant_after(began, timeout / RENEW_AFTER);
            }
            Err(error) if error.kind() == ErrorKind::Conflict => self.on_lost(),
            Err(error) => {
                self.report_error(Action::Renew, &error);
                // The outcome is unknown: the renewal may have happened.
                self.visible_by = instant_after(Instant::now(), timeout);
                // The message is still hidden, and its receipt stays valid until another listener
                // gets it.
                self.renew_at = instant_after(began, timeout / RENEW_TIMEOUT_PART);
                if self.renew_at >= self.hidden_until {
                    self.lost.cancel();
                }
            }
        }
    }

    fn on_lost(&mut self) {
        let (queue, id) = (&self.shared.queue, &self.message.id);
        tracing::info!(%queue, %id, "another listener got the message");
        self.shared.count(|stats| stats.lost += 1);
        self.taken_elsewhere = true;
        self.lost.cancel();
        // Or an earlier renewal succeeded and its answer was lost: then the message becomes visible
        // again, and only this listener can report that.
        self.shared
            .report_hidden(self.shared.config.visibility_timeout);
    }

    /// Deletes the message. During temporary errors it is kept hidden. If the deletion fails, the
    /// message is deleted without an attempt when this listener gets it again.
    async fn delete(&mut self, settled: Settled) {
        // If another listener has it, the handler may have ended because it learned that.
        let settled_here = !self.taken_elsewhere || settled == Settled::Poisoned;
        let call = LastCall::Delete(settled_here.then_some(settled));
        let (outcome, in_doubt) = self.finish(call).await;
        if outcome.is_ok() {
            tracing::debug!("the message is deleted");
            self.shared.attempts().forget(&self.message.id);
        }
        match outcome {
            Err(error) if error.kind() != ErrorKind::Conflict => {
                self.report_error(Action::Delete, &error);
                self.report_return();
            }
            // The listener that got it since handles it once more; there is nothing to do here.
            Err(_) if !in_doubt && !self.taken_elsewhere => self.on_lost(),
            Err(_) if !in_doubt => {}
            // Or an earlier try has deleted it, and its answer was lost.
            _ if settled == Settled::Handled => self.shared.count(|stats| stats.handled += 1),
            _ => {}
        }
    }

    /// Makes the last call for the message. Temporary errors are retried while the message is
    /// hidden; it is renewed while it cannot be deleted. Also returns whether a try may have
    /// succeeded with its answer lost.
    async fn finish(&mut self, call: LastCall) -> (Result<bool>, bool) {
        let (queue, timeout) = (&self.shared.queue, self.shared.config.visibility_timeout);
        let give_up = instant_after(Instant::now(), DELETE_DEADLINE);
        let deletes = matches!(call, LastCall::Delete(_));
        // A delete that hangs leaves time for a renewal.
        let patience = if deletes {
            (timeout / RENEW_AFTER).clamp(SHORTEST_CALL, LONGEST_CALL)
        } else {
            LONGEST_CALL
        };
        let mut retry = RetryState::new(&RETRIES, RetryOn::Temporary);
        loop {
            let receipt = &self.receipt;
            let called = in_time(patience, "the queue", async {
                match call {
                    LastCall::Delete(_) => queue.delete(receipt).await.map(|()| false),
                    LastCall::Release {
                        delay,
                        counted: true,
                    } => queue.release(receipt, delay).await.map(|()| false),
                    LastCall::Release { delay, .. } => queue.release_untried(receipt, delay).await,
                }
            });
            let error = match called.await {
                Ok(uncounted) => return (Ok(uncounted), retry.in_doubt),
                Err(error) => error,
            };
            if let LastCall::Delete(Some(settled)) = call {
                self.shared.attempts().settle(self.message, settled);
            }
            let now = Instant::now();
            let is_over = now >= give_up
                || now >= self.hidden_until
                || (deletes && self.taken_elsewhere)
                || self.shared.abandoning.is_cancelled();
            let wait = retry.next_wait(&error, &mut self.shared.core().rng);
            let Some(wait) = wait.filter(|_| !is_over) else {
                return (Err(error), retry.in_doubt);
            };
            let next = instant_after(now, wait);
            while deletes
                && self.renew_at <= next
                && self.renew_at < self.hidden_until
                && !self.taken_elsewhere
            {
                tokio::time::sleep_until(self.renew_at).await;
                self.renew().await;
            }
            tokio::time::sleep_until(next.min(self.hidden_until)).await;
        }
    }

    /// Decides about a message after its handler's error, and carries that out.
    async fn judge(&mut self, error: HandlerError, verdict: Verdict, attempts: u32) {
        let shared = self.shared;
        let disposition = shared.attempts().on_failed(self.message, attempts, verdict);
        if !matches!(disposition, Disposition::ReleaseUncounted(_)) {
            shared.count(|stats| stats.failed += 1);
            // A rejected message is logged when it is moved to the poison queue.
            if (verdict, disposition) != (Verdict::Rejected, Disposition::Poison) {
                let (id, gets) = (&self.message.id, self.message.dequeue_count);
                let text = format!("message `{id}`, got {gets} times: {error}");
                self.report_error(Action::Handle, &Error::new(ErrorKind::Internal, text));
            }
        }
        self.dispose(disposition, error, attempts).await;
    }

    /// Disposes of a message without a readable body; the handler is not called.
    async fn unreadable(&mut self, fault: Error) {
        let shared = self.shared;
        shared.count(|stats| stats.failed += 1);
        self.report_error(Action::Handle, &fault);
        let (disposition, untried) = {
            let mut attempts = shared.attempts();
            let disposition = attempts.on_unreadable(self.message, &fault);
            (disposition, attempts.untried(&self.message.id))
        };
        // A queue that removes such gets from its count counts none of them.
        let gets = self.message.dequeue_count.max(untried);
        self.dispose(disposition, fault.into(), gets).await;
    }

    /// Moves the message to the poison queue with its error, or releases it. The listener's own
    /// wait grows with `retry`, the number of tries.
    async fn dispose(&mut self, disposition: Disposition, error: HandlerError, retry: u32) {
        let (wait, counted) = match disposition {
            Disposition::Poison => return self.poison(error).await,
            Disposition::ReleaseUncounted(wait) => (wait, false),
            Disposition::Retry(wait) => (wait, true),
        };
        let wait = wait.unwrap_or_else(|| self.shared.retry_after(retry));
        self.release(wait, counted).await;
    }

    /// Releases the message: it becomes visible after a delay, which is reported to the relay.
    async fn release(&mut self, delay: Duration, counted: bool) {
        let delay = delay.min(self.shared.queue.limits().delay);
        let (outcome, in_doubt) = self.finish(LastCall::Release { delay, counted }).await;
        match outcome {
            Ok(is_removed) => {
                if is_removed {
                    // The queue's count equals the attempts again.
                    self.shared.attempts().count_again(&self.message.id);
                }
                tracing::debug!(?delay, "the message is released");
                return self.shared.report_hidden(delay);
            }
            // Another listener has it, or an earlier call succeeded and its answer was lost: here,
            // or inside a queue that retries. Then the message is visible after the delay.
            Err(error) if error.kind() == ErrorKind::Conflict => self.shared.report_hidden(delay),
            Err(error) => {
                self.report_error(Action::Release, &error);
                if in_doubt {
                    self.shared.report_hidden(delay);
                }
            }
        }
        self.report_return();
    }

    /// Moves the message to the poison queue. It stays hidden during the move: otherwise another
    /// listener would move it as well.
    async fn poison(&mut self, error: HandlerError) {
        let (shared, message) = (self.shared, self.message);
        let mut put = pin!(poison_queue::put(shared, message, &error));
        let put = loop {
            tokio::select! {
                biased;
                outcome = &mut put => break outcome,
                () = tokio::time::sleep_until(self.renew_at), if !self.taken_elsewhere => self.renew().await,
            }
        };
        match put {
            Ok(()) => {
                shared.count(|stats| stats.poisoned += 1);
                // Concurrently: an unreachable relay must not delay the deletion, and an
                // unreachable queue must not delay the notification.
                tokio::join!(self.delete(Settled::Poisoned), poison_queue::notify(shared));
            }
            Err(error) => {
                self.report_error(Action::Poison, &error);
                let delay = shared.retry_after(message.dequeue_count);
                self.release(delay, true).await;
            }
        }
    }

    /// The message becomes visible when its time-out ends, and only this listener can report that.
    fn report_return(&self) {
        let left = self.visible_by.saturating_duration_since(Instant::now());
        self.shared.report_hidden(left);
    }

    fn report_error(&self, action: Action, error: &Error) {
        self.shared
            .report_error(action, Some(&self.message.id), error);
    }
}

fn attempt_end(ended: TaskOutcome<HandlerResult>) -> AttemptEnd {
    match ended {
        TaskOutcome::Done(Ok(())) => AttemptEnd::Handled,
        TaskOutcome::Done(Err(error)) => {
            let verdict = Verdict::of(&error);
            AttemptEnd::Failed(error, verdict)
        }
        TaskOutcome::Panicked(text) => {
            AttemptEnd::Failed(format!("panicked: {text}").into(), Verdict::Retry)
        }
    }
}

impl Shared {
    /// Returns the wait before the next attempt: doubled each time, with a random half.
    fn retry_after(&self, retry: u32) -> Duration {
        let (base, most) = self.config.retry;
        let doubled = base.saturating_mul(1 << retry.saturating_sub(1).min(20));
        let spread = self.scaler(|_, _, chance| chance);
        doubled.min(most).mul_f64(0.5 + spread / 2.0)
    }
}
