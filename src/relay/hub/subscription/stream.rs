//! The messages of one stream: Welcome, wakes, heartbeats, Goodbye.
//!
//! A state machine that is polled only when its stream is ready to send, so nothing queues up
//! behind a slow reader. A silent stream gets a heartbeat only when nothing is pending (R6: a
//! heartbeat proves that). A stream that always has a Wake to send gets one in each interval as well:
//! a resume number is drawn, and stated when all that was pending then is sent.
//! After a large Wake the stream is throttled for a few milliseconds. Its listener has enough to
//! do, and in a burst most of the relay's and the listener's work would be wake-ups without new
//! information.

use std::{sync::Arc, task::Waker, time::Duration};

#[cfg(test)]
use super::super::wake_builder::WakeBuilder;
use super::super::{core::Hub, inbox::Filled, subscription::Subscription, wake_builder::WakeSink};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{
        Drain, ResumeNumber, StreamAction, StreamLifecycle, SubscribeEvent, SubscribeOptions,
        Welcome,
    },
};

/// Settings that all streams of a relay share.
#[derive(Debug, Clone)]
pub(crate) struct StreamConfig {
    pub(crate) relay_id: Arc<str>,
    pub(crate) epoch: Arc<str>,
    pub(crate) version: Arc<str>,
    /// A stream ends by itself at this age, give or take a tenth. That is long enough to cost
    /// nothing, and short enough that connections spread over relays again after one was away.
    pub(crate) max_age: Duration,
    /// The stream is throttled after a Wake with at least this many notifications for each of its
    /// queues, where no entry is left.
    pub(crate) throttle_from: u64,
}

impl StreamConfig {
    /// A listener with this many messages in each queue loses nothing by a short pause.
    pub(crate) const THROTTLE_FROM: u64 = 16;
}

/// The messages of one stream.
#[derive(Debug)]
pub(crate) struct SubscriberStream {
    hub: Arc<Hub>,
    subscription: Arc<Subscription>,
    /// Boxed: it is dropped after the first message, and unboxed its room would stay.
    welcome: Option<Box<Welcome>>,
    /// The newest Welcome or Heartbeat said so.
    degraded: bool,
    lifecycle: StreamLifecycle,
    /// When the next resume number is drawn at the latest. A member has none: its queues follow the
    /// group's cursor.
    draws_at: Tick,
    /// After a large Wake, no message is sent before this time.
    throttled_until: Tick,
    throttle_from: u64,
}

/// A message of a stream, with Wakes in the form of `W`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StreamMessage<W> {
    Event(SubscribeEvent),
    Wake(W),
}

/// After a large Wake the stream is throttled for this long: 200 wakes a second at most.
const THROTTLE: Duration = Duration::from_millis(5);

/// Cursors that are visited to drop settled ones, at a heartbeat and beside a Wake.
const SWEPT: usize = 1024;
const SWEPT_BESIDE: usize = 8;
/// The most heartbeats in which all cursors are visited.
const SWEEPS: usize = 64;

/// Queues that one call reconciles after a stream has sent.
const QUEUES_PER_CALL: usize = 256;

impl SubscriberStream {
    pub(crate) fn new(
        hub: Arc<Hub>,
        subscription: Arc<Subscription>,
        options: &SubscribeOptions,
        config: &StreamConfig,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let lifecycle = StreamLifecycle::new(options.heartbeat, config.max_age, now, rng);
        let draws_at = match subscription.group {
            Some(_) => Tick::NEVER,
            None => now + lifecycle.heartbeat,
        };
        let id = subscription.id.0;
        let welcome = Welcome {
            relay_id: Arc::clone(&config.relay_id),
            epoch: Arc::clone(&config.epoch),
            subscription_id: format!("{}/{id:032x}", config.relay_id).into(),
            heartbeat: lifecycle.heartbeat,
            degraded: false,
            version: Arc::clone(&config.version),
        };
        Self {
            hub,
            subscription,
            welcome: Some(Box::new(welcome)),
            degraded: false,
            lifecycle,
            draws_at,
            throttled_until: now,
            throttle_from: config.throttle_from,
        }
    }

    /// Returns what to send next, a Wake in the sink; `drain` while the relay shuts down.
    pub(crate) fn next_into(
        &mut self,
        now: Tick,
        drain: Option<Drain>,
        waker: &Waker,
        sink: &mut impl WakeSink,
    ) -> StreamAction<StreamMessage<Filled>> {
        let next = self.next_action(now, drain, waker, sink);
        match next {
            // At the next call its transport has taken the last message; with `Wait`, all of them.
            StreamAction::Wait(_) if !self.hub.end_send(&self.subscription, now) => {
                return StreamAction::Yield;
            }
            StreamAction::Send(_) => self.subscription.mailbox.begin_send(),
            StreamAction::Wait(_) | StreamAction::Yield | StreamAction::End => {}
        }
        next
    }

    /// The same with a Wake as values, and without `Yield`.
    #[cfg(test)]
    pub(crate) fn next(
        &mut self,
        now: Tick,
        drain: Option<Drain>,
        waker: &Waker,
    ) -> StreamAction<SubscribeEvent> {
        loop {
            let mut sink = WakeBuilder::default();
            return match self.next_into(now, drain, waker, &mut sink) {
                StreamAction::Send(message) => StreamAction::Send(message.into_event(sink)),
                StreamAction::Yield => continue,
                StreamAction::Wait(at) => StreamAction::Wait(at),
                StreamAction::End => StreamAction::End,
            };
        }
    }

    fn next_action(
        &mut self,
        now: Tick,
        drain: Option<Drain>,
        waker: &Waker,
        sink: &mut impl WakeSink,
    ) -> StreamAction<StreamMessage<Filled>> {
        if self.lifecycle.ended {
            return StreamAction::End;
        }
        if let Some(mut welcome) = self.welcome.take() {
            self.lifecycle.sent_at = now;
            self.degraded = self.hub.is_degraded(now);
            welcome.degraded = self.degraded;
            return event(SubscribeEvent::Welcome(*welcome));
        }
        if let Some(goodbye) = self.lifecycle.goodbye(now, drain) {
            return event(SubscribeEvent::Goodbye(goodbye));
        }
        // C9: told also to a stream that always has a Wake to send. The listener polls from now on, so
        // this heartbeat need not prove that nothing is pending (R6).
        if !self.degraded && self.hub.is_degraded(now) {
            return self.heartbeat(true, ResumeNumber::default(), now);
        }
        self.subscription.mailbox.waker.register(waker);
        if now < self.throttled_until {
            return StreamAction::Wait(self.throttled_until);
        }
        let introduced =
            !self.subscription.has_pattern() || self.hub.introduce_some(&self.subscription, now);
        // C9: the end of `degraded` is told at once as well.
        let degraded = self.hub.is_degraded(now);
        let silent = now >= self.lifecycle.heartbeat_at() || degraded != self.degraded;
        // Before the next Wake: a stream that always has one to send gets its number, too.
        if !silent && let Some(resume) = self.subscription.take_resume() {
            return self.heartbeat(degraded, resume, now);
        }
        // The queues that are not introduced may have changed before.
        let draws =
            introduced && self.subscription.group.is_none() && (silent || now >= self.draws_at);
        if draws {
            self.draws_at = now + self.lifecycle.heartbeat;
        }
        let revision = draws.then_some(&self.hub.shared.revision);
        let filled = self.subscription.fill(now, revision, sink);
        if filled.entries > 0 {
            self.hub.load.note_sent(filled.requested);
            self.lifecycle.sent_at = now;
            // Where one of the queues has few messages, a listener may only wait for its next ones.
            if filled.complete && filled.fewest >= Some(self.throttle_from) {
                self.throttled_until = now + THROTTLE;
            }
            self.hub.sweep(&self.subscription, SWEPT_BESIDE, now);
            return StreamAction::Send(StreamMessage::Wake(filled));
        }
        if !introduced || !filled.complete {
            return StreamAction::Yield;
        }
        if silent || draws {
            let most = SWEPT.max(self.subscription.lock().cursors.len() / SWEEPS);
            self.hub.sweep(&self.subscription, most, now);
            let resume = self.subscription.take_resume().unwrap_or_default();
            return self.heartbeat(degraded, resume, now);
        }
        let heartbeat = self.draws_at.min(self.lifecycle.heartbeat_at());
        StreamAction::Wait(heartbeat.min(self.lifecycle.ends_at))
    }

    fn heartbeat(
        &mut self,
        degraded: bool,
        resume: ResumeNumber,
        now: Tick,
    ) -> StreamAction<StreamMessage<Filled>> {
        (self.lifecycle.sent_at, self.degraded) = (now, degraded);
        event(SubscribeEvent::Heartbeat { degraded, resume })
    }

    /// The listener did not answer in time.
    pub(crate) fn note_lost(&self, now: Tick) {
        self.hub.note_lost(&self.subscription, now);
    }

    /// Ends the subscription when its stream ends for any reason.
    pub(crate) fn close(&mut self, now: Tick) {
        self.lifecycle.ended = true;
        self.hub.unsubscribe(&self.subscription, now);
    }
}

impl Hub {
    /// A stream has sent all its messages. Queues that waited for this may assign more to it, a few
    /// at a time. Returns `false` where other queues still wait and this call has done its share.
    pub(in super::super) fn end_send(&self, subscription: &Subscription, now: Tick) -> bool {
        if !subscription.mailbox.end_send() {
            return true;
        }
        let mut left = match planted!(TurnsUnbounded) {
            true => usize::MAX,
            false => QUEUES_PER_CALL,
        };
        while left > 0
            && let Some(turns) = subscription.take_turns(left)
        {
            // A batch whose queues are gone counts as one.
            left -= turns.len().max(1);
            for entry in turns {
                self.reconcile(entry, now, |_, state| {
                    if let Some(group) = state.group_of(subscription) {
                        group.members.set_ready(subscription.id);
                    }
                });
            }
        }
        subscription.mailbox.end_turns();
        left > 0
    }
}

fn event(event: SubscribeEvent) -> StreamAction<StreamMessage<Filled>> {
    StreamAction::Send(StreamMessage::Event(event))
}

#[cfg(test)]
impl StreamMessage<Filled> {
    /// Returns the event, or the Wake in the sink.
    pub(crate) fn into_event(self, sink: WakeBuilder) -> SubscribeEvent {
        match self {
            Self::Event(event) => event,
            Self::Wake(_) => SubscribeEvent::Wake(sink.work),
        }
    }
}
