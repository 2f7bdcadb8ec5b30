//! What is done with a message when its try has ended, or it has none: deleted, given back, or moved
//! to the poison queue.
//!
//! Calls that fail for the moment are tried again as long as the message is hidden. While a message is
//! deleted or moved it is renewed, so that no other listener handles or moves it as well.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    super::{
        attempts::{Disposition, Settled, Verdict},
        handler::HandlerError,
        hooks::Action,
        poison,
        shared::{Shared, count},
    },
    InFlightMessage, LONGEST_CALL, RENEW_AFTER, far,
};
use crate::error::{Error, ErrorKind, Result};

/// A call that is tried again while it fails for the moment.
struct Tries {
    /// A try that takes longer has failed.
    patience: Duration,
    wait: Duration,
    /// One of them may have happened, and its answer was lost.
    in_doubt: bool,
}

/// What failed for the moment is tried again within this, then within twice as long, as long as the
/// message stays hidden: what was handled is not to be handled again without need.
const TRY_AGAIN: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// A delete has as long to answer at least.
const SHORTEST_CALL: Duration = Duration::from_secs(1);
/// What became of a handler that was not waited for.
const GIVEN_UP: &str = "the handler was given up";
/// A message that was handled is kept hidden for so long while it cannot be deleted; then its place
/// is worth more than a second handling elsewhere.
const DELETE_WITHIN: Duration = Duration::from_secs(300);

impl InFlightMessage<'_> {
    /// Deletes the message: nothing is left to be done for it. Where that fails for the moment it is
    /// kept hidden meanwhile; whatever becomes of it, it is deleted on sight when it comes here again.
    pub(super) async fn delete(&mut self, settled: Settled) {
        // Where it is another's by now, the handler may have ended because it was told so.
        let settled_here = !self.gone || settled == Settled::Poisoned;
        let (outcome, in_doubt) = self
            .delete_while_hidden(settled_here.then_some(settled))
            .await;
        let conflict = |error: &Error| error.kind() == ErrorKind::Conflict;
        if outcome.is_ok() {
            self.shared.attempts().forget(&self.message.id);
        }
        match outcome {
            // Whoever has got it since handles it once more; nothing is left to do here.
            Err(error) if conflict(&error) && !in_doubt => {
                if !self.gone {
                    self.lose();
                }
            }
            Err(error) if !conflict(&error) => {
                self.complain(Action::Delete, error);
                self.comes_back();
            }
            // It may be that a try before did it, and its answer was lost.
            _ => {
                if settled == Settled::Handled {
                    count(&self.shared.counters.handled);
                }
            }
        }
    }

    /// Tries to delete the message, and renews it in between; returns besides whether a try may have
    /// happened whose answer was lost. What it is `settled` as is recorded before a second try: the
    /// message may come here again while that hangs.
    async fn delete_while_hidden(&mut self, settled: Option<Settled>) -> (Result<()>, bool) {
        let give_up = far(Instant::now(), DELETE_WITHIN);
        // One that hangs leaves time to renew.
        let timeout = self.shared.config.visibility_timeout;
        let patience = (timeout / RENEW_AFTER).clamp(SHORTEST_CALL, LONGEST_CALL);
        let mut tries = Tries::new(patience);
        loop {
            let called = self.shared.queue.delete(&self.receipt);
            let Err(error) = tries.call(called).await else {
                return (Ok(()), tries.in_doubt);
            };
            if let Some(settled) = settled {
                self.shared.attempts().settle(self.message, settled);
            }
            let now = Instant::now();
            let is_over = now >= give_up || now >= self.until || self.gone;
            if !error.is_retryable() || is_over || self.shared.abandoning.is_cancelled() {
                return (Err(error), tries.in_doubt);
            }
            let next = far(now, tries.next_wait(&error, self.shared));
            while self.renew_at <= next && !self.gone && self.renew_at < self.until {
                tokio::time::sleep_until(self.renew_at).await;
                self.renew().await;
            }
            tokio::time::sleep_until(next.min(self.until)).await;
        }
    }

    /// Does with a message that was not handled what its handler's error says.
    pub(super) async fn judge(&mut self, error: HandlerError, verdict: Verdict, attempts: u32) {
        let shared = self.shared;
        let disposition = shared.attempts().judge(self.message, attempts, verdict);
        if !matches!(disposition, Disposition::Spare(_)) {
            count(&shared.counters.failed);
            // What was rejected is told by its way to the poison queue.
            if (verdict, disposition) != (Verdict::Rejected, Disposition::Poison) {
                let (id, gets) = (&self.message.id, self.message.dequeue_count);
                let text = format!("message `{id}`, got {gets} times: {error}");
                self.complain(Action::Handle, Error::new(ErrorKind::Internal, text));
            }
        }
        self.dispose(disposition, error, attempts).await;
    }

    /// Does not bother the handler with a body that is none.
    pub(super) async fn unreadable(&mut self, fault: Error) {
        let shared = self.shared;
        count(&shared.counters.failed);
        self.complain(Action::Handle, fault.clone());
        let (disposition, untried) = {
            let mut attempts = shared.attempts();
            let disposition = attempts.unreadable(self.message, &fault);
            (disposition, attempts.untried(&self.message.id))
        };
        // A queue that takes such gets back from its count counts none of them.
        let gets = self.message.dequeue_count.max(untried);
        self.dispose(disposition, fault.into(), gets).await;
    }

    /// Gives back a message that was not tried to its end.
    pub(super) async fn abandon(&mut self) {
        let disposition = self.shared.attempts().abandon(self.message);
        self.dispose(disposition, GIVEN_UP.into(), 1).await;
    }

    /// Moves the message to the poison queue with its error, or gives it back; the listener's own
    /// wait grows with the `tries`.
    async fn dispose(&mut self, disposition: Disposition, error: HandlerError, tries: u32) {
        let own = |wait: Option<Duration>| wait.unwrap_or_else(|| self.shared.retry_after(tries));
        match disposition {
            Disposition::Poison => self.poison(error).await,
            Disposition::Spare(wait) => self.spare(own(wait)).await,
            Disposition::Retry(wait) => self.release(own(wait)).await,
        }
    }

    /// Gives back a message that was not tried: so it is recorded before, as its next get may come
    /// before the answer.
    async fn spare(&mut self, delay: Duration) {
        let delay = delay.min(self.shared.queue.limits().delay);
        let released = || self.shared.queue.release_untried(&self.receipt, delay);
        let (outcome, in_doubt) = self.retry(released).await;
        if matches!(outcome, Ok(true)) {
            // Its count is that of its attempts again.
            self.shared.attempts().count_again(&self.message.id);
        }
        self.released(outcome.map(|_| ()), in_doubt, delay);
    }

    /// Gives the message back: it is seen again after `delay`, and the relay is told.
    async fn release(&mut self, delay: Duration) {
        let delay = delay.min(self.shared.queue.limits().delay);
        let released = || self.shared.queue.release(&self.receipt, delay);
        let (outcome, in_doubt) = self.retry(released).await;
        self.released(outcome, in_doubt, delay);
    }

    fn released(&self, outcome: Result<()>, in_doubt: bool, delay: Duration) {
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

    /// Moves the message to the poison queue; it stays hidden meanwhile, or others would move it as
    /// well.
    pub(super) async fn poison(&mut self, error: HandlerError) {
        let (shared, message) = (self.shared, self.message);
        let put = poison::put(shared, message, &error);
        tokio::pin!(put);
        let put = loop {
            tokio::select! {
                biased;
                outcome = &mut put => break outcome,
                () = tokio::time::sleep_until(self.renew_at), if !self.gone => self.renew().await,
            }
        };
        match put {
            Ok(()) => {
                count(&shared.counters.poisoned);
                // A relay that is away must not keep the message from being deleted, nor a queue that
                // is away its listeners from hearing of it.
                tokio::join!(self.delete(Settled::Poisoned), poison::notify(shared));
            }
            Err(error) => {
                self.complain(Action::Poison, error);
                let delay = shared.retry_after(message.dequeue_count);
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
    async fn retry<T, F>(&self, call: impl Fn() -> F) -> (Result<T>, bool)
    where
        F: Future<Output = Result<T>>,
    {
        let mut tries = Tries::new(LONGEST_CALL);
        loop {
            match tries.call(call()).await {
                Err(error) if error.is_retryable() => {
                    let next = far(Instant::now(), tries.next_wait(&error, self.shared));
                    if next >= self.until || self.shared.abandoning.is_cancelled() {
                        return (Err(error), tries.in_doubt);
                    }
                    tokio::time::sleep_until(next).await;
                }
                outcome => return (outcome, tries.in_doubt),
            }
        }
    }
}

impl Tries {
    fn new(patience: Duration) -> Self {
        Self {
            patience,
            wait: TRY_AGAIN,
            in_doubt: false,
        }
    }

    async fn call<T>(&mut self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let late = || Err(Error::new(ErrorKind::Timeout, "no answer in time"));
        let outcome = tokio::time::timeout(self.patience, call).await;
        let outcome = outcome.unwrap_or_else(|_| late());
        self.in_doubt |= outcome
            .as_ref()
            .is_err_and(|error| error.is_retryable() && !error.kind().is_refusal());
        outcome
    }

    /// Returns the wait after an error: full jitter, on top of what the service asks for.
    fn next_wait(&mut self, error: &Error, shared: &Shared) -> Duration {
        let wait = self.wait;
        self.wait = (wait * 2).min(LONGEST_WAIT);
        let asked = error.retry_after().unwrap_or_default();
        asked.saturating_add(wait.mul_f64(shared.ask(|core, _| core.chance())))
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
