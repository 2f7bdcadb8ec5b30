//! What is done with a message.

use std::{
    error::Error as StdError,
    fmt::{self, Debug},
    future::Future,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{attempts::Verdict, batch::RejectedTogether, stream::Pickup};
use crate::{queue::Message, words::QueueAddress};

/// Why a handler did not handle a message.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// What a handler returns: `Ok` deletes the message, an error has it handed out again.
pub type HandlerResult = Result<(), HandlerError>;

/// Handles messages. Every `Fn(Delivery) -> impl Future<Output = HandlerResult>` is one.
pub trait Handler: Send + Sync + 'static {
    /// Handles one message. It is deleted after that returned `Ok`. After an error, a panic or the
    /// end of the process it is handed out again, here or elsewhere: handle it in such a way that a
    /// second time does no harm.
    fn handle(&self, delivery: Delivery) -> impl Future<Output = HandlerResult> + Send;
}

/// A message on its way through a handler.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Delivery {
    /// The queue that it came from.
    pub queue: QueueAddress,
    /// The message.
    pub message: Message,
    lost: CancellationToken,
    /// Of a stream's message: a reader has to take it.
    pub(super) pickup: Option<Arc<Pickup>>,
}

/// Says that no further try would help: the message goes to the poison queue at once.
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
/// It is recognised anywhere among the causes of the handler's error ([`source`]), so that it may be
/// wrapped on its way: by `anyhow` and `?`, by an enum's `#[from]`.
///
/// [`source`]: std::error::Error::source
#[derive(Debug)]
pub struct Rejected(Mark);

/// Says that the message was not tried: it is handed out again after a while, here or elsewhere, and
/// nothing has failed. Its get does not count towards
/// [`max_dequeue_count`](super::ListenerConfig::max_dequeue_count), as far as the queue or this
/// listener can know. Recognised as [`Rejected`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Postponed(NotTried);

/// Says that this try failed, and when the next one is to be: after this span, or after the queue's
/// longest delay, and not after the wait that the listener would choose
/// ([`ListenerConfig::retry`](super::ListenerConfig::retry)). It counts as a try. Recognised as
/// [`Rejected`] is.
#[derive(Debug)]
pub struct RetryAfter(Mark);

/// What became of a message, for handlers that would rather return a value than an error.
///
/// ```
/// use std::time::Duration;
/// use reveille::listener::{Delivery, HandlerResult, Outcome};
///
/// async fn handle(job: Delivery) -> HandlerResult {
///     let outcome = match &*job.message.body {
///         b"" => Outcome::Reject("it is empty".into()),
///         b"busy" => Outcome::RetryAfter(Duration::from_secs(90), "the mill is busy".into()),
///         _ => Outcome::Done,
///     };
///     outcome.into()
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// It is handled: it is deleted.
    Done,
    /// This try failed: it is handed out again, later each time, and goes to the poison queue after
    /// its last try.
    Retry(HandlerError),
    /// The same, handed out again after so long.
    RetryAfter(Duration, HandlerError),
    /// No further try would help: it goes to the poison queue at once.
    Reject(HandlerError),
    /// It was not tried: it is handed out again after so long, and nothing has failed.
    Postpone(Duration),
}

/// What makes an error recognisable that was wrapped: its outermost cause. Wrappers such as
/// `anyhow::Error` as a boxed error, or a transparent variant of an enum, show the causes of what
/// they hold, and not itself.
#[derive(Debug)]
struct Mark {
    verdict: Verdict,
    reason: HandlerError,
}

/// The same of a message that is postponed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NotTried(Duration);

/// Causes that are looked at; a chain may be a circle.
const DEEPEST: usize = 64;

/// A handler without its type.
pub(super) type AnyHandler = Arc<dyn Erased>;

pub(super) type Handling<'a> = Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;

pub(super) trait Erased: Send + Sync {
    fn handle(&self, delivery: Delivery) -> Handling<'_>;
}

impl Delivery {
    pub(super) fn new(
        queue: QueueAddress,
        message: Message,
        lost: CancellationToken,
        pickup: Option<Arc<Pickup>>,
    ) -> Self {
        Self {
            queue,
            message,
            lost,
            pickup,
        }
    }

    /// Returns whether the message was lost: somebody else may have it by now, the handler has taken
    /// too long, or the listener shuts down and will wait no longer. A handler that still runs
    /// [`wind_down`](super::ListenerConfig::wind_down) after one of the latter two is dropped. An
    /// `Ok` that it returns until then counts if nobody else has got the message; any other outcome
    /// does not.
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
        Self(Mark {
            verdict: Verdict::Rejected,
            reason: reason.into(),
        })
    }
}

impl Postponed {
    /// Makes it seen again after this, or after the queue's longest delay.
    pub fn by(delay: Duration) -> Self {
        Self(NotTried(delay))
    }

    /// Returns after how long it is seen again.
    pub fn delay(self) -> Duration {
        self.0.0
    }
}

impl RetryAfter {
    /// Wraps the reason why this try failed.
    pub fn because(delay: Duration, reason: impl Into<HandlerError>) -> Self {
        Self(Mark {
            verdict: Verdict::RetryAfter(delay),
            reason: reason.into(),
        })
    }
}

impl From<Outcome> for HandlerResult {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Ok(()),
            Outcome::Retry(reason) => Err(reason),
            Outcome::RetryAfter(delay, reason) => Err(RetryAfter::because(delay, reason).into()),
            Outcome::Reject(reason) => Err(Rejected::because(reason).into()),
            Outcome::Postpone(delay) => Err(Postponed::by(delay).into()),
        }
    }
}

impl Verdict {
    /// Returns what an error or the first of its causes that says something says.
    pub(super) fn of(error: &HandlerError) -> Self {
        causes(error).find_map(Self::of_one).unwrap_or(Self::Retry)
    }

    fn of_one(error: &(dyn StdError + 'static)) -> Option<Self> {
        if error.is::<RejectedTogether>() {
            return Some(Self::RejectedTogether);
        }
        if let Some(NotTried(delay)) = error.downcast_ref() {
            return Some(Self::Postponed(*delay));
        }
        error.downcast_ref().map(|mark: &Mark| mark.verdict)
    }
}

/// Returns an error and its causes.
pub(super) fn causes(error: &HandlerError) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    let error: &(dyn StdError + 'static) = &**error;
    std::iter::successors(Some(error), cause_of).take(DEEPEST)
}

fn cause_of<'a>(error: &&'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    (*error).source()
}

/// Returns an error's text with those of its causes, each once: many errors repeat their cause's.
pub(super) fn text_of(error: &HandlerError) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), cause_of);
    for cause in causes.take(DEEPEST) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

impl fmt::Display for Postponed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for Postponed {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rejected: {}", self.0.reason)
    }
}

impl StdError for Rejected {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Display for RetryAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for RetryAfter {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
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

impl fmt::Display for NotTried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postponed by {:?}", self.0)
    }
}

impl StdError for NotTried {}

impl<F, Fut> Handler for F
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send,
{
    fn handle(&self, delivery: Delivery) -> impl Future<Output = HandlerResult> + Send {
        self(delivery)
    }
}

impl<H: Handler> Erased for H {
    fn handle(&self, delivery: Delivery) -> Handling<'_> {
        Box::pin(Handler::handle(self, delivery))
    }
}
