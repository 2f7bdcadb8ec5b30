//! A listener's messages as a stream, for programs that would rather pull.

use std::{
    fmt,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Listener, ListenerBuilder,
    handler::{Delivery, HandlerError, HandlerResult, Postponed},
    shared::Shared,
};
use crate::error::Result;

/// Messages of a [`Listener`], each kept hidden until it is done with. Ends when the listener does.
///
/// Few messages are got before they are taken out: 4 at a time, or
/// [`dequeue_batch_size`](super::ListenerConfig::dequeue_batch_size) where that is less. One that
/// nobody took within [`max_handling_time`](super::ListenerConfig::max_handling_time) is given back
/// as not tried; its handling begins when it is taken.
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

/// Whether a reader has taken a message from its stream, or the listener has withdrawn it: one of
/// the two happens, once.
#[derive(Debug, Default)]
pub(super) struct Pickup {
    ended: AtomicBool,
    taken: CancellationToken,
}

/// Messages of a stream that are hidden and not taken: one that the reader has next, and some more
/// so that not every message costs a get.
const PREFETCH: usize = 4;

/// It was dropped without a word.
#[derive(Debug)]
struct Dropped;

impl ListenerBuilder {
    /// Starts the listener, and returns its messages as a stream besides.
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

impl Pickup {
    /// Takes the message; returns whether it is there.
    fn take(&self) -> bool {
        let first = !self.ended.swap(true, Ordering::AcqRel);
        if first {
            self.taken.cancel();
        }
        first
    }

    /// Withdraws the message; returns whether it was not taken.
    pub(super) fn withdraw(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }

    /// Waits until the message is taken.
    pub(super) async fn taken(&self) {
        self.taken.cancelled().await;
    }
}

impl Received {
    /// Takes it from the stream; returns whether it is still there.
    fn is_taken(&self) -> bool {
        let pickup = self.delivery.pickup.as_ref();
        pickup.is_none_or(|pickup| pickup.take())
    }

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
