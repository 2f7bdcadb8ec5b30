//! A listener's messages as a stream, for programs that would rather pull.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};

use super::{
    Listener, ListenerBuilder,
    handler::{Delivery, HandlerError, HandlerResult},
};
use crate::error::Result;

/// Messages of a [`Listener`], each kept hidden until it is done with. Ends when the listener does.
///
/// Messages that nobody takes out stay with their handlers, so a reader that stops holds up no more
/// than [`concurrency`](super::ListenerConfig::concurrency) of each task.
#[derive(Debug)]
pub struct Messages(mpsc::Receiver<Received>);

/// A message taken from a stream. Dropping it without a word counts as a failure.
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
                    offer.send(Received { delivery, answer }).await?;
                    answered.await.unwrap_or_else(|_| Err(Dropped.into()))
                }
            })
            .await?;
        Ok((listener, Messages(take)))
    }
}

impl Messages {
    /// Waits for the next message; `None` when the listener has ended.
    ///
    /// # Cancel safety
    /// Safe: a message that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Option<Received> {
        self.0.recv().await
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
        self.0.poll_recv(cx)
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message was dropped without `done` or `failed`")
    }
}

impl std::error::Error for Dropped {}
