//! A listener's messages as a stream, for programs that would rather pull.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
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

/// Messages of a [`Listener`], each kept hidden until it is done with. Ends when the listener does.
///
/// Messages that nobody takes out stay with their handlers, so a reader that stops holds up no more
/// than [`concurrency`](super::ListenerConfig::concurrency) of each task.
///
/// Dropping it gives back at once what was not taken out, as not tried, and has the listener get
/// nothing more: nobody would take it. Shut that down as well, so that its relay knows.
#[derive(Debug)]
pub struct Messages {
    offered: mpsc::Receiver<Received>,
    // Weak: the listener holds the other end, by which this one hears of its end.
    listener: Weak<Shared>,
}

/// A message taken from a stream. Dropping it without a word counts as a failure; after the stream
/// itself was dropped it only gives the message back.
#[derive(Debug)]
pub struct Received {
    /// The message, and whether it was lost meanwhile.
    pub delivery: Delivery,
    answer: oneshot::Sender<HandlerResult>,
}

/// It was dropped without a word.
#[derive(Debug)]
struct Dropped;

impl ListenerBuilder {
    /// Starts the listener, and returns its messages as a stream besides.
    ///
    /// # Errors
    /// As [`ListenerBuilder::start`].
    pub async fn start_stream(self) -> Result<(Listener, Messages)> {
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
        self.offered.recv().await
    }
}

impl Received {
    /// It was handled: it is deleted.
    pub fn done(self) {
        let _ = self.answer.send(Ok(()));
    }

    /// It was not handled: it is handed out again.
    pub fn failed(self, error: impl Into<HandlerError>) {
        let _ = self.answer.send(Err(error.into()));
    }
}

impl Stream for Messages {
    type Item = Received;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        self.offered.poll_recv(cx)
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        // First, or what is given back would be got again by ourselves.
        if let Some(listener) = self.listener.upgrade() {
            listener.stop();
        }
    }
}

/// Nobody takes messages any more: others may have it at once.
fn not_taken() -> HandlerResult {
    Err(Postponed::by(Duration::ZERO).into())
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message was dropped without `done` or `failed`")
    }
}

impl std::error::Error for Dropped {}
