//! The delivery of one message: it is handled while it is kept hidden, then deleted, released, or
//! moved to the poison queue.

mod settling;

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use super::{
    handler::{AnyHandler, Delivery, HandlerError, HandlerResult},
    hooks::{Action, HandlingEnd},
    poison::{Arrival, Settled, Verdict},
    shared::Shared,
    state::add_to_mean,
};
use crate::{
    base::{
        clock::instant_after,
        task::{self, TaskOutcome},
    },
    error::{Error, ErrorKind},
    queue::{Message, Receipt},
};

/// The end of an attempt.
enum AttemptEnd {
    Handled,
    Failed(HandlerError, Verdict),
    /// The handler did not run to its end: it is no attempt.
    Abandoned,
}

impl AttemptEnd {
    fn for_hooks(&self) -> HandlingEnd<'_> {
        match self {
            Self::Handled => HandlingEnd::Handled,
            Self::Abandoned | Self::Failed(_, Verdict::Postponed(_)) => HandlingEnd::NotTried,
            Self::Failed(error, _) => HandlingEnd::Failed(error),
        }
    }
}

impl fmt::Display for AttemptEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handled => f.write_str("handled"),
            Self::Failed(error, _) => write!(f, "failed: {error}"),
            Self::Abandoned => f.write_str("abandoned"),
        }
    }
}

/// A message that a get returned, and how to treat it.
pub(super) struct ReceivedMessage {
    pub(super) message: Message,
    pub(super) arrival: Arrival,
    /// When the get was issued.
    pub(super) asked: Instant,
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
    renewals: u32,
    lost: CancellationToken,
    /// Another listener got the message.
    taken_elsewhere: bool,
}

/// A slower call has failed, or its outcome is unknown.
const LONGEST_CALL: Duration = Duration::from_secs(30);
/// A message is renewed after a third of its time-out, and each renewal may take a sixth of it: if
/// one hangs, three more fit in before the message becomes visible.
const RENEW_AFTER: u32 = 3;
const RENEW_TIMEOUT_PART: u32 = 6;
/// After this many renewals the handling counts as long: from then on a message is renewed after
/// half of its time-out, which leaves room for two more tries. The time-out itself does not grow:
/// the relay wakes others after as long where this process ends (R8).
const LONG_HANDLING: u32 = 4;
const RENEW_LONG_AFTER: u32 = 2;

/// Returns the span of a message: all that is logged about it until it is settled, by its handler
/// too, carries the queue, the message's id and the number of its gets.
pub(super) fn span(shared: &Shared, got: &ReceivedMessage) -> Span {
    let (queue, message) = (&shared.queue, &got.message);
    tracing::info_span!("message", %queue, id = %message.id, gets = message.dequeue_count)
}

/// Runs one message to its end. `concurrency` limits how many are handled at a time.
pub(super) async fn deliver(
    shared: &Arc<Shared>,
    concurrency: &Semaphore,
    got: ReceivedMessage,
    handler: AnyHandler,
) {
    let ReceivedMessage {
        message,
        arrival,
        asked,
    } = got;
    let timeout = shared.config.visibility_timeout;
    let mut in_flight = InFlightMessage {
        shared,
        receipt: message.receipt.clone(),
        message: &message,
        hidden_until: instant_after(asked, timeout),
        visible_by: instant_after(Instant::now(), timeout),
        renew_at: instant_after(asked, timeout / RENEW_AFTER),
        renewals: 0,
        lost: CancellationToken::new(),
        taken_elsewhere: false,
    };
    let attempts = match arrival {
        Arrival::Handle { attempts, .. } => attempts,
        Arrival::Delete(settled) => {
            // Before the calls: the other messages of its batch must not wait for it.
            drop(handler);
            return in_flight.delete(settled).await;
        }
        Arrival::Unreadable(fault) => {
            drop(handler);
            return in_flight.unreadable(fault).await;
        }
        Arrival::PoisonUntried => {
            drop(handler);
            let gets = message.dequeue_count;
            let error = format!("was got {gets} times, and not tried here");
            return in_flight.poison(error.into()).await;
        }
    };
    match in_flight.handle(concurrency, handler).await {
        AttemptEnd::Handled => in_flight.delete(Settled::Handled).await,
        AttemptEnd::Abandoned | AttemptEnd::Failed(_, Verdict::Postponed(_))
            if in_flight.taken_elsewhere =>
        {
            shared.attempts().uncount(&message.id);
        }
        // The listener that got the message since decides about it.
        AttemptEnd::Failed(error, _) if in_flight.taken_elsewhere => {
            shared.counters.add(|stats| stats.failed += 1);
            let text = format!("message `{}`: {error}", message.id);
            in_flight.report_error(Action::Handle, Error::new(ErrorKind::Internal, text));
        }
        AttemptEnd::Failed(error, verdict) => in_flight.judge(error, verdict, attempts).await,
        AttemptEnd::Abandoned => in_flight.abandon().await,
    }
}

impl InFlightMessage<'_> {
    /// Runs the handler when a permit is free, and keeps the message hidden the whole time.
    async fn handle(&mut self, concurrency: &Semaphore, handler: AnyHandler) -> AttemptEnd {
        let shared = self.shared;
        let permit = concurrency.acquire();
        tokio::pin!(permit);
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
        self.run_handler(handler).await
    }

    async fn run_handler(&mut self, handler: AnyHandler) -> AttemptEnd {
        let shared = self.shared;
        let delivery = Delivery {
            queue: shared.queue.address().clone(),
            message: self.message.clone(),
            lost: self.lost.clone(),
        };
        // A separate task: a handler that blocks its thread does not delay a renewal, and the
        // handler's end does not cancel a renewal, whose receipt would be lost.
        let handling = async move { handler.handle(delivery).await };
        let handling = task::spawn_scoped(handling.in_current_span());
        tokio::pin!(handling);
        let began = Instant::now();
        let running = shared.counters.handlings.begin(shared.clock.now());
        tracing::debug!("the handler begins");
        shared.hooks.on_start(self.message);
        let ending = self.await_handler(handling, began).await;
        drop(running);
        let took = began.elapsed();
        tracing::debug!(?took, end = %ending, "the handler has ended");
        if !matches!(ending, AttemptEnd::Abandoned) {
            shared.counters.handling_times.observe(took);
            shared
                .counters
                .add(|stats| add_to_mean(&mut stats.mean_handling_time, took));
        }
        shared.hooks.on_end(self.message, &ending.for_hooks(), took);
        ending
    }

    /// Keeps the message hidden until its handler ends or is dropped.
    async fn await_handler(
        &mut self,
        mut handling: Pin<&mut impl Future<Output = TaskOutcome<HandlerResult>>>,
        began: Instant,
    ) -> AttemptEnd {
        let shared = self.shared;
        let most = shared.config.max_handling_time;
        let overdue = tokio::time::sleep_until(instant_after(began, most));
        tokio::pin!(overdue);
        let given_up = loop {
            tokio::select! {
                biased;
                ended = &mut handling => return attempt_end(ended),
                () = shared.abandoning.cancelled() => break AttemptEnd::Abandoned,
                () = &mut overdue => {
                    break AttemptEnd::Failed(format!("took longer than {most:?}").into(), Verdict::Retry);
                }
                () = tokio::time::sleep_until(self.renew_at), if !self.taken_elsewhere => self.renew().await,
            }
        };
        self.lost.cancel();
        let latest =
            tokio::time::sleep_until(instant_after(Instant::now(), shared.config.wind_down));
        tokio::pin!(latest);
        loop {
            tokio::select! {
                biased;
                ended = &mut handling => match attempt_end(ended) {
                    // It ended in time.
                    AttemptEnd::Handled => return AttemptEnd::Handled,
                    _ => return given_up,
                },
                () = &mut latest => return given_up,
                () = tokio::time::sleep_until(self.renew_at), if !self.taken_elsewhere => self.renew().await,
            }
        }
    }

    /// Extends the message's time-out from now on.
    async fn renew(&mut self) {
        let (queue, timeout) = (&self.shared.queue, self.shared.config.visibility_timeout);
        let began = Instant::now();
        let patience = (timeout / RENEW_TIMEOUT_PART).min(LONGEST_CALL);
        let renewed = tokio::time::timeout(patience, queue.renew(&self.receipt, timeout)).await;
        let late = || Err(Error::new(ErrorKind::Timeout, "renewing took too long"));
        match renewed.unwrap_or_else(|_| late()) {
            Ok(receipt) => {
                self.receipt = receipt;
                self.hidden_until = instant_after(began, timeout);
                self.visible_by = instant_after(Instant::now(), timeout);
                self.renewals = self.renewals.saturating_add(1);
                let after = if self.renewals < LONG_HANDLING {
                    RENEW_AFTER
                } else {
                    RENEW_LONG_AFTER
                };
                self.renew_at = instant_after(began, timeout / after);
            }
            Err(error) if error.kind() == ErrorKind::Conflict => self.on_lost(),
            Err(error) => {
                self.report_error(Action::Renew, error);
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
        self.shared.counters.add(|stats| stats.lost += 1);
        self.taken_elsewhere = true;
        self.lost.cancel();
        // Or an earlier renewal succeeded and its answer was lost: then the message becomes visible
        // again, and only this listener can report that.
        self.shared
            .report_hidden(self.shared.config.visibility_timeout);
    }

    fn report_error(&self, action: Action, error: Error) {
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
