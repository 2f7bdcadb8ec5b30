//! What one stream sends, message by message: Welcome, wakes, heartbeats, Goodbye.
//!
//! A state machine that is asked whenever its stream is ready to send and never sooner, so nothing
//! queues up behind a slow reader. A heartbeat is sent only after every cursor has been compared
//! with its queue and nothing was found owed (R6); a stream that is kept awake by some queues
//! compares all of them once per heartbeat all the same, so that a lost mark of another heals.

use std::{sync::Arc, task::Waker, time::Duration};

use super::{core::Hub, subscription::Subscription};
use crate::{
    clock::Tick,
    fault::planted,
    words::{Goodbye, GoodbyeReason, SubscribeEvent, SubscribeOptions, Welcome},
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
}

/// One stream's messages.
#[derive(Debug)]
pub(crate) struct Feed {
    hub: Arc<Hub>,
    subscription: Arc<Subscription>,
    welcome: Option<Welcome>,
    heartbeat: Duration,
    heartbeat_at: Tick,
    /// When all cursors are compared with their queues, whatever was sent meanwhile.
    verify_at: Tick,
    /// When CATCH_UPs that were spread are owed.
    catch_up_at: Tick,
    ends_at: Tick,
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
            welcome: Some(welcome),
            heartbeat,
            heartbeat_at: now + heartbeat,
            verify_at: now + heartbeat,
            catch_up_at: Tick::NEVER,
            ends_at: now + config.max_age.mul_f64(0.9 + 0.2 * rng.f64()),
            reconnect_after: crate::backoff::jitter(RECONNECT_SPREAD, rng),
            ended: false,
        }
    }

    /// Returns what to send next; `draining` while the relay shuts down.
    pub(crate) fn next(&mut self, now: Tick, draining: bool, waker: &Waker) -> Next {
        if self.ended {
            return Next::End;
        }
        if let Some(welcome) = self.welcome.take() {
            return Next::Send(SubscribeEvent::Welcome(welcome));
        }
        if draining || now >= self.ends_at {
            return Next::Send(self.goodbye(draining));
        }
        self.subscription.register(waker);
        // Spread CATCH_UPs have left no mark behind: the look at all cursors finds them.
        let verifies = now >= self.verify_at.min(self.heartbeat_at).min(self.catch_up_at);
        let owed = if verifies {
            self.verify_at = now + self.heartbeat;
            self.subscription.verify(now)
        } else {
            self.subscription.take(now)
        };
        if let Some(work) = owed {
            self.heartbeat_at = now + self.heartbeat;
            if planted!(self.subscription.fault, LookPutOff) {
                self.verify_at = self.heartbeat_at;
            }
            return Next::Send(SubscribeEvent::Wake(work));
        }
        #[cfg(test)]
        self.hub.register_late(&self.subscription);
        if now >= self.heartbeat_at {
            self.heartbeat_at = now + self.heartbeat;
            return Next::Send(SubscribeEvent::Heartbeat { degraded: false });
        }
        let catch_up = self.subscription.catch_up_at(now);
        if !planted!(self.subscription.fault, SpreadUntilHeartbeat) {
            self.catch_up_at = catch_up.unwrap_or(Tick::NEVER);
        }
        Next::Wait(
            self.heartbeat_at
                .min(self.verify_at)
                .min(self.ends_at)
                .min(self.catch_up_at),
        )
    }

    /// Ends the subscription: at the end of its stream, however it came.
    pub(crate) fn close(&mut self, now: Tick) {
        self.ended = true;
        self.hub.unsubscribe(&self.subscription, now);
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
