//! A feed as a tokio stream: asks the machine when it is polled, and wakes when it said to.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use futures_core::Stream;
use tokio::time::Sleep;

use super::Shared;
use crate::{
    clock::Tick,
    hub::{Feed, Next},
    words::SubscribeEvent,
};

/// One subscriber's messages. Dropping it ends the subscription.
pub(crate) struct FeedStream {
    feed: Feed,
    shared: Arc<Shared>,
    sleep: Pin<Box<Sleep>>,
    /// When the sleep ends.
    until: Tick,
}

impl FeedStream {
    pub(super) fn new(feed: Feed, shared: Arc<Shared>) -> Self {
        let until = shared.clock.now();
        let sleep = Box::pin(tokio::time::sleep_until(shared.clock.instant(until)));
        Self {
            feed,
            shared,
            sleep,
            until,
        }
    }

    fn count(&self, event: &SubscribeEvent) {
        let counters = &self.shared.counters;
        match event {
            SubscribeEvent::Wake(work) => {
                // Each saturates on its own, so their sum may not be one of 64 bits.
                let told = work
                    .iter()
                    .fold(0, |sum: u64, entry| sum.saturating_add(entry.notifications));
                counters.wakes.fetch_add(1, Ordering::Relaxed);
                counters
                    .entries
                    .fetch_add(work.len() as u64, Ordering::Relaxed);
                counters.notifications.fetch_add(told, Ordering::Relaxed);
            }
            SubscribeEvent::Heartbeat { .. } => {
                counters.heartbeats.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

impl Stream for FeedStream {
    type Item = SubscribeEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SubscribeEvent>> {
        let this = &mut *self;
        loop {
            let now = this.shared.clock.now();
            let draining = this.shared.draining.load(Ordering::Acquire);
            match this.feed.next(now, draining, cx.waker()) {
                Next::Send(event) => {
                    this.count(&event);
                    return Poll::Ready(Some(event));
                }
                Next::End => return Poll::Ready(None),
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

impl Drop for FeedStream {
    fn drop(&mut self) {
        self.feed.close(self.shared.clock.now());
    }
}
