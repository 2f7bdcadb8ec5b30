//! What one watch's stream sends, message by message: states, acknowledgements, heartbeats, Goodbye.
//!
//! A state machine that is asked whenever its stream is ready to send and never sooner. A heartbeat
//! is sent only after the board was asked and had nothing pending (R6: a heartbeat proves that
//! nothing is pending), the first state included: while the store has not been read, there is none.

use std::{task::Waker, time::Duration};

use super::{Event, Watch};
use crate::{
    backoff::{about, jitter},
    clock::Tick,
    words::{Goodbye, GoodbyeReason, clamp_heartbeat},
};

/// How a stream lives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FeedConfig {
    /// Silence after which a heartbeat is sent; clamped, zero is the default.
    pub(crate) heartbeat: Duration,
    /// The stream ends by itself at this age, give or take a tenth.
    pub(crate) max_age: Duration,
}

/// One stream's messages. Whoever drives it also awaits its watch's [`Watch::settle`].
#[derive(Debug)]
pub(crate) struct Feed {
    watch: Watch,
    heartbeat: Duration,
    heartbeat_at: Tick,
    ends_at: Tick,
    reconnect_after: Duration,
    ended: bool,
}

/// What a stream does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send this, then ask again.
    Send(Event),
    /// Nothing before this time, or until the waker is woken.
    Wait(Tick),
    /// End with OK.
    End,
}

/// Reconnections after a shutdown are spread over this span.
const RECONNECT_SPREAD: Duration = Duration::from_secs(1);

impl Feed {
    pub(crate) fn new(
        watch: Watch,
        config: FeedConfig,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let heartbeat = clamp_heartbeat(config.heartbeat);
        Self {
            watch,
            heartbeat,
            heartbeat_at: now + heartbeat,
            ends_at: now + about(config.max_age, rng),
            reconnect_after: jitter(RECONNECT_SPREAD, rng),
            ended: false,
        }
    }

    /// Returns the watch, to settle it.
    #[cfg(test)]
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Returns what to send next; `draining` while the relay shuts down.
    pub(crate) fn next(&mut self, now: Tick, draining: bool, waker: &Waker) -> Next {
        if self.ended {
            return Next::End;
        }
        // Before any Goodbye. R21: a set is never conflated away, and no other stream knows of this
        // one.
        if let Some(event) = self.watch.owed(waker) {
            self.heartbeat_at = now + self.heartbeat;
            return Next::Send(event);
        }
        if draining || now >= self.ends_at {
            return Next::Send(self.goodbye(draining));
        }
        if !self.watch.is_settled() {
            return Next::Wait(self.ends_at);
        }
        if now >= self.heartbeat_at {
            self.heartbeat_at = now + self.heartbeat;
            return Next::Send(Event::Heartbeat);
        }
        Next::Wait(self.heartbeat_at.min(self.ends_at))
    }

    fn goodbye(&mut self, draining: bool) -> Event {
        self.ended = true;
        self.watch.depart();
        let (reason, reconnect_after) = if draining {
            (GoodbyeReason::Draining, self.reconnect_after)
        } else {
            (GoodbyeReason::Rotation, Duration::ZERO)
        };
        Event::Goodbye(Goodbye {
            reason,
            reconnect_after,
        })
    }
}
