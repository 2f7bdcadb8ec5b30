//! The life of a relay's response stream: heartbeats, a maximum age, a Goodbye.
//!
//! A state machine. Its owner decides when a heartbeat may be sent (R6), and which messages precede
//! the Goodbye.

use std::time::Duration;

use super::{Goodbye, GoodbyeReason, session::clamp_heartbeat};
use crate::base::{
    backoff::{about, jitter},
    clock::Tick,
};

/// Heartbeats and end of one stream.
#[derive(Debug)]
pub(crate) struct StreamLifecycle {
    /// Silence after which a heartbeat is sent.
    pub(crate) heartbeat: Duration,
    /// The time of the last message.
    pub(crate) sent_at: Tick,
    pub(crate) ends_at: Tick,
    reconnect_after: Duration,
    pub(crate) ended: bool,
}

/// The next action of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StreamAction<T> {
    /// Send this, then call again.
    Send(T),
    /// Let other tasks run, then call again: more is left than one step may do.
    Yield,
    /// Wait until this time, or until the waker is woken.
    Wait(Tick),
    /// End with OK.
    End,
}

/// Reconnections after a shutdown are spread over this span.
const RECONNECT_SPREAD: Duration = Duration::from_secs(1);

impl StreamLifecycle {
    /// Starts a stream that ends at the age `max_age`, give or take a tenth. The heartbeat is
    /// clamped; zero selects the default.
    pub(crate) fn new(
        heartbeat: Duration,
        max_age: Duration,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) -> Self {
        Self {
            heartbeat: clamp_heartbeat(heartbeat),
            sent_at: now,
            ends_at: now + about(max_age, rng),
            reconnect_after: jitter(RECONNECT_SPREAD, rng),
            ended: false,
        }
    }

    /// Returns when a heartbeat is due unless another message is sent before.
    pub(crate) fn heartbeat_at(&self) -> Tick {
        self.sent_at + self.heartbeat
    }

    /// Ends the stream if the relay shuts down, or at its age. Returns its last message.
    pub(crate) fn goodbye(&mut self, now: Tick, draining: bool) -> Option<Goodbye> {
        if !draining && now < self.ends_at {
            return None;
        }
        self.ended = true;
        let (reason, reconnect_after) = if draining {
            (GoodbyeReason::Draining, self.reconnect_after)
        } else {
            (GoodbyeReason::Rotation, Duration::ZERO)
        };
        Some(Goodbye {
            reason,
            reconnect_after,
        })
    }
}
