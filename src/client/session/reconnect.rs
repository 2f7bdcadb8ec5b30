//! State machine of a stream that reconnects for ever: wait, open, read, detect a dead stream.
//!
//! Subscriptions and flag watches share it. A stream without a message for 2.5 heartbeats
//! is dead; waits between attempts grow with full jitter, and start again only after a
//! stream that lasted (I18), so that a flapping link makes no storm.

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use crate::{
    base::{
        backoff::{Backoff, about, jitter},
        clock::Tick,
        fault::planted,
    },
    error::{Error, ErrorKind},
    types::{ConnectionState, Goodbye, GoodbyeReason, Limits},
};

/// How a stream reconnects.
#[derive(Debug, Clone)]
pub(crate) struct ReconnectConfig {
    /// Maximum wait before the first reconnection.
    pub(crate) base: Duration,
    /// Maximum wait before any reconnection.
    pub(crate) max: Duration,
    /// Other relays of the client.
    pub(crate) others: usize,
    /// Time limit of an attempt to open a stream.
    pub(crate) open_timeout: Duration,
}

/// The driver's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReconnectStep {
    /// Open a stream now.
    Open,
    /// Wait until this time: for the next attempt, or for the stream to open, or for its next message.
    Wait(Tick),
    /// Stop: the relay's refusal is final.
    Closed,
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Reconnect {
    pub(super) config: ReconnectConfig,
    phase: Phase,
    /// The end of the phase.
    until: Tick,
    backoff: Backoff,
    /// Attempts and streams that failed since the last stream that lasted. So many of the other relays were
    /// tried without a back-off.
    failures: usize,
    /// The next stream is opened at another relay.
    pub(crate) leaves_relay: bool,
    heartbeat: Duration,
    /// A message of a relay has arrived, on this stream or an earlier one.
    ever_connected: bool,
    /// The relay announced the end of the last stream, to be reopened soon, and no attempt has
    /// failed since.
    pub(crate) announced: bool,
    /// Why there is no stream, in the relay's words where it gave any: for people, once for each cause.
    /// `None` since the last message.
    pub(crate) cause: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Opening,
    /// The stream is open, with the time of its first message.
    Open(Option<Tick>),
    Closed,
}

/// A stream that lived this long was a success (I18).
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// A relay that requests a longer wait than this counts as unavailable.
const SHORT_RECONNECT: Duration = Duration::from_secs(5);
/// An outage is logged after this many failures. A relay's quick restart is not logged.
const OUTAGE: usize = 4;

impl Reconnect {
    /// Creates a machine that opens its first stream at once.
    pub(crate) fn new(config: ReconnectConfig) -> Self {
        let backoff = Backoff::new(config.base, config.max);
        Self {
            failures: 0,
            leaves_relay: false,
            config,
            phase: Phase::Waiting,
            until: Tick::default(),
            backoff,
            heartbeat: Limits::HEARTBEAT,
            ever_connected: false,
            announced: false,
            cause: None,
        }
    }

    /// Returns the next step.
    pub(crate) fn step(&mut self, now: Tick) -> ReconnectStep {
        match self.phase {
            Phase::Waiting if self.until <= now => {
                (self.phase, self.until) = (Phase::Opening, now + self.config.open_timeout);
                ReconnectStep::Open
            }
            Phase::Closed => ReconnectStep::Closed,
            _ => ReconnectStep::Wait(self.until),
        }
    }

    /// Sets the number of other relays, which changes when a name is resolved.
    pub(crate) fn set_others(&mut self, others: usize) {
        self.config.others = others;
    }

    /// The stream is open; its first message is still to come.
    pub(crate) fn opened(&mut self, now: Tick) {
        self.phase = Phase::Open(None);
        let dead = self.heartbeat * 5 / 2;
        let silence = match self.announced {
            true => dead.min(SHORT_RECONNECT),
            false => dead,
        };
        self.expect_message(now + silence);
    }

    /// A message arrived, so the stream is alive.
    pub(crate) fn on_message(&mut self, now: Tick) {
        if let Phase::Open(first_message) = &mut self.phase {
            first_message.get_or_insert(now);
            self.ever_connected = true;
            self.announced = false;
            self.cause = None;
            self.expect_message(now + self.heartbeat * 5 / 2);
        }
    }

    fn expect_message(&mut self, until: Tick) {
        self.until = match planted!(SilenceUnnoticed) {
            true => Tick::NEVER,
            false => until,
        };
    }

    /// The relay states its heartbeat, which counts from the next message on.
    pub(crate) fn set_heartbeat(&mut self, heartbeat: Duration) {
        self.heartbeat = heartbeat.clamp(Limits::HEARTBEAT_MIN, Limits::HEARTBEAT_MAX);
    }

    /// The time of the last step has passed. Returns whether the driver must drop the stream.
    pub(crate) fn elapsed(&mut self, now: Tick, rng: &mut fastrand::Rng) -> bool {
        let waits = matches!(self.phase, Phase::Waiting | Phase::Closed);
        if waits || self.until > now {
            return false;
        }
        let rest = (self.heartbeat * 5 / 2).saturating_sub(SHORT_RECONNECT);
        if self.phase == Phase::Open(None) && std::mem::take(&mut self.announced) && !rest.is_zero()
        {
            // A proxy has accepted the stream, and no message of a relay came.
            self.expect_message(now + rest);
            return false;
        }
        self.broken(now, None, rng);
        self.cause = Some("no answer in time".into());
        true
    }

    /// The stream broke or could not be opened. Returns the error if it is final.
    pub(crate) fn broken(
        &mut self,
        now: Tick,
        error: Option<&Error>,
        rng: &mut fastrand::Rng,
    ) -> Option<Error> {
        // An announced end holds for one attempt.
        if !planted!(AnnouncedForever) {
            self.announced = false;
        }
        self.set_cause(error);
        if let Some(error) = error.filter(|error| self.is_final_here(error.kind())) {
            self.phase = Phase::Closed;
            return Some(error.clone());
        }
        self.reset_if_stable(now);
        self.failures = self.failures.saturating_add(1);
        self.leaves_relay = self.config.others > 0 && leaves_relay(error);
        let wait = if self.leaves_relay && self.failures <= self.config.others {
            // Each of the other relays may be well. The relay's own streams come at the same time, so
            // the wait is spread.
            jitter(self.config.base / 4, rng)
        } else {
            let requested = error.and_then(Error::retry_after).unwrap_or_default();
            requested.min(Limits::MAX_RECONNECT_AFTER) + self.backoff.next(rng)
        };
        (self.phase, self.until) = (Phase::Waiting, now + wait);
        None
    }

    /// The relay sent a Goodbye: reconnects after the requested wait. A Goodbye is no failure, so
    /// the back-off does not grow. It resets after a stable stream, as after any other end.
    pub(crate) fn goodbye(&mut self, now: Tick, goodbye: Goodbye, rng: &mut fastrand::Rng) {
        if !planted!(GoodbyeKeepsBackoff) {
            self.reset_if_stable(now);
        }
        self.cause = Some(said_at_goodbye(goodbye.reason).into());
        self.announced = goodbye.reconnect_after <= SHORT_RECONNECT
            && matches!(
                goodbye.reason,
                GoodbyeReason::Rotation | GoodbyeReason::Draining
            );
        // The other relays do not restart.
        self.leaves_relay = self.config.others > 0 && goodbye.reason == GoodbyeReason::Draining;
        let requested = if self.leaves_relay {
            Duration::ZERO
        } else {
            goodbye.reconnect_after.min(Limits::MAX_RECONNECT_AFTER)
        };
        // The wait gets extra jitter, as the relay may have sent all clients the same value.
        let spread = jitter(self.config.base / 4, rng);
        (self.phase, self.until) = (Phase::Waiting, now + requested + spread);
    }

    /// After a final refusal, schedules another attempt in about `after`. Returns whether there was
    /// such a refusal.
    pub(crate) fn retry_after_refusal(
        &mut self,
        now: Tick,
        after: Duration,
        rng: &mut fastrand::Rng,
    ) -> bool {
        let refused = self.phase == Phase::Closed;
        if refused {
            (self.phase, self.until) = (Phase::Waiting, now + about(after, rng));
        }
        refused
    }

    /// Returns the number of failures if it is to be logged: ever more rarely.
    pub(crate) fn outage(&self) -> Option<usize> {
        Some(self.failures).filter(|failures| *failures >= OUTAGE && failures.is_power_of_two())
    }

    pub(crate) fn state(&self) -> ConnectionState {
        match self.phase {
            Phase::Open(Some(_)) => ConnectionState::Connected,
            Phase::Closed => ConnectionState::Closed,
            _ => ConnectionState::Reconnecting,
        }
    }

    /// Returns whether a retry is useless.
    ///
    /// A refusal of an invalid request is always final. Other refusals are final before the first
    /// message only, so that a wrong address or a missing permission is reported at once. Later
    /// they may pass: a proxy answers 404, 403 or UNIMPLEMENTED while the relay behind it restarts,
    /// and credentials are rotated behind a parked fleet. A listener that gave up then would miss
    /// every later wake-up; a retry costs one request in ten seconds.
    fn is_final_here(&self, kind: ErrorKind) -> bool {
        kind == ErrorKind::Invalid || !self.ever_connected && is_final(kind)
    }

    /// Keeps the text of a cause that has changed in its numbers only, such as the age of a token that
    /// has expired.
    fn set_cause(&mut self, error: Option<&Error>) {
        let text = error.map_or_else(|| "the stream has ended".to_owned(), Error::to_string);
        let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        if self.cause.as_deref().map(words) != Some(words(&text)) {
            self.cause = Some(text.into());
        }
    }

    fn reset_if_stable(&mut self, now: Tick) {
        if let Phase::Open(Some(first)) = self.phase
            && now.since(first) >= STABLE_AFTER
        {
            self.backoff.reset();
            self.failures = 0;
        }
    }
}

fn said_at_goodbye(reason: GoodbyeReason) -> &'static str {
    match reason {
        GoodbyeReason::Draining => "the relay shuts down",
        GoodbyeReason::Rotation => "the stream has reached its maximum age",
        GoodbyeReason::Revoked => "the relay withdrew the permission to listen",
        GoodbyeReason::Unspecified => "the relay ended the stream",
    }
}

/// Returns whether another relay may serve a stream that this one did not: it cannot be reached, ends, or
/// has no room, or a proxy says that it is away. A refusal of the caller or of the request would be repeated.
pub(crate) fn leaves_relay(error: Option<&Error>) -> bool {
    error.is_none_or(|error| match error.kind() {
        // Without a time the request is too large.
        ErrorKind::Exhausted => error.retry_after().is_some(),
        ErrorKind::Invalid | ErrorKind::Conflict | ErrorKind::Denied => false,
        _ => true,
    })
}

/// Returns whether the same request would be refused again.
pub(super) fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::Unsupported | ErrorKind::NotFound
    )
}
