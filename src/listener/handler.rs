//! What is done with a message.

use std::{
    fmt::{self, Debug},
    future::Future,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio_util::sync::CancellationToken;

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
#[derive(Debug)]
pub struct Rejected(HandlerError);

/// Says that the message was not tried: it is handed out again after a while, here or elsewhere, and
/// nothing has failed. Its get counts towards
/// [`max_dequeue_count`](super::ListenerConfig::max_dequeue_count) with other listeners only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Postponed(Duration);

/// A handler without its type.
pub(super) type AnyHandler = Arc<dyn Erased>;

pub(super) type Handling<'a> = Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;

pub(super) trait Erased: Send + Sync {
    fn handle(&self, delivery: Delivery) -> Handling<'_>;
}

impl Delivery {
    pub(super) fn new(queue: QueueAddress, message: Message, lost: CancellationToken) -> Self {
        Self {
            queue,
            message,
            lost,
        }
    }

    /// Returns whether the message was lost: somebody else may have it by now, the handler has taken
    /// too long, or the listener shuts down and will wait no longer. A handler that still runs
    /// [`wind_down`](super::ListenerConfig::wind_down) after one of the latter two is dropped. What
    /// it returns until then counts only if nobody else has got the message.
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
        Self(reason.into())
    }

    /// Returns the reason.
    pub(super) fn into_reason(self) -> HandlerError {
        self.0
    }
}

impl Postponed {
    /// Makes it seen again after this, or after the queue's longest delay.
    pub fn by(delay: Duration) -> Self {
        Self(delay)
    }

    /// Returns after how long it is seen again.
    pub fn delay(self) -> Duration {
        self.0
    }
}

impl fmt::Display for Postponed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postponed by {:?}", self.0)
    }
}

impl std::error::Error for Postponed {}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rejected: {}", self.0)
    }
}

impl std::error::Error for Rejected {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
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

impl<H: Handler> Erased for H {
    fn handle(&self, delivery: Delivery) -> Handling<'_> {
        Box::pin(Handler::handle(self, delivery))
    }
}
