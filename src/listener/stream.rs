//! A listener's messages as a stream, for programs that pull.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};

use super::{
    Listener, ListenerBuilder,
    handler::{Delivery, HandlerError, HandlerResult, Postponed},
    shared::Shared,
};
use crate::error::Result;

/// The messages of a [`Listener`], each kept hidden until it is done. Ends with the listener.
///
/// Few messages are got before they are taken: at most 4, or
/// [`dequeue_batch_size`](super::ListenerConfig::dequeue_batch_size) if that is less. The handling of a
/// message begins when it is taken. A message that is not taken within
/// [`max_handling_time`](super::ListenerConfig::max_handling_time) is released as not tried.
///
/// Dropping the stream releases all messages that were not taken, as not tried, and stops the
/// listener from getting more. Shut the listener down as well, so that it reports to its relay.
#[derive(Debug)]
pub struct Messages {
    offered: mpsc::Receiver<Received>,
    // Weak: the listener owns the sender, and the stream ends when that is dropped.
    listener: Weak<Shared>,
}

/// A message taken from a stream. Dropping it without `done` or `failed` counts as a failure; after
/// the stream was dropped it only releases the message.
#[derive(Debug)]
pub struct Received {
    /// The message; it may become lost.
    pub delivery: Delivery,
    answer: oneshot::Sender<HandlerResult>,
}

/// The number of a stream's messages that are hidden and not taken: the reader's next message, and
/// some more so that not every message costs a get.
const PREFETCH: usize = 4;

/// The error of a message that was dropped without `done` or `failed`.
#[derive(Debug)]
struct Dropped;

impl ListenerBuilder {
    /// Starts the listener, and returns it with its messages as a stream.
    ///
    /// # Errors
    /// As [`ListenerBuilder::start`].
    pub async fn start_stream(mut self) -> Result<(Listener, Messages)> {
        self.prefetch = Some(PREFETCH.min(self.config.dequeue_batch_size).max(1));
        let (offer, take) = mpsc::channel(1);
        let listener = self
            .start(move |delivery: Delivery| {
                let offer = offer.clone();
                async move {
                    let (answer, answered) = oneshot::channel();
                    if offer.send(Received { delivery, answer }).await.is_err() {
                        return not_taken();
                    }
                    match answered.await {
                        Ok(answer) => answer,
                        Err(_) if offer.is_closed() => not_taken(),
                        Err(_) => Err(Dropped.into()),
                    }
                }
            })
            .await?;
        let messages = Messages {
            offered: take,
            listener: Arc::downgrade(&listener.shared),
        };
        Ok((listener, messages))
    }
}

impl Messages {
    /// Waits for the next message; `None` when the listener has ended.
    ///
    /// # Cancel safety
    /// Safe: a message that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Option<Received> {
        loop {
            let received = self.offered.recv().await?;
            if received.is_taken() {
                return Some(received);
            }
        }
    }
}

impl Received {
    /// Takes the message from the stream; returns false if it was withdrawn.
    fn is_taken(&self) -> bool {
        let pickup = self.delivery.pickup.as_ref();
        pickup.is_none_or(|pickup| pickup.take())
    }

    /// Ends the handling: the message is deleted.
    pub fn done(self) {
        let _ = self.answer.send(Ok(()));
    }

    /// Ends the handling with an error: the message is retried.
    pub fn failed(self, error: impl Into<HandlerError>) {
        let _ = self.answer.send(Err(error.into()));
    }
}

impl Stream for Messages {
    type Item = Received;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        loop {
            match ready!(self.offered.poll_recv(cx)) {
                Some(received) if !received.is_taken() => {}
                received => return Poll::Ready(received),
            }
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        // First: otherwise this listener would get the released messages again.
        if let Some(listener) = self.listener.upgrade() {
            listener.stop();
        }
    }
}

/// The stream was dropped: another listener may get the message at once.
fn not_taken() -> HandlerResult {
    Err(Postponed::by(Duration::ZERO).into())
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message was dropped without `done` or `failed`")
    }
}

impl std::error::Error for Dropped {}
