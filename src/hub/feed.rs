//! What one stream sends, message by message: Welcome, wakes, heartbeats, Goodbye.
//!
//! A state machine that is asked whenever its stream is ready to send and never sooner, so nothing
//! queues up behind a slow reader. A heartbeat is sent only after every cursor has been compared
//! with its queue and nothing was found owed (R6); a stream that is kept awake by some queues
//! compares all of them once per heartbeat all the same, so that a lost mark of another heals. Who
//! was just told of many rests for a few milliseconds: it has enough to do, and in a burst most of
//! the relay's and the listener's work would be wake-ups that say nothing new.

use std::{sync::Arc, task::Waker, time::Duration};

use super::{
    core::Hub,
    subscription::{Subscription, Taken},
};
use crate::{
    backoff::{about, jitter},
    clock::Tick,
    fault::planted,
    words::{Goodbye, GoodbyeReason, SubscribeEvent, SubscribeOptions, Welcome, WorkDetected},
};

/// What all streams of a relay have in common.
#[derive(Debug, Clone)]
pub(crate) struct FeedConfig {
    pub(crate) relay_id: Arc<str>,
    pub(crate) epoch: Arc<str>,
    pub(crate) version: Arc<str>,
    /// A stream ends by itself at this age, give or take a tenth: long enough to cost nothing,
    /// short enough that connections spread over relays again after one was away.
    pub(crate) max_age: Duration,
    /// A wake of this many notifications for each queue in it, with which nothing is owed any more,
    /// lets the stream rest.
    pub(crate) many: u64,
}

impl FeedConfig {
    /// Who has so many to look for in a queue misses nothing by a short rest.
    pub(crate) const MANY: u64 = 16;
}

/// One stream's messages.
#[derive(Debug)]
pub(crate) struct Feed {
    hub: Arc<Hub>,
    subscription: Arc<Subscription>,
    /// Boxed, because it is gone after the first message, and its room would stay.
    welcome: Option<Box<Welcome>>,
    heartbeat: Duration,
    /// When all cursors were last compared with their queues, and when something was last sent.
    compared_at: Tick,
    sent_at: Tick,
    ends_at: Tick,
    /// Nothing is said before this, after a wake of many.
    rests_until: Tick,
    many: u64,
    reconnect_after: Duration,
    ended: bool,
}

/// What a stream does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send this, then ask again.
    Send(SubscribeEvent),
    /// Nothing before this time, or until the waker is woken.
    Wait(Tick),
    /// End with OK.
    End,
}

/// How long a listener that was told of many is left alone: less than anybody notices, and at most
/// 200 wakes a second.
const REST: Duration = Duration::from_millis(5);
/// Reconnections after a shutdown are spread over this span.
const RECONNECT_SPREAD: Duration = Duration::from_secs(1);

impl Feed {
    pub(crate) fn new(
        hub: Arc<Hub>,
        subscription: Arc<Subscription>,
        options: &SubscribeOptions,
        config: &FeedConfig,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let heartbeat = options.clamped_heartbeat();
        let id = subscription.id.0;
        let welcome = Welcome {
            relay_id: Arc::clone(&config.relay_id),
            epoch: Arc::clone(&config.epoch),
            subscription_id: format!("{}/{id:032x}", config.relay_id).into(),
            heartbeat,
            degraded: false,
            version: Arc::clone(&config.version),
        };
        Self {
            hub,
            subscription,
            welcome: Some(Box::new(welcome)),
            heartbeat,
            compared_at: now,
            sent_at: now,
            ends_at: now + about(config.max_age, rng),
            rests_until: now,
            many: config.many,
            reconnect_after: jitter(RECONNECT_SPREAD, rng),
            ended: false,
        }
    }

    /// Returns what to send next; `draining` while the relay shuts down.
    pub(crate) fn next(&mut self, now: Tick, draining: bool, waker: &Waker) -> Next {
        let next = self.look(now, draining, waker);
        match next {
            // Asked again, its transport has taken the last message; waiting, all of them.
            Next::Wait(_) => self.hub.has_sent(&self.subscription, now),
            Next::Send(_) => self.subscription.sends(),
            Next::End => {}
        }
        next
    }

    fn look(&mut self, now: Tick, draining: bool, waker: &Waker) -> Next {
        if self.ended {
            return Next::End;
        }
        if let Some(welcome) = self.welcome.take() {
            self.sent_at = now;
            return Next::Send(SubscribeEvent::Welcome(*welcome));
        }
        if draining || now >= self.ends_at {
            return Next::Send(self.goodbye(draining));
        }
        self.subscription.register(waker);
        if now < self.rests_until {
            return Next::Wait(
                match planted!(self.subscription.fault, RestUntilHeartbeat) {
                    false => self.rests_until,
                    true => self.sent_at + self.heartbeat,
                },
            );
        }
        // However busy a stream is, all its cursors are compared once in an interval, so that what
        // a lost mark left behind is found; a heartbeat is sent only where it was silent (R6).
        let silent = now >= self.sent_at + self.heartbeat;
        let compare = silent || now >= self.compared_at + self.heartbeat;
        let Taken { work, complete } = match compare {
            true => self.subscription.verify(now),
            false => self.subscription.take(now),
        };
        if compare && complete || planted!(self.subscription.fault, LookPutOff) {
            self.compared_at = now;
        }
        if !work.is_empty() {
            self.sent_at = now;
            if complete && self.is_many(&work) {
                self.rests_until = now + REST;
            }
            return Next::Send(SubscribeEvent::Wake(work));
        }
        if silent {
            self.sent_at = now;
            return Next::Send(SubscribeEvent::Heartbeat { degraded: false });
        }
        #[cfg(test)]
        self.hub.register_late(&self.subscription);
        let catch_up = match self.subscription.catch_up_at() {
            Some(at) if !planted!(self.subscription.fault, SpreadUntilHeartbeat) => at,
            _ => Tick::NEVER,
        };
        let heartbeat = self.sent_at.min(self.compared_at) + self.heartbeat;
        Next::Wait(heartbeat.min(self.ends_at).min(catch_up))
    }

    /// Ends the subscription: at the end of its stream, however it came.
    pub(crate) fn close(&mut self, now: Tick) {
        self.ended = true;
        self.hub.unsubscribe(&self.subscription, now);
    }

    /// Many for each queue of this wake: where one of them has little in it, its next few may be
    /// all that somebody waits for.
    fn is_many(&self, work: &[WorkDetected]) -> bool {
        work.iter().all(|entry| entry.notifications >= self.many)
    }

    fn goodbye(&mut self, draining: bool) -> SubscribeEvent {
        self.ended = true;
        let (reason, reconnect_after) = if draining {
            (GoodbyeReason::Draining, self.reconnect_after)
        } else {
            (GoodbyeReason::Rotation, Duration::ZERO)
        };
        SubscribeEvent::Goodbye(Goodbye {
            reason,
            reconnect_after,
        })
    }
}
