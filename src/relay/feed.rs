//! A feed as a tokio stream: asks the machine when it is polled, and wakes when it said to.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use futures_core::Stream;
use tokio::time::Sleep;

use super::Shared;
use crate::{
    clock::Tick,
    hub::{Feed, Filled, Next, WakeSink},
    task::{Work, poll_budget, spend},
    words::SubscribeEvent,
};

/// One subscriber's messages; Wakes in the form of `S`. Dropping it ends the subscription.
pub(crate) struct FeedStream<S> {
    feed: Feed,
    shared: Arc<Shared>,
    sleep: Pin<Box<Sleep>>,
    /// When the sleep ends.
    until: Tick,
    /// Filled with the next Wake.
    sink: S,
}

/// A message of a stream.
pub(crate) enum Message<S> {
    Event(SubscribeEvent),
    Wake(S),
}

impl<S> FeedStream<S> {
    pub(super) fn new(feed: Feed, shared: Arc<Shared>, sink: S) -> Self {
        let until = shared.clock.now();
        let sleep = Box::pin(tokio::time::sleep_until(shared.clock.instant(until)));
        Self {
            feed,
            shared,
            sleep,
            until,
            sink,
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

impl<S: WakeSink + Default + Unpin> Stream for FeedStream<S> {
    type Item = Message<S>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Message<S>>> {
        let this = &mut *self;
        std::task::ready!(poll_budget(cx));
        loop {
            let now = this.shared.clock.now();
            let draining = this.shared.draining.load(Ordering::Acquire);
            let next = this
                .feed
                .next_into(now, draining, cx.waker(), &mut this.sink);
            match next {
                Next::Wake(filled) => {
                    this.count(&filled);
                    spend(Work::Message(filled.entries));
                    let wake = std::mem::take(&mut this.sink);
                    return Poll::Ready(Some(Message::Wake(wake)));
                }
                Next::Send(event) => {
                    if matches!(event, SubscribeEvent::Heartbeat { .. }) {
                        let counters = &this.shared.counters;
                        counters.heartbeats.fetch_add(1, Ordering::Relaxed);
                    }
                    return Poll::Ready(Some(Message::Event(event)));
                }
                Next::End => return Poll::Ready(None),
                Next::Yield => {
                    // Woken when other tasks have had their turn. A wake now would have the
                    // connection poll this stream again at once.
                    _ = std::pin::pin!(tokio::task::yield_now()).poll(cx);
                    return Poll::Pending;
                }
                Next::Wait(at) => {
                    // Asked again now that the waker is registered: a drain that began in between
                    // woke nobody here.
                    if !draining && this.shared.draining.load(Ordering::Acquire) {
                        continue;
                    }
                    // A sleep that ends sooner is left alone: each wake-up puts the heartbeat off,
                    // and moving the timer every time would cost more than one look in vain.
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

impl<S> Drop for FeedStream<S> {
    fn drop(&mut self) {
        self.feed.close(self.shared.clock.now());
    }
}
