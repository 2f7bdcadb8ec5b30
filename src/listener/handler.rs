//! Handlers of messages and of batches, and the errors by which they decide about a message.
//!
//! Each message of a batch has its own `delivery`: it is hidden, deleted and released separately.
//! The messages of a batch share a channel. The handler of each message sends the message into it, or
//! is dropped because the message was poisoned or lost before. When no sender is left, the batch
//! handler runs once for all messages that were sent, and each of them gets the result.

use std::{
    error::Error as StdError,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::poison::Verdict;
use crate::{
    base::{
        causes::causes,
        sync::lock,
        task::{self, TaskOutcome},
    },
    queue::Message,
    types::QueueAddress,
};

/// Why a handler did not handle a message.
pub type HandlerError = Box<dyn StdError + Send + Sync>;

/// The result of a handler: `Ok` deletes the message, an error releases it for a retry.
pub type HandlerResult = Result<(), HandlerError>;

/// Handles messages. Every `Fn(Delivery) -> impl Future<Output = HandlerResult>` is one.
pub trait Handler: Send + Sync + 'static {
    /// Handles one message. After `Ok` the message is deleted. After an error, a panic or the end
    /// of the process it is handled again, here or elsewhere: a second handling must do no harm.
    fn handle(&self, delivery: Delivery) -> impl Future<Output = HandlerResult> + Send;
}

/// A message that a handler receives.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Delivery {
    /// The queue that it came from.
    pub queue: QueueAddress,
    /// The message.
    pub message: Message,
    pub(super) lost: CancellationToken,
}

/// The error of a message that no retry would help: it goes to the poison queue at once.
///
/// ```
/// use reveille::listener::{HandlerResult, Rejected};
///
/// fn check(body: &[u8]) -> HandlerResult {
///     let _order = str::from_utf8(body).map_err(Rejected::because)?;
///     Ok(())
/// }
/// # assert!(check(b"fine").is_ok());
/// ```
///
/// It is recognised anywhere among the causes of the handler's error ([`source`]), so it may be
/// wrapped: by `anyhow` and `?`, or by an enum's `#[from]`.
///
/// [`source`]: std::error::Error::source
#[derive(Debug, thiserror::Error)]
#[error("rejected: {0}")]
pub struct Rejected(#[source] Mark);

/// The error of a message that was not tried: it is released for this delay, and nothing has
/// failed. Its get does not count towards
/// [`max_dequeue_count`](super::ListenerConfig::max_dequeue_count), as far as the queue or this
/// listener can know. Recognised as [`Rejected`] is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Postponed(#[source] Mark);

/// The error of a failed attempt with a chosen delay: the next attempt follows after this delay, at
/// most the queue's longest, instead of the listener's own wait
/// ([`ListenerConfig::retry`](super::ListenerConfig::retry)). It counts as an attempt. Recognised
/// as [`Rejected`] is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RetryAfter(#[source] Mark);

/// The verdict of such an error, as its outermost cause. Some wrappers (a boxed
/// `anyhow::Error`, a transparent variant of an enum) show the causes of the inner error, and not
/// the inner error itself.
#[derive(Debug)]
struct Mark {
    verdict: Verdict,
    reason: HandlerError,
}

/// A type-erased handler.
pub(super) type AnyHandler =
    Arc<dyn Fn(Delivery) -> BoxFuture<'static, HandlerResult> + Send + Sync>;

pub(super) fn erased(handler: impl Handler) -> AnyHandler {
    let handler = Arc::new(handler);
    Arc::new(move |delivery| {
        let handler = Arc::clone(&handler);
        Box::pin(async move { handler.handle(delivery).await })
    })
}

impl Delivery {
    /// Returns whether the message was lost: another listener may have it by now, the handler took
    /// too long, or the grace period of a shutdown is over. In the latter two cases a handler that
    /// still runs after [`wind_down`](super::ListenerConfig::wind_down) is dropped. Until then an
    /// `Ok` counts if no other listener has got the message; no other result counts.
    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Waits until the message is lost; see [`Delivery::is_lost`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

impl Rejected {
    /// Wraps the reason.
    pub fn because(reason: impl Into<HandlerError>) -> Self {
        Self(Mark::new(Verdict::Rejected, reason))
    }
}

impl Postponed {
    /// Releases the message for this delay, at most the queue's longest.
    pub fn by(delay: Duration) -> Self {
        Self(Mark::new(
            Verdict::Postponed(delay),
            format!("postponed by {delay:?}"),
        ))
    }
}

impl RetryAfter {
    /// Wraps the reason why this attempt failed.
    pub fn because(delay: Duration, reason: impl Into<HandlerError>) -> Self {
        Self(Mark::new(Verdict::RetryAfter(delay), reason))
    }
}

impl Mark {
    fn new(verdict: Verdict, reason: impl Into<HandlerError>) -> Self {
        let reason = reason.into();
        Self { verdict, reason }
    }
}

impl Verdict {
    /// Returns the verdict of an error or of the first of its causes that has one.
    pub(super) fn of(error: &HandlerError) -> Self {
        let verdict = causes(&**error).find_map(|cause| match cause.downcast_ref::<Mark>() {
            Some(mark) => Some(mark.verdict),
            None => cause
                .is::<RejectedTogether>()
                .then_some(Self::RejectedTogether),
        });
        verdict.unwrap_or(Self::Retry)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.reason, f)
    }
}

impl StdError for Mark {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.reason.source()
    }
}

impl<F, Fut> Handler for F
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send,
{
    fn handle(&self, delivery: Delivery) -> impl Future<Output = HandlerResult> + Send {
        self(delivery)
    }
}

/// Handles messages many at a time. Every `Fn(Vec<Delivery>) -> impl Future<Output =
/// HandlerResult>` is one.
pub trait BatchHandler: Send + Sync + 'static {
    /// Handles the messages of one get together. `Ok` deletes all of them; an error releases all of
    /// them for a retry. On its last attempt before the poison queue a message is a batch by itself,
    /// so that it does not take others with it.
    ///
    /// [`Rejected`] does not name the bad message among several: all of them are retried,
    /// each as a batch by itself. Only a message that is rejected alone goes to the poison queue at
    /// once.
    fn handle(&self, batch: Vec<Delivery>) -> impl Future<Output = HandlerResult> + Send;
}

/// The handler of a listener.
#[derive(Clone)]
pub(super) enum Handlers {
    /// Handles each message separately.
    Each(AnyHandler),
    /// Handles the messages of a get together.
    Together(AnyBatchHandler),
}

/// A type-erased handler of batches.
pub(super) type AnyBatchHandler =
    Arc<dyn Fn(Vec<Delivery>) -> BoxFuture<'static, HandlerResult> + Send + Sync>;

/// The run of a batch; polled concurrently with the deliveries that wait for it.
pub(super) type Run = BoxFuture<'static, ()>;

/// The error of messages that were rejected together: it is not known which of them is bad.
#[derive(Debug, thiserror::Error)]
#[error("rejected with others: {0}")]
pub(super) struct RejectedTogether(#[source] SharedError);

/// One error that all messages of a batch share; its causes carry the batch's verdict.
type SharedError = Arc<dyn StdError + Send + Sync>;

/// A message that is ready to be handled.
struct Entrant {
    /// The position of the message in the batch.
    place: usize,
    delivery: Delivery,
    answer: oneshot::Sender<HandlerResult>,
}

/// The error of a run that was dropped.
const GIVEN_UP: &str = "the batch was given up";

impl Handlers {
    pub(super) fn together(handler: impl BatchHandler) -> Self {
        let handler = Arc::new(handler);
        Self::Together(Arc::new(move |batch| {
            let handler = Arc::clone(&handler);
            Box::pin(async move { handler.handle(batch).await })
        }))
    }

    /// Returns a handler for each message of a batch, and the runs to poll concurrently. Messages
    /// that are `alone` get a run of their own.
    pub(super) fn enter(&self, alone: &[bool]) -> (Vec<AnyHandler>, Vec<Run>) {
        let handler = match self {
            Self::Each(handler) => return (vec![Arc::clone(handler); alone.len()], Vec::new()),
            Self::Together(handler) => handler,
        };
        let mut runs = Vec::new();
        let mut new_run = || {
            let (sender, entrants) = mpsc::unbounded_channel();
            runs.push(Box::pin(run(Arc::clone(handler), entrants)) as Run);
            sender
        };
        let together = new_run();
        let places = alone.iter().enumerate();
        let entries = places
            .map(|(place, alone)| entry(place, if *alone { new_run() } else { together.clone() }));
        (entries.collect(), runs)
    }
}

/// Returns the handler of one message. Dropping it releases the batch from waiting for the message.
fn entry(place: usize, batch: mpsc::UnboundedSender<Entrant>) -> AnyHandler {
    let batch = Mutex::new(Some(batch));
    Arc::new(move |delivery| {
        let (answer, answered) = oneshot::channel();
        if let Some(batch) = lock(&batch).take() {
            let _ = batch.send(Entrant {
                place,
                delivery,
                answer,
            });
        }
        Box::pin(async move { answered.await.unwrap_or_else(|_| Err(GIVEN_UP.into())) })
    })
}

/// Waits until no sender is left, handles the batch, and sends each message its result.
async fn run(handler: AnyBatchHandler, mut entering: mpsc::UnboundedReceiver<Entrant>) {
    let mut entrants = Vec::new();
    while let Some(entrant) = entering.recv().await {
        entrants.push(entrant);
    }
    if entrants.is_empty() {
        return;
    }
    // Entrants come in the order of their tasks; the batch has the order of the get.
    entrants.sort_unstable_by_key(|one| one.place);
    let entrants = entrants.into_iter().map(|one| (one.delivery, one.answer));
    let (batch, answers): (Vec<_>, Vec<_>) = entrants.unzip();
    let span = tracing::info_span!("batch", queue = %batch[0].queue, messages = batch.len());
    let outcome = match task::spawn_scoped(handler(batch).instrument(span)).await {
        TaskOutcome::Done(outcome) => outcome,
        TaskOutcome::Panicked(text) => Err(format!("panicked: {text}").into()),
    };
    let together = answers.len() > 1;
    let outcome = outcome.map_err(|error| (Verdict::of(&error), SharedError::from(error)));
    for answer in answers {
        let _ = answer.send(match &outcome {
            Ok(()) => Ok(()),
            Err((Verdict::Rejected, error)) if together => {
                Err(RejectedTogether(SharedError::clone(error)).into())
            }
            Err((_, error)) => Err(SharedError::clone(error).into()),
        });
    }
}

impl<F, Fut> BatchHandler for F
where
    F: Fn(Vec<Delivery>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send,
{
    fn handle(&self, batch: Vec<Delivery>) -> impl Future<Output = HandlerResult> + Send {
        self(batch)
    }
}
