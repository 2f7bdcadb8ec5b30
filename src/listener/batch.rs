//! One run of a handler for all messages of a get.
//!
//! Each message has its own `delivery`: it is hidden, deleted and released separately. The messages
//! of a batch share a channel. The handler of each message sends the message into it, or is dropped
//! because the message was poisoned or lost before. When no sender is left, the batch handler runs
//! once for all messages that were sent, and each of them gets the result.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument as _;

use super::{
    handler::{AnyHandler, Delivery, HandlerError, HandlerResult},
    poison::Verdict,
};
use crate::{
    base::{
        causes::causes,
        sync::lock,
        task::{self, TaskOutcome},
    },
    queue::MessageId,
};

/// Handles messages many at a time. Every `Fn(Vec<Delivery>) -> impl Future<Output =
/// HandlerResult>` is one.
pub trait BatchHandler: Send + Sync + 'static {
    /// Handles the messages of one get together. `Ok` deletes all of them; an error releases all of
    /// them for a retry. An error that is or wraps [`BatchFailures`] names the messages that
    /// failed, each with its reason, and the others are deleted. On its last attempt before the
    /// poison queue a message is a batch by itself, so that it does not take others with it.
    ///
    /// [`Rejected`](super::Rejected) does not name the bad message among several: all of them are retried,
    /// each as a batch by itself. Only a message that is rejected alone goes to the poison queue at
    /// once.
    fn handle(&self, batch: Vec<Delivery>) -> impl Future<Output = HandlerResult> + Send;
}

/// Which messages of a batch failed, and why; the others are handled.
///
/// ```
/// use reveille::listener::{BatchFailures, Delivery, HandlerResult, Rejected};
///
/// async fn import(batch: Vec<Delivery>) -> HandlerResult {
///     let mut failures = BatchFailures::new();
///     for delivery in &batch {
///         if delivery.message.body.is_empty() {
///             failures.add(delivery, Rejected::because("it is empty"));
///         }
///     }
///     failures.into_result()
/// }
/// ```
///
/// Each reason decides about its message, as an error of a [`Handler`](super::Handler) does:
/// [`Rejected`](super::Rejected), [`RetryAfter`](super::RetryAfter),
/// [`Postponed`](super::Postponed). If an id on the list is not of the batch, no message counts as
/// handled: the whole batch is retried.
#[derive(Debug, Default, thiserror::Error)]
#[error("{0}")]
pub struct BatchFailures(#[source] Failures);

/// The list itself. It is the source of [`BatchFailures`], so that it is found in a wrapped error,
/// as with other errors that decide about a message.
#[derive(Debug, Default)]
struct Failures {
    failed: BTreeMap<MessageId, Failure>,
}

/// Why one message of a batch failed; its delivery takes it once.
type Failure = Mutex<Option<HandlerError>>;

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
type SharedError = Arc<dyn std::error::Error + Send + Sync>;

/// A message that is ready to be handled.
struct Entrant {
    /// The position of the message in the batch.
    place: usize,
    delivery: Delivery,
    answer: oneshot::Sender<HandlerResult>,
}

/// The error of a run that was dropped.
const GIVEN_UP: &str = "the batch was given up";

impl BatchFailures {
    /// Makes a list without a failure.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a failed message; replaces an earlier reason of the same message.
    pub fn add(&mut self, delivery: &Delivery, reason: impl Into<HandlerError>) {
        let reason = Mutex::new(Some(reason.into()));
        self.0.failed.insert(delivery.message.id.clone(), reason);
    }

    /// Returns whether no message failed.
    pub fn is_empty(&self) -> bool {
        self.0.failed.is_empty()
    }

    /// Returns the result for a batch handler: `Ok` where no message failed.
    ///
    /// # Errors
    /// The list itself, unless it is empty.
    pub fn into_result(self) -> HandlerResult {
        if self.is_empty() {
            Ok(())
        } else {
            Err(self.into())
        }
    }
}

impl Failures {
    /// Returns the list if an error or one of its causes is a list, and all its messages are of the
    /// batch.
    fn of<'a>(error: &'a HandlerError, batch: &[MessageId]) -> Option<&'a Self> {
        let failures = causes(&**error).find_map(|cause| cause.downcast_ref::<Self>())?;
        let known = |id: &MessageId| batch.contains(id);
        failures.failed.keys().all(known).then_some(failures)
    }

    /// Takes the result of one message.
    fn take(&self, id: &MessageId) -> HandlerResult {
        let Some(failure) = self.failed.get(id) else {
            return Ok(());
        };
        let reason = lock(failure).take();
        Err(reason.unwrap_or_else(|| GIVEN_UP.into()))
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.failed.keys().map(MessageId::as_str).collect();
        write!(f, "messages of a batch failed: {}", ids.join(", "))
    }
}

impl std::error::Error for Failures {}

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
    let ids: Vec<_> = batch.iter().map(|one| one.message.id.clone()).collect();
    let span = tracing::info_span!("batch", queue = %batch[0].queue, messages = batch.len());
    let outcome = match task::spawn_scoped(handler(batch).instrument(span)).await {
        TaskOutcome::Done(outcome) => outcome,
        TaskOutcome::Panicked(text) => Err(format!("panicked: {text}").into()),
    };
    if let Err(error) = &outcome
        && let Some(failures) = Failures::of(error, &ids)
    {
        for (id, answer) in std::iter::zip(&ids, answers) {
            let _ = answer.send(failures.take(id));
        }
        return;
    }
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
