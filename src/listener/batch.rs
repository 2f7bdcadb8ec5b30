//! One run of a handler for all messages of a get.
//!
//! Each message keeps its own way (`delivery`): hidden, deleted, given back by itself. What is shared
//! is the run: a table at which each of a batch's messages has a seat. When every seat is taken or
//! given up, by a message that was poisoned or lost before its turn, the handler runs once for those
//! who sit, and all of them get its answer.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::oneshot;

use super::{
    attempts::Verdict,
    handler::{AnyHandler, Delivery, Erased, HandlerError, HandlerResult, Handling, causes},
};
use crate::{
    queue::MessageId,
    task::{self, TaskOutcome},
};

/// Handles messages many at a time. Every `Fn(Vec<Delivery>) -> impl Future<Output =
/// HandlerResult>` is one.
pub trait BatchHandler: Send + Sync + 'static {
    /// Handles the messages of one get together: `Ok` deletes all of them, an error has all of them
    /// handed out again; an error that is or wraps [`BatchFailures`] says which of them failed, each in
    /// its own way, and the others are deleted. A message's last try before the poison queue is a batch of its own, so that
    /// it does not take the others with it.
    ///
    /// [`Rejected`](super::Rejected) does not say which of several messages is the bad one: they are handed out again
    /// as well, each as a batch of its own, and only a message that is rejected alone goes to the
    /// poison queue at once.
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
/// Each reason says what becomes of its message, as an error of a [`Handler`](super::Handler) does:
/// [`Rejected`](super::Rejected), [`RetryAfter`](super::RetryAfter),
/// [`Postponed`](super::Postponed). Where one names a message that is not of the batch, nothing is
/// taken to be handled: all of the batch are handed out again.
#[derive(Debug, Default)]
pub struct BatchFailures(Failures);

/// What makes the list recognisable that was wrapped: its cause, as with other errors that say what
/// becomes of a message.
#[derive(Debug, Default)]
struct Failures {
    failed: BTreeMap<MessageId, Failure>,
}

/// Why one message of a batch failed; told to its delivery once.
type Failure = Mutex<Option<HandlerError>>;

/// How messages are handled.
pub(super) enum Handlers {
    /// Each by itself.
    Each(AnyHandler),
    /// Those of a get together.
    Together(Arc<dyn ErasedBatch>),
}

/// A table's run; to be polled beside those who sit there.
pub(super) type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) trait ErasedBatch: Send + Sync {
    fn handle(&self, batch: Vec<Delivery>) -> Handling<'_>;
}

/// Where messages wait for each other.
struct Table(Mutex<Seats>);

struct Seats {
    /// Seats that are neither taken nor given up.
    open: usize,
    taken: Vec<Seated>,
    /// Hears once that no seat is open any more.
    full: Option<oneshot::Sender<Vec<Seated>>>,
}

struct Seated {
    /// Where its message stands in the batch.
    place: usize,
    delivery: Delivery,
    answer: oneshot::Sender<HandlerResult>,
}

/// A place for one message; given up when it is dropped.
struct Seat {
    place: usize,
    table: Arc<Table>,
    taken: AtomicBool,
}

/// One of several messages that were rejected together: nobody knows whose fault it is.
#[derive(Debug)]
pub(super) struct RejectedTogether(Shared);

/// One error, told to all of a batch.
#[derive(Debug, Clone)]
struct Shared(Arc<dyn std::error::Error + Send + Sync>);

/// The run was given up.
const GIVEN_UP: &str = "the batch was given up";

impl BatchFailures {
    /// Makes a list without a failure.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that a message failed, instead of what was noted of it before.
    pub fn add(&mut self, delivery: &Delivery, reason: impl Into<HandlerError>) {
        let reason = Mutex::new(Some(reason.into()));
        self.0.failed.insert(delivery.message.id.clone(), reason);
    }

    /// Returns whether no message failed.
    pub fn is_empty(&self) -> bool {
        self.0.failed.is_empty()
    }

    /// Returns what a batch handler is to return: `Ok` where no message failed.
    ///
    /// # Errors
    /// The list itself, unless it is empty.
    pub fn into_result(self) -> HandlerResult {
        match self.is_empty() {
            true => Ok(()),
            false => Err(self.into()),
        }
    }
}

impl Failures {
    /// Returns the list where an error or one of its causes is one, and every message on it is of
    /// the batch.
    fn of<'a>(error: &'a HandlerError, batch: &[MessageId]) -> Option<&'a Self> {
        let failures = causes(error).find_map(|cause| cause.downcast_ref::<Self>())?;
        let known = |id: &MessageId| batch.contains(id);
        failures.failed.keys().all(known).then_some(failures)
    }

    /// Takes what is said of a message.
    fn take(&self, id: &MessageId) -> HandlerResult {
        let Some(failure) = self.failed.get(id) else {
            return Ok(());
        };
        let reason = failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        Err(reason.unwrap_or_else(|| GIVEN_UP.into()))
    }
}

impl fmt::Display for BatchFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for BatchFailures {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
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
    /// Returns a handler for each message of a batch, and what is to run beside them. Those that are
    /// to be `alone` share no run.
    pub(super) fn seat(&self, alone: &[bool]) -> (Vec<AnyHandler>, Vec<Run>) {
        let handler = match self {
            Self::Each(handler) => return (vec![Arc::clone(handler); alone.len()], Vec::new()),
            Self::Together(handler) => handler,
        };
        let together = alone.iter().filter(|alone| !**alone).count();
        let (table, run) = Table::of(together, handler);
        let mut runs = vec![run];
        let seats = alone.iter().enumerate().map(|(place, alone)| {
            if !alone {
                return Seat::at(&table, place);
            }
            let (table, run) = Table::of(1, handler);
            runs.push(run);
            Seat::at(&table, place)
        });
        (seats.collect(), runs)
    }
}

impl Table {
    fn of(seats: usize, handler: &Arc<dyn ErasedBatch>) -> (Arc<Self>, Run) {
        let (full, filled) = oneshot::channel();
        let table = Self(Mutex::new(Seats {
            open: seats,
            taken: Vec::with_capacity(seats),
            full: Some(full),
        }));
        let run = run(Arc::clone(handler), filled);
        (Arc::new(table), Box::pin(run))
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats {
    /// One seat is open no more.
    fn close(&mut self) {
        self.open -= 1;
        if self.open == 0
            && let Some(full) = self.full.take()
        {
            // Where nobody runs any more, those who sit are given up with the senders they wait for.
            let _ = full.send(std::mem::take(&mut self.taken));
        }
    }
}

impl Seat {
    fn at(table: &Arc<Table>, place: usize) -> AnyHandler {
        Arc::new(Self {
            place,
            table: Arc::clone(table),
            taken: AtomicBool::new(false),
        })
    }
}

impl Erased for Seat {
    fn handle(&self, delivery: Delivery) -> Handling<'_> {
        let (answer, answered) = oneshot::channel();
        if !self.taken.swap(true, Ordering::Relaxed) {
            let mut seats = self.table.lock();
            seats.taken.push(Seated {
                place: self.place,
                delivery,
                answer,
            });
            seats.close();
        }
        Box::pin(async move { answered.await.unwrap_or_else(|_| Err(GIVEN_UP.into())) })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.taken.load(Ordering::Relaxed) {
            self.table.lock().close();
        }
    }
}

/// Waits until a table is full, handles its batch, and tells everybody.
async fn run(handler: Arc<dyn ErasedBatch>, filled: oneshot::Receiver<Vec<Seated>>) {
    let mut seated = filled.await.unwrap_or_default();
    if seated.is_empty() {
        return;
    }
    // They sat down as their tasks came; they are handed over as they were got.
    seated.sort_unstable_by_key(|one| one.place);
    let seated = seated.into_iter().map(|one| (one.delivery, one.answer));
    let (batch, answers): (Vec<_>, Vec<_>) = seated.unzip();
    let ids: Vec<_> = batch.iter().map(|one| one.message.id.clone()).collect();
    let outcome = match task::spawn_scoped(async move { handler.handle(batch).await }).await {
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
    let outcome = outcome.map_err(Told::from);
    let together = answers.len() > 1;
    for answer in answers {
        let told = outcome.as_ref().copied();
        let _ = answer.send(told.map_err(|told| told.error(together)));
    }
}

/// A batch's error, by what it says of its messages.
struct Told {
    verdict: Verdict,
    error: Shared,
}

impl From<HandlerError> for Told {
    fn from(error: HandlerError) -> Self {
        Self {
            verdict: Verdict::of(&error),
            error: Shared(error.into()),
        }
    }
}

impl Told {
    /// Returns the error for one of the messages, which says what the batch's says by its causes.
    fn error(&self, together: bool) -> HandlerError {
        let error = self.error.clone();
        match self.verdict {
            Verdict::Rejected if together => RejectedTogether(error).into(),
            _ => error.into(),
        }
    }
}

impl fmt::Display for RejectedTogether {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rejected with others: {}", self.0)
    }
}

impl std::error::Error for RejectedTogether {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Shared {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
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

impl<H: BatchHandler> ErasedBatch for H {
    fn handle(&self, batch: Vec<Delivery>) -> Handling<'_> {
        Box::pin(BatchHandler::handle(self, batch))
    }
}
