//! One message's way: handled while it is kept hidden, then deleted, given back, or moved to the
//! poison queue.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    batch::RejectedTogether,
    handler::{AnyHandler, Delivery, HandlerError, HandlerResult, Postponed, Rejected},
    hooks::Action,
    poison,
    shared::{Shared, count},
};
use crate::{
    error::{Error, ErrorKind, Result},
    queue::{Message, Receipt},
    task::{self, Ended},
};

/// What came of a message.
enum Outcome {
    Handled,
    Failed(HandlerError),
    /// No further try would help.
    Rejected(HandlerError),
    /// That, of a batch: it may be another's fault.
    Suspected(HandlerError),
    /// Not tried.
    Postponed(Duration),
    /// Nobody waits for it any longer.
    Abandoned,
}

/// A message that is kept hidden.
struct Held<'a> {
    shared: &'a Shared,
    message: &'a Message,
    /// Its gets so far but those that were no try, as far as this listener knows.
    tries: u32,
    receipt: Receipt,
    /// It stays hidden until then at least, and until then at most, by our clock: the queue counts
    /// from when it served the call.
    until: Instant,
    back_by: Instant,
    renew_at: Instant,
    lost: CancellationToken,
    /// Somebody else has got it.
    gone: bool,
}

/// What failed for the moment is tried again within this, then within twice as long, as long as the
/// message stays hidden: what was handled is not to be handled again without need.
const TRY_AGAIN: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// A call that takes longer has failed, or nobody knows.
const LONGEST_CALL: Duration = Duration::from_secs(30);

/// Sees one message through. `turns` bounds how many are handled at a time.
pub(super) async fn deliver(
    shared: &Arc<Shared>,
    turns: &Semaphore,
    message: Message,
    handler: AnyHandler,
    asked: Instant,
) {
    let timeout = shared.config.visibility_timeout;
    let mut held = Held {
        shared,
        receipt: message.receipt.clone(),
        message: &message,
        tries: shared.notes().tries(&message),
        until: far(asked, timeout),
        back_by: far(Instant::now(), timeout),
        renew_at: far(asked, timeout / 2),
        lost: CancellationToken::new(),
        gone: false,
    };
    if let Err(fault) = message.payload() {
        // Nobody waits for it in vain.
        drop(handler);
        return held.unreadable(fault).await;
    }
    if held.tries > shared.config.max_dequeue_count && shared.poison.is_some() {
        drop(handler);
        let tries = held.tries - 1;
        let error = format!("was got {tries} times, and never handled to its end");
        return held.poison(error.into()).await;
    }
    match held.handle(turns, handler).await {
        Outcome::Handled => held.delete().await,
        // Whoever has got it since judges it.
        Outcome::Failed(error) | Outcome::Rejected(error) | Outcome::Suspected(error)
            if held.gone =>
        {
            count(&shared.counters.failed);
            let text = format!("message `{}`: {error}", message.id);
            held.complain(Action::Handle, Error::new(ErrorKind::Internal, text));
        }
        Outcome::Failed(error) => held.failed(error).await,
        Outcome::Suspected(error) => {
            shared.notes().suspect(&message.id);
            held.failed(error).await;
        }
        Outcome::Rejected(error) => {
            count(&shared.counters.failed);
            match shared.poison.is_some() {
                true => held.poison(error).await,
                false => held.failed(error).await,
            }
        }
        Outcome::Postponed(delay) => held.spare(delay).await,
        Outcome::Abandoned if held.gone => shared.notes().spare(&message.id),
        Outcome::Abandoned => held.spare(Duration::ZERO).await,
    }
}

impl Held<'_> {
    /// Runs the handler when it is its turn, and keeps the message hidden all the while.
    async fn handle(&mut self, turns: &Semaphore, handler: AnyHandler) -> Outcome {
        let shared = self.shared;
        let turn = turns.acquire();
        tokio::pin!(turn);
        let _turn = loop {
            tokio::select! {
                biased;
                () = shared.stopping.cancelled() => return Outcome::Abandoned,
                turn = &mut turn => break turn.expect("never closed"),
                () = tokio::time::sleep_until(self.renew_at) => self.renew().await,
            }
            if self.lost.is_cancelled() {
                return Outcome::Abandoned;
            }
        };
        let began = Instant::now();
        let outcome = self.run_handler(began, handler).await;
        shared.counters.handling.add(began.elapsed());
        outcome
    }

    async fn run_handler(&mut self, began: Instant, handler: AnyHandler) -> Outcome {
        let shared = self.shared;
        let delivery = Delivery::new(
            shared.queue.address().clone(),
            self.message.clone(),
            self.lost.clone(),
        );
        // A task of its own: a handler that blocks its thread does not keep the message from being
        // renewed, and its end does not cut off a renewal whose receipt would be lost with it.
        let handling = task::attached(async move { handler.handle(delivery).await });
        tokio::pin!(handling);
        let most = shared.config.max_handling_time;
        let overdue = tokio::time::sleep_until(far(began, most));
        tokio::pin!(overdue);
        let given_up = loop {
            tokio::select! {
                biased;
                ended = &mut handling => return outcome(ended),
                () = shared.abandoning.cancelled() => break Outcome::Abandoned,
                () = &mut overdue => {
                    break Outcome::Failed(format!("took longer than {most:?}").into());
                }
                () = tokio::time::sleep_until(self.renew_at), if !self.gone => self.renew().await,
            }
        };
        self.lost.cancel();
        let latest = tokio::time::sleep_until(far(Instant::now(), shared.config.wind_down));
        tokio::pin!(latest);
        loop {
            tokio::select! {
                biased;
                ended = &mut handling => match outcome(ended) {
                    // Just in time.
                    Outcome::Handled => return Outcome::Handled,
                    _ => return given_up,
                },
                () = &mut latest => return given_up,
                () = tokio::time::sleep_until(self.renew_at), if !self.gone => self.renew().await,
            }
        }
    }

    /// Keeps the message hidden for one more time-out from now on.
    async fn renew(&mut self) {
        let (queue, timeout) = (&self.shared.queue, self.shared.config.visibility_timeout);
        let began = Instant::now();
        let patience = (timeout / 2).min(LONGEST_CALL);
        let renewed = tokio::time::timeout(patience, queue.renew(&self.receipt, timeout)).await;
        let late = || Err(Error::new(ErrorKind::Timeout, "renewing took too long"));
        match renewed.unwrap_or_else(|_| late()) {
            Ok(receipt) => {
                self.receipt = receipt;
                self.until = far(began, timeout);
                self.back_by = far(Instant::now(), timeout);
                self.renew_at = far(began, timeout / 2);
            }
            Err(error) if error.kind() == ErrorKind::Conflict => self.lose(),
            Err(error) => {
                self.complain(Action::Renew, error);
                // It may have happened all the same.
                self.back_by = far(Instant::now(), timeout);
                // Still hidden for a while; and beyond, as long as nobody else has got it.
                self.renew_at = Instant::now() + timeout / 8;
                if self.renew_at > self.until {
                    self.lost.cancel();
                }
            }
        }
    }

    fn lose(&mut self) {
        let (queue, message) = (&self.shared.queue, &self.message.id);
        tracing::info!(%queue, %message, "somebody else has got the message");
        count(&self.shared.counters.lost);
        self.gone = true;
        self.lost.cancel();
        // Or a renewal of ours did happen whose answer was lost: it comes back, and nobody else says
        // so.
        self.shared.hidden(self.shared.config.visibility_timeout);
    }

    /// Deletes the message: it was handled.
    async fn delete(&mut self) {
        let (outcome, in_doubt) = self.retry(|| self.shared.queue.delete(&self.receipt)).await;
        match outcome {
            Ok(()) => self.handled(),
            // By a try before, whose answer was lost.
            Err(error) if error.kind() == ErrorKind::Conflict && in_doubt => self.handled(),
            Err(error) if error.kind() == ErrorKind::Conflict => {
                // Whoever has got it since handles it once more; nothing is left to do here.
                if !self.gone {
                    self.lose();
                }
            }
            Err(error) => {
                self.complain(Action::Delete, error);
                self.comes_back();
            }
        }
    }

    fn handled(&self) {
        count(&self.shared.counters.handled);
        self.shared.notes().forget(&self.message.id);
    }

    async fn failed(&mut self, error: HandlerError) {
        let (shared, tries) = (self.shared, self.tries);
        count(&shared.counters.failed);
        let text = format!("message `{}`, try {tries}: {error}", self.message.id);
        self.complain(Action::Handle, Error::new(ErrorKind::Internal, text));
        if tries >= shared.config.max_dequeue_count && shared.poison.is_some() {
            return self.poison(error).await;
        }
        let delay = shared.retry_after(tries);
        self.release(delay).await;
    }

    /// Does not bother the handler with a body that is none. What passes is no fault of the message's,
    /// however often it was got meanwhile.
    async fn unreadable(&mut self, fault: Error) {
        let (shared, passes) = (self.shared, fault.is_retryable());
        count(&shared.counters.failed);
        self.complain(Action::Handle, fault.clone());
        if passes || shared.poison.is_none() {
            let delay = shared.retry_after(self.message.dequeue_count);
            return match passes {
                true => self.spare(delay).await,
                false => self.release(delay).await,
            };
        }
        self.poison(fault.into()).await;
    }

    /// Gives back a message that was not tried. Noted first, as its next get may come before the
    /// answer.
    async fn spare(&mut self, delay: Duration) {
        self.shared.notes().spare(&self.message.id);
        self.release(delay).await;
    }

    /// Gives the message back: it is seen again after `delay`, and the relay is told.
    async fn release(&mut self, delay: Duration) {
        let limits = self.shared.queue.limits();
        let delay = delay.min(limits.delay);
        let (outcome, in_doubt) = self
            .retry(|| self.shared.queue.release(&self.receipt, delay))
            .await;
        match outcome {
            Ok(()) => return self.shared.hidden(delay),
            // Another listener has it, or a call of ours happened whose answer was lost: here, or
            // inside of a queue that tries again by itself. Then it is visible after the delay.
            Err(error) if error.kind() == ErrorKind::Conflict => self.shared.hidden(delay),
            Err(error) => {
                self.complain(Action::Release, error);
                if in_doubt {
                    self.shared.hidden(delay);
                }
            }
        }
        self.comes_back();
    }

    async fn poison(&mut self, error: HandlerError) {
        match poison::put(self.shared, self.message, &error).await {
            Ok(()) => {
                count(&self.shared.counters.poisoned);
                self.shared.notes().forget(&self.message.id);
                let delete = self.retry(|| self.shared.queue.delete(&self.receipt));
                if let (Err(error), _) = delete.await {
                    if error.kind() != ErrorKind::Conflict {
                        self.complain(Action::Delete, error);
                    }
                    self.comes_back();
                }
                // Last: a relay that is away must not keep the message from being deleted.
                poison::notify(self.shared).await;
            }
            Err(error) => {
                self.complain(Action::Poison, error);
                let delay = self.shared.retry_after(self.message.dequeue_count);
                self.release(delay).await;
            }
        }
    }

    /// It becomes visible when its time is over, and nobody else says so.
    fn comes_back(&self) {
        let left = self.back_by.saturating_duration_since(Instant::now());
        self.shared.hidden(left);
    }

    /// Tries again what failed for the moment, as long as the message is ours; returns besides
    /// whether a try may have happened whose answer was lost.
    async fn retry<F>(&self, call: impl Fn() -> F) -> (Result<()>, bool)
    where
        F: Future<Output = Result<()>>,
    {
        let (mut wait, mut in_doubt) = (TRY_AGAIN, false);
        loop {
            let called = tokio::time::timeout(LONGEST_CALL, call()).await;
            let late = || Err(Error::new(ErrorKind::Timeout, "no answer in time"));
            match called.unwrap_or_else(|_| late()) {
                Err(error) if error.is_retryable() => {
                    in_doubt |= !error.kind().is_refusal();
                    // Full jitter, on top of what the service asks for.
                    let asked = error.retry_after().unwrap_or_default();
                    let spread = wait.mul_f64(self.shared.ask(|core, _| core.chance()));
                    let next = far(Instant::now(), asked.saturating_add(spread));
                    if next >= self.until || self.shared.abandoning.is_cancelled() {
                        return (Err(error), in_doubt);
                    }
                    tokio::time::sleep_until(next).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
                outcome => return (outcome, in_doubt),
            }
        }
    }

    fn complain(&self, action: Action, error: Error) {
        self.shared.complain(action, Some(&self.message.id), error);
    }
}

impl Shared {
    /// Returns the wait before the next try: doubled each time, and half of it by chance.
    fn retry_after(&self, tries: u32) -> Duration {
        let (base, most) = self.config.retry;
        let doubled = base.saturating_mul(1 << tries.saturating_sub(1).min(20));
        let ceiling = doubled.min(most);
        let spread = self.ask(|core, _| core.chance());
        ceiling.mul_f64(0.5 + spread / 2.0)
    }
}

/// Returns `span` later, or what tokio holds for the far future.
fn far(from: Instant, span: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    from + span.min(FAR)
}

fn outcome(ended: Ended<HandlerResult>) -> Outcome {
    match ended {
        Ended::Done(Ok(())) => Outcome::Handled,
        Ended::Done(Err(error)) if error.is::<Rejected>() => Outcome::Rejected(error),
        Ended::Done(Err(error)) if error.is::<RejectedTogether>() => Outcome::Suspected(error),
        Ended::Done(Err(error)) => match error.downcast_ref::<Postponed>() {
            Some(postponed) => Outcome::Postponed(postponed.delay()),
            None => Outcome::Failed(error),
        },
        Ended::Panicked(text) => Outcome::Failed(format!("panicked: {text}").into()),
    }
}
