//! A listener's messages as a stream, for programs that pull.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};

use super::{
    Listener, ListenerBuilder, ListenerStats,
    handler::{Delivery, HandlerError, HandlerResult, Postponed},
};
use crate::error::Result;

/// The messages of a [`Listener`], each kept hidden until it is done.
///
/// A message counts as handled from its get on, also while it waits to be taken. So set
/// [`max_tasks`](super::ListenerConfig::max_tasks) and
/// [`dequeue_batch_size`](super::ListenerConfig::dequeue_batch_size) to what the program works on at
/// one time. Dropping the stream ends the listener at once; [`Messages::shutdown`] releases the
/// messages that were not taken.
#[derive(Debug)]
pub struct Messages {
    offered: mpsc::Receiver<Received>,
    listener: Listener,
}

/// A message taken from a stream. Dropping it without `done` or `failed` counts as a failure.
#[derive(Debug)]
pub struct Received {
    /// The message; it may become lost.
    pub delivery: Delivery,
    answer: oneshot::Sender<HandlerResult>,
}

impl ListenerBuilder {
    /// Starts the listener, and returns its messages as a stream.
    ///
    /// # Errors
    /// As [`ListenerBuilder::start`].
    pub async fn start_stream(self) -> Result<Messages> {
        let (offer, offered) = mpsc::channel(1);
        let handler = move |delivery: Delivery| {
            let offer = offer.clone();
            async move {
                let (answer, answered) = oneshot::channel();
                if offer.send(Received { delivery, answer }).await.is_err() {
                    return Err(Postponed::by(Duration::ZERO).into());
                }
                match answered.await {
                    Ok(answer) => answer,
                    Err(_) if offer.is_closed() => Err(Postponed::by(Duration::ZERO).into()),
                    Err(_) => Err("the message was dropped without `done` or `failed`".into()),
                }
            }
        };
        let listener = self.start(handler).await?;
        Ok(Messages { offered, listener })
    }
}

impl Messages {
    /// Waits for the next message; `None` when the listener has ended.
    ///
    /// # Cancel safety
    /// Safe: a message that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Option<Received> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Returns the listener.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Releases the messages that were not taken, waits for the others, and ends the listener, as
    /// [`Listener::shutdown`] does.
    pub async fn shutdown(self) -> ListenerStats {
        // First: otherwise this listener would get the released messages again.
        self.listener.shared.stop();
        drop(self.offered);
        self.listener.shutdown().await
    }
}

impl Received {
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
                // The listener has given it up.
                Some(received) if received.answer.is_closed() => {}
                received => return Poll::Ready(received),
            }
        }
    }
}
