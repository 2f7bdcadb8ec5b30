//! A subscriber's stream as a tokio stream: polls the hub's machine, and sleeps until its next
//! time.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use futures_core::Stream;
use tokio::time::Sleep;
use tracing::Span;

use super::RelayInner;
use crate::{
    base::{
        clock::Tick,
        task::{Work, poll_budget, spend},
    },
    relay::hub::{Filled, StreamAction, SubscriberStream, WakeSink},
    types::SubscribeEvent,
};

/// One subscriber's messages, with Wakes in the form of `S`. Drop ends the subscription.
pub(crate) struct MessageStream<S> {
    stream: SubscriberStream,
    shared: Arc<RelayInner>,
    sleep: Pin<Box<Sleep>>,
    /// When the sleep ends.
    until: Tick,
    /// Filled with the next Wake.
    sink: S,
    /// Entered by each poll.
    span: Span,
}

/// A message of a stream.
pub(crate) enum Message<S> {
    Event(SubscribeEvent),
    Wake(S),
}

impl<S> MessageStream<S> {
    pub(super) fn new(
        stream: SubscriberStream,
        shared: Arc<RelayInner>,
        sink: S,
        span: Span,
    ) -> Self {
        let until = shared.clock.now();
        let sleep = Box::pin(tokio::time::sleep_until(shared.clock.instant(until)));
        Self {
            stream,
            shared,
            sleep,
            until,
            sink,
            span,
        }
    }

    fn note(&self, event: &SubscribeEvent) {
        match event {
            SubscribeEvent::Heartbeat { .. } => {
                tracing::trace!("a heartbeat is sent");
                let counters = &self.shared.counters;
                counters.heartbeats.fetch_add(1, Ordering::Relaxed);
            }
            SubscribeEvent::Goodbye(goodbye) => {
                tracing::debug!(reason = ?goodbye.reason, "a Goodbye is sent");
            }
            _ => {}
        }
    }

    fn count(&self, filled: &Filled) {
        let counters = &self.shared.counters;
        counters.wakes.fetch_add(1, Ordering::Relaxed);
        counters
            .entries
            .fetch_add(filled.entries as u64, Ordering::Relaxed);
        counters
            .notifications
            .fetch_add(filled.notifications, Ordering::Relaxed);
        if let Some(accepted_at) = filled.accepted_at {
            let waited = self.shared.clock.now().since(accepted_at);
            counters.wake_latency.observe(waited);
        }
    }
}

impl<S: WakeSink + Default + Unpin> Stream for MessageStream<S> {
    type Item = Message<S>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Message<S>>> {
        let this = &mut *self;
        std::task::ready!(poll_budget(cx));
        let _entered = this.span.enter();
        loop {
            let now = this.shared.clock.now();
            let draining = this.shared.draining.load(Ordering::Acquire);
            let next = this
                .stream
                .next_into(now, draining, cx.waker(), &mut this.sink);
            match next {
                StreamAction::Wake(filled) => {
                    tracing::debug!(
                        entries = filled.entries,
                        notifications = filled.notifications,
                        "a Wake is sent"
                    );
                    this.count(&filled);
                    spend(Work::Message(filled.entries));
                    let wake = std::mem::take(&mut this.sink);
                    return Poll::Ready(Some(Message::Wake(wake)));
                }
                StreamAction::Send(event) => {
                    this.note(&event);
                    return Poll::Ready(Some(Message::Event(event)));
                }
                StreamAction::End => return Poll::Ready(None),
                StreamAction::Yield => {
                    // Woken after other tasks have run. An immediate wake would make the connection
                    // poll this stream again at once.
                    _ = std::pin::pin!(tokio::task::yield_now()).poll(cx);
                    return Poll::Pending;
                }
                StreamAction::Wait(at) => {
                    // Read again after the waker is registered: a drain that began before did not
                    // wake this task.
                    if !draining && this.shared.draining.load(Ordering::Acquire) {
                        continue;
                    }
                    // A sleep that ends sooner is left alone. Each Wake postpones the heartbeat,
                    // and moving the timer every time would cost more than one needless poll.
                    if at < this.until || this.until <= now {
                        this.until = at;
                        this.sleep.as_mut().reset(this.shared.clock.instant(at));
                    }
                    std::task::ready!(this.sleep.as_mut().poll(cx));
                    this.until = this.until.min(now);
                }
            }
        }
    }
}

impl<S> Drop for MessageStream<S> {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        tracing::debug!("the stream has ended");
        self.stream.close(self.shared.clock.now());
    }
}
