//! The messages of one watch's stream: states, acknowledgements, heartbeats, Goodbye.
//!
//! A state machine. Its driver polls it only when the stream is ready to send. A heartbeat is sent
//! only when no event is pending (R6: a heartbeat proves that nothing is pending). The first state
//! counts as pending, so there is no heartbeat before the store has been read.

use std::{task::Waker, time::Duration};

use super::{Event, WatchGuard};
use crate::{
    base::{
        backoff::{about, jitter},
        clock::Tick,
    },
    types::{Goodbye, GoodbyeReason, clamp_heartbeat},
};

/// Heartbeat and age of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchStreamConfig {
    /// Silence after which a heartbeat is sent. It is clamped; zero selects the default.
    pub(crate) heartbeat: Duration,
    /// Age at which the stream ends by itself, give or take a tenth.
    pub(crate) max_age: Duration,
}

/// The messages of one stream. Its driver also awaits [`WatchGuard::sync`].
#[derive(Debug)]
pub(crate) struct WatchStream {
    watch: WatchGuard,
    heartbeat: Duration,
    heartbeat_at: Tick,
    ends_at: Tick,
    reconnect_after: Duration,
    ended: bool,
}

/// The next action of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StreamAction {
    /// Send this event, then call `next` again.
    Send(Event),
    /// Wait until this time, or until the waker is woken.
    Wait(Tick),
    /// End with OK.
    End,
}

/// Clients' reconnections after a shutdown are spread over this span.
const RECONNECT_SPREAD: Duration = Duration::from_secs(1);

impl WatchStream {
    pub(crate) fn new(
        watch: WatchGuard,
        config: WatchStreamConfig,
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

    /// Returns the watch, so that tests can synchronize it.
    #[cfg(test)]
    pub(crate) fn watch(&self) -> &WatchGuard {
        &self.watch
    }

    /// Returns the next action. `draining` means that the relay shuts down.
    pub(crate) fn next(&mut self, now: Tick, draining: bool, waker: &Waker) -> StreamAction {
        if self.ended {
            return StreamAction::End;
        }
        // Before any Goodbye. R21: a set is never conflated away, and no other stream knows of this
        // one.
        if let Some(event) = self.watch.next_event(waker) {
            self.heartbeat_at = now + self.heartbeat;
            return StreamAction::Send(event);
        }
        if draining || now >= self.ends_at {
            return StreamAction::Send(self.goodbye(draining));
        }
        if !self.watch.is_synced() {
            return StreamAction::Wait(self.ends_at);
        }
        if now >= self.heartbeat_at {
            self.heartbeat_at = now + self.heartbeat;
            return StreamAction::Send(Event::Heartbeat);
        }
        StreamAction::Wait(self.heartbeat_at.min(self.ends_at))
    }

    fn goodbye(&mut self, draining: bool) -> Event {
        self.ended = true;
        self.watch.mark_away();
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
