//! One message's way: handled while it is kept hidden, then deleted, given back, or moved to the
//! poison queue.

mod settling;

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    attempts::{Arrival, Settled, Verdict},
    handler::{AnyHandler, Delivery, HandlerError, HandlerResult},
    hooks::{Action, HandlingEnd},
    shared::{Shared, count},
    stream::Pickup,
};
use crate::{
    error::{Error, ErrorKind},
    queue::{Message, Receipt},
    task::{self, TaskOutcome},
};

/// How a try ended.
enum Ending {
    Handled,
    Failed(HandlerError, Verdict),
    /// Not tried to its end: it is no attempt.
    Abandoned,
}

impl Ending {
    fn told(&self) -> HandlingEnd<'_> {
        match self {
            Self::Handled => HandlingEnd::Handled,
            Self::Abandoned | Self::Failed(_, Verdict::Postponed(_)) => HandlingEnd::NotTried,
            Self::Failed(error, _) => HandlingEnd::Failed(error),
        }
    }
}

/// A message that a get brought, and what is to be done with it.
pub(super) struct Got {
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
    /// It stays hidden until then at least, and until then at most, by our clock: the queue counts
    /// from when it served the call.
    until: Instant,
    back_by: Instant,
    renew_at: Instant,
    renewals: u32,
    lost: CancellationToken,
    /// Somebody else has got it.
    gone: bool,
}

/// A call that takes longer has failed, or nobody knows.
const LONGEST_CALL: Duration = Duration::from_secs(30);
/// A message is renewed after a third of its time-out, and each renewal has a sixth of it: where one
/// hangs, three more fit in before the message is seen again.
const RENEW_AFTER: u32 = 3;
const RENEW_PATIENCE: u32 = 6;
/// A message that was renewed so often is handled for long: from then on after half of its time-out,
/// which leaves room for two more tries. The time-out itself does not grow: the relay wakes others
/// after as long where this process ends (R8).
const LONG_HANDLING: u32 = 4;
const RENEW_LONG_AFTER: u32 = 2;

/// Sees one message through. `turns` bounds how many are handled at a time; `prefetched` is given
/// back when a reader takes the message from its stream.
pub(super) async fn deliver(
    shared: &Arc<Shared>,
    turns: &Semaphore,
    got: Got,
    handler: AnyHandler,
    prefetched: Option<OwnedSemaphorePermit>,
) {
    let Got {
        message,
        arrival,
        asked,
    } = got;
    let timeout = shared.config.visibility_timeout;
    let mut held = InFlightMessage {
        shared,
        receipt: message.receipt.clone(),
        message: &message,
        until: far(asked, timeout),
        back_by: far(Instant::now(), timeout),
        renew_at: far(asked, timeout / RENEW_AFTER),
        renewals: 0,
        lost: CancellationToken::new(),
        gone: false,
    };
    let attempts = match arrival {
        Arrival::Handle { attempts, .. } => attempts,
        Arrival::Delete(settled) => {
            // Nobody waits for it in vain.
            drop(handler);
            return held.delete(settled).await;
        }
        Arrival::Unreadable(fault) => {
            drop(handler);
            return held.unreadable(fault).await;
        }
        Arrival::PoisonUntried => {
            drop(handler);
            let gets = message.dequeue_count;
            let error = format!("was got {gets} times, and not tried here");
            return held.poison(error.into()).await;
        }
    };
    match held.handle(turns, handler, prefetched).await {
        Ending::Handled => held.delete(Settled::Handled).await,
        Ending::Abandoned | Ending::Failed(_, Verdict::Postponed(_)) if held.gone => {
            shared.attempts().uncount(&message.id);
        }
        // Whoever has got it since judges it.
        Ending::Failed(error, _) if held.gone => {
            count(&shared.counters.failed);
            let text = format!("message `{}`: {error}", message.id);
            held.complain(Action::Handle, Error::new(ErrorKind::Internal, text));
        }
        Ending::Failed(error, verdict) => held.judge(error, verdict, attempts).await,
        Ending::Abandoned => held.abandon().await,
    }
}

impl InFlightMessage<'_> {
    /// Runs the handler when it is its turn, and keeps the message hidden all the while.
    async fn handle(
        &mut self,
        turns: &Semaphore,
        handler: AnyHandler,
        prefetched: Option<OwnedSemaphorePermit>,
    ) -> Ending {
        let shared = self.shared;
        let turn = turns.acquire();
        tokio::pin!(turn);
        let _turn = loop {
            tokio::select! {
                biased;
                () = shared.stopping.cancelled() => return Ending::Abandoned,
                turn = &mut turn => break turn.expect("never closed"),
                () = tokio::time::sleep_until(self.renew_at) => self.renew().await,
            }
            if self.lost.is_cancelled() {
                return Ending::Abandoned;
            }
        };
        self.run_handler(handler, prefetched).await
    }

    async fn run_handler(
        &mut self,
        handler: AnyHandler,
        prefetched: Option<OwnedSemaphorePermit>,
    ) -> Ending {
        let shared = self.shared;
        let pickup = prefetched.is_some().then(|| Arc::new(Pickup::default()));
        let delivery = Delivery::new(
            shared.queue.address().clone(),
            self.message.clone(),
            self.lost.clone(),
            pickup.clone(),
        );
        // A task of its own: a handler that blocks its thread does not keep the message from being
        // renewed, and its end does not cut off a renewal whose receipt would be lost with it.
        let handling = task::spawn_scoped(async move { handler.handle(delivery).await });
        tokio::pin!(handling);
        if let Some(pickup) = pickup
            && let Some(ending) = self.ends_untaken(&pickup, &mut handling).await
        {
            return ending;
        }
        // What is hidden and not taken is little: one more may be got.
        drop(prefetched);
        let began = Instant::now();
        shared.hooks.on_start(self.message);
        let ending = self.see_through(handling, began).await;
        let took = began.elapsed();
        if !matches!(ending, Ending::Abandoned) {
            shared.counters.handling.add(took);
        }
        shared.hooks.on_end(self.message, &ending.told(), took);
        ending
    }

    /// Keeps the message hidden until its handler ends, or is given up.
    async fn see_through(
        &mut self,
        mut handling: Pin<&mut impl Future<Output = TaskOutcome<HandlerResult>>>,
        began: Instant,
    ) -> Ending {
        let shared = self.shared;
        let most = shared.config.max_handling_time;
        let overdue = tokio::time::sleep_until(far(began, most));
        tokio::pin!(overdue);
        let given_up = loop {
            tokio::select! {
                biased;
                ended = &mut handling => return ending(ended),
                () = shared.abandoning.cancelled() => break Ending::Abandoned,
                () = &mut overdue => {
                    break Ending::Failed(format!("took longer than {most:?}").into(), Verdict::Retry);
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
                ended = &mut handling => match ending(ended) {
                    // Just in time.
                    Ending::Handled => return Ending::Handled,
                    _ => return given_up,
                },
                () = &mut latest => return given_up,
                () = tokio::time::sleep_until(self.renew_at), if !self.gone => self.renew().await,
            }
        }
    }

    /// Waits until a reader takes the message from its stream, and returns `None`; or how it ended
    /// before: the listener stops, the message is lost, or others are to have it, because it waited
    /// for as long as handling it may take.
    async fn ends_untaken(
        &mut self,
        pickup: &Pickup,
        handling: &mut (impl Future<Output = TaskOutcome<HandlerResult>> + Unpin),
    ) -> Option<Ending> {
        let shared = self.shared;
        let overdue = far(Instant::now(), shared.config.max_handling_time);
        let overdue = tokio::time::sleep_until(overdue);
        tokio::pin!(overdue);
        loop {
            tokio::select! {
                biased;
                () = pickup.taken() => return None,
                ended = &mut *handling => return Some(ending(ended)),
                () = shared.stopping.cancelled() => break,
                () = &mut overdue => break,
                () = tokio::time::sleep_until(self.renew_at) => self.renew().await,
            }
            if self.lost.is_cancelled() {
                break;
            }
        }
        pickup.withdraw().then_some(Ending::Abandoned)
    }

    /// Keeps the message hidden for one more time-out from now on.
    async fn renew(&mut self) {
        let (queue, timeout) = (&self.shared.queue, self.shared.config.visibility_timeout);
        let began = Instant::now();
        let patience = (timeout / RENEW_PATIENCE).min(LONGEST_CALL);
        let renewed = tokio::time::timeout(patience, queue.renew(&self.receipt, timeout)).await;
        let late = || Err(Error::new(ErrorKind::Timeout, "renewing took too long"));
        match renewed.unwrap_or_else(|_| late()) {
            Ok(receipt) => {
                self.receipt = receipt;
                self.until = far(began, timeout);
                self.back_by = far(Instant::now(), timeout);
                self.renewals = self.renewals.saturating_add(1);
                let after = match self.renewals < LONG_HANDLING {
                    true => RENEW_AFTER,
                    false => RENEW_LONG_AFTER,
                };
                self.renew_at = far(began, timeout / after);
            }
            Err(error) if error.kind() == ErrorKind::Conflict => self.lose(),
            Err(error) => {
                self.complain(Action::Renew, error);
                // It may have happened all the same.
                self.back_by = far(Instant::now(), timeout);
                // Still hidden for a while; and beyond, as long as nobody else has got it.
                self.renew_at = far(began, timeout / RENEW_PATIENCE);
                if self.renew_at >= self.until {
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

    fn complain(&self, action: Action, error: Error) {
        self.shared.complain(action, Some(&self.message.id), error);
    }
}

/// Returns `span` later, or what tokio holds for the far future.
fn far(from: Instant, span: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    from + span.min(FAR)
}

fn ending(ended: TaskOutcome<HandlerResult>) -> Ending {
    match ended {
        TaskOutcome::Done(Ok(())) => Ending::Handled,
        TaskOutcome::Done(Err(error)) => {
            let verdict = Verdict::of(&error);
            Ending::Failed(error, verdict)
        }
        TaskOutcome::Panicked(text) => {
            Ending::Failed(format!("panicked: {text}").into(), Verdict::Retry)
        }
    }
}
