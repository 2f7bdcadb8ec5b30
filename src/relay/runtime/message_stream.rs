//! Streams on tokio: polls the machine of a stream, and sleeps until its next time.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_core::Stream;
use tracing::Span;

use super::RelayInner;
use crate::{
    base::{
        clock::{Tick, Timer},
        task::{Work, poll_budget, spend},
    },
    relay::hub::{Filled, StreamMessage, SubscriberStream, WakeSink},
    types::{StreamAction, SubscribeEvent},
};

/// One subscriber's messages, with Wakes in the form of `S`. Drop ends the subscription.
pub(crate) struct MessageStream<S> {
    pub(super) stream: SubscriberStream,
    pub(super) shared: Arc<RelayInner>,
    pub(super) timer: Timer,
    /// Filled with the next Wake.
    pub(super) sink: S,
    /// Entered by each poll.
    pub(super) span: Span,
}

impl<S> MessageStream<S> {
    /// The listener did not answer in time: its connection has ended.
    pub(crate) fn note_lost(&self) {
        self.stream.note_lost(self.shared.clock.now());
    }

    fn note(&self, event: &SubscribeEvent) {
        match event {
            SubscribeEvent::Heartbeat { .. } => {
                tracing::trace!("a heartbeat is sent");
                let counters = &self.shared.counters;
                counters.heartbeats.fetch_add(1, Relaxed);
            }
            SubscribeEvent::Goodbye(goodbye) => {
                tracing::debug!(reason = ?goodbye.reason, "a Goodbye is sent");
            }
            _ => {}
        }
    }

    fn count(&self, filled: &Filled, now: Tick) {
        let (entries, notifications) = (filled.entries, filled.notifications);
        tracing::debug!(entries, notifications, "a Wake is sent");
        let counters = &self.shared.counters;
        counters.wakes.fetch_add(1, Relaxed);
        counters.entries.fetch_add(entries as u64, Relaxed);
        counters.notifications.fetch_add(notifications, Relaxed);
        if let Some(accepted_at) = filled.accepted_at {
            counters.wake_latency.observe(now.since(accepted_at));
        }
    }
}

impl<S: WakeSink + Default + Unpin> Stream for MessageStream<S> {
    type Item = StreamMessage<S>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<StreamMessage<S>>> {
        let this = &mut *self;
        std::task::ready!(poll_budget(cx));
        let _entered = this.span.enter();
        let (stream, state, sink) = (&mut this.stream, &this.shared.drain, &mut this.sink);
        let mut at = Tick::default();
        let message = std::task::ready!(poll_stream(&mut this.timer, cx, |now, waker| {
            at = now;
            let drain = state.get();
            match stream.next_into(now, drain, waker, sink) {
                // Read again after the waker is registered: a change before it did not wake this
                // task.
                StreamAction::Wait(_) if state.get() != drain => {
                    stream.next_into(now, state.get(), waker, sink)
                }
                action => action,
            }
        }));
        Poll::Ready(match message {
            Some(StreamMessage::Wake(filled)) => {
                this.count(&filled, at);
                spend(Work::Message(filled.entries));
                Some(StreamMessage::Wake(std::mem::take(&mut this.sink)))
            }
            Some(StreamMessage::Event(event)) => {
                this.note(&event);
                Some(StreamMessage::Event(event))
            }
            None => None,
        })
    }
}

/// Waits this long and longer, such as those for heartbeats, end on a common grid: one turn of the runtime
/// serves the streams of many connections. At 100,000 of them a step has some 300 heartbeats of 10 s.
const LONG: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(32);

/// Polls a stream's machine until it sends a message or ends; `None` is the end.
pub(crate) fn poll_stream<T>(
    timer: &mut Timer,
    cx: &mut Context<'_>,
    mut next: impl FnMut(Tick, &Waker) -> StreamAction<T>,
) -> Poll<Option<T>> {
    loop {
        let now = timer.now();
        match next(now, cx.waker()) {
            StreamAction::Send(message) => return Poll::Ready(Some(message)),
            StreamAction::End => return Poll::Ready(None),
            StreamAction::Yield => {
                // Woken after other tasks have run. An immediate wake would make the connection
                // poll this stream again at once.
                _ = std::pin::pin!(tokio::task::yield_now()).poll(cx);
                return Poll::Pending;
            }
            StreamAction::Wait(until) => {
                let until = match until.since(now) {
                    wait if wait >= LONG => until.next_multiple_of(STEP),
                    _ => until,
                };
                std::task::ready!(timer.poll(until, now, cx));
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
