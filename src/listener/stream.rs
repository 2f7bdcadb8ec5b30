//! A listener's messages as a stream, for programs that pull.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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
/// The handling of a message begins before the program takes it. A message that is not taken within
/// half of [`max_handling_time`](super::ListenerConfig::max_handling_time) is released, and that is no
/// attempt. So set [`max_tasks`](super::ListenerConfig::max_tasks) and
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
    /// Either the program takes an offered message, or its handler releases it.
    is_claimed: Arc<AtomicBool>,
}

impl ListenerBuilder {
    /// Starts the listener, and returns its messages as a stream.
    ///
    /// # Errors
    /// As [`ListenerBuilder::start`].
    pub async fn start_stream(self) -> Result<Messages> {
        let (offer, offered) = mpsc::channel(1);
        let patience = self.config.max_handling_time / 2;
        let handler = move |delivery: Delivery| hand_over(offer.clone(), delivery, patience);
        let listener = self.start(handler).await?;
        Ok(Messages { offered, listener })
    }
}

/// Offers a message to the program, and returns its answer.
async fn hand_over(
    offer: mpsc::Sender<Received>,
    delivery: Delivery,
    patience: Duration,
) -> HandlerResult {
    let untaken = || HandlerResult::Err(Postponed::by(Duration::ZERO).into());
    let (answer, answered) = oneshot::channel();
    let is_claimed = Arc::new(AtomicBool::new(false));
    let received = Received {
        delivery: delivery.clone(),
        answer,
        is_claimed: Arc::clone(&is_claimed),
    };
    let mut answering = pin!(async {
        // If the stream has ended, this drops the message.
        let _ = offer.send(received).await;
        answered.await.unwrap_or_else(|_| {
            if offer.is_closed() {
                return untaken();
            }
            Err("the message was dropped without `done` or `failed`".into())
        })
    });
    tokio::select! {
        // The stream drops a lost message, which is no failure.
        biased;
        _ = tokio::time::timeout(patience, delivery.lost()) => {
            if is_claimed.swap(true, Ordering::Relaxed) {
                return answering.await;
            }
            untaken()
        }
        answer = &mut answering => answer,
    }
}

impl Messages {
    /// Waits for the next message. The listener ends with this stream, so there is always a next one to
    /// wait for.
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
    /// Returns whether the program may handle the message.
    fn take(&self) -> bool {
        let is_over = self.answer.is_closed() || self.delivery.is_lost();
        !is_over && !self.is_claimed.swap(true, Ordering::Relaxed)
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
                // Its handler has ended or releases it.
                Some(received) if !received.take() => {}
                received => return Poll::Ready(received),
            }
        }
    }
}
