//! Handlers of messages, and the errors by which they decide about a message.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::poison::Verdict;
use crate::{base::causes::causes, queue::Message, types::QueueAddress};

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
        let mark = causes(&**error).find_map(|cause| cause.downcast_ref::<Mark>());
        mark.map_or(Self::Retry, |mark| mark.verdict)
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
