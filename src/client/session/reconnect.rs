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
    /// Wait until this time, for the stream to open or for the next attempt.
    Wait(Tick),
    /// Read the stream; without a message by this time it is dead.
    Read(Tick),
    /// Stop: the relay's refusal is final.
    Closed,
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Reconnect {
    pub(super) config: ReconnectConfig,
    phase: Phase,
    backoff: Backoff,
    /// Other relays that are tried without a back-off, since the last stream that lasted.
    untried: usize,
    /// The next stream is opened at another relay.
    leaves_relay: bool,
    heartbeat: Duration,
    /// A message of a relay has arrived, on this stream or an earlier one.
    ever_connected: bool,
    /// The relay announced the end of the last stream, to be reopened soon, and no attempt has
    /// failed since.
    announced: bool,
    /// Failed attempts since the last message.
    failures: Option<Failures>,
    /// Why there is no stream, in the relay's words where it gave any. `None` since the last message.
    pub(super) cause: Option<Arc<str>>,
}

/// Consecutive attempts to open a stream that brought no message.
#[derive(Debug)]
struct Failures {
    attempts: u32,
    since: Tick,
    /// Time of the newest log line about them.
    logged_at: Option<Tick>,
}

/// Repeated failures to open a stream, for the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) attempts: u32,
    pub(crate) duration: Duration,
    /// Error of the last attempt.
    pub(crate) reason: Arc<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting {
        until: Tick,
    },
    Opening {
        until: Tick,
    },
    /// The stream is open. `last_message` starts at the time of opening.
    Open {
        last_message: Tick,
        first_message: Option<Tick>,
    },
    Closed,
}

/// A stream that lived this long was a success (I18).
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// A relay that requests a longer wait than this counts as unavailable.
const SHORT_RECONNECT: Duration = Duration::from_secs(5);
/// An outage is logged after this many failed attempts or after this time. A relay's quick restart
/// is not logged.
const OUTAGE_ATTEMPTS: u32 = 3;
const OUTAGE_MIN_DURATION: Duration = Duration::from_secs(10);
/// Interval of an outage's log lines.
const OUTAGE_LOG_INTERVAL: Duration = Duration::from_secs(60);

impl Reconnect {
    /// Creates a machine that opens its first stream at once.
    pub(crate) fn new(config: ReconnectConfig) -> Self {
        let backoff = Backoff::new(config.base, config.max);
        let phase = Phase::Waiting {
            until: Tick::default(),
        };
        Self {
            untried: config.others,
            leaves_relay: false,
            config,
            phase,
            backoff,
            heartbeat: Limits::HEARTBEAT,
            ever_connected: false,
            announced: false,
            failures: None,
            cause: None,
        }
    }

    /// Returns the next step.
    pub(crate) fn step(&mut self, now: Tick) -> ReconnectStep {
        match self.phase {
            Phase::Waiting { until } if until <= now => {
                self.phase = Phase::Opening {
                    until: now + self.config.open_timeout,
                };
                ReconnectStep::Open
            }
            Phase::Waiting { until } | Phase::Opening { until } => ReconnectStep::Wait(until),
            Phase::Open {
                last_message,
                first_message,
            } => {
                let dead = self.dead_at(last_message);
                ReconnectStep::Read(if self.announced && first_message.is_none() {
                    dead.min(last_message + SHORT_RECONNECT)
                } else {
                    dead
                })
            }
            Phase::Closed => ReconnectStep::Closed,
        }
    }

    /// Sets the number of other relays, which changes when a name is resolved.
    pub(crate) fn set_others(&mut self, others: usize) {
        let added = others.saturating_sub(self.config.others);
        self.untried = (self.untried + added).min(others);
        self.config.others = others;
    }

    /// The stream is open; its first message is still to come.
    pub(crate) fn opened(&mut self, now: Tick) {
        self.phase = Phase::Open {
            last_message: now,
            first_message: None,
        };
    }

    /// A message arrived, so the stream is alive.
    pub(crate) fn on_message(&mut self, now: Tick) {
        if let Phase::Open { first_message, .. } = self.phase {
            self.ever_connected = true;
            self.announced = false;
            (self.failures, self.cause) = (None, None);
            self.phase = Phase::Open {
                last_message: now,
                first_message: first_message.or(Some(now)),
            };
        }
    }

    /// The relay stated its heartbeat.
    pub(crate) fn set_heartbeat(&mut self, heartbeat: Duration) {
        self.heartbeat = heartbeat.clamp(Limits::HEARTBEAT_MIN, Limits::HEARTBEAT_MAX);
    }

    /// The time of the last step has passed. Returns whether the driver must drop the stream.
    pub(crate) fn elapsed(&mut self, now: Tick, rng: &mut fastrand::Rng) -> bool {
        let dead = match self.phase {
            Phase::Opening { until } => until <= now,
            Phase::Open { last_message, .. } => self.dead_at(last_message) <= now,
            Phase::Waiting { .. } | Phase::Closed => false,
        };
        if dead {
            self.broken(now, None, rng);
            self.cause = Some("no answer in time".into());
        } else if let Phase::Open {
            last_message,
            first_message: None,
        } = self.phase
            && last_message + SHORT_RECONNECT <= now
        {
            // A proxy accepted the stream, and no message of a relay came.
            self.announced = false;
        }
        dead
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
        self.note_failure(now);
        self.reset_if_stable(now);
        let is_away = error.is_some_and(|error| self.is_answer_of_proxy(error.kind()));
        self.leaves_relay = self.config.others > 0 && (is_away || leaves_relay(error));
        let wait = match self.untried.checked_sub(1).filter(|_| self.leaves_relay) {
            // Each of the other relays may be well. The relay's own streams come at the same time, so
            // the wait is spread.
            Some(untried) => {
                self.untried = untried;
                jitter(self.config.base / 4, rng)
            }
            None => {
                let requested = error.and_then(Error::retry_after).unwrap_or_default();
                requested.min(Limits::MAX_RECONNECT_AFTER) + self.backoff.next(rng)
            }
        };
        self.phase = Phase::Waiting { until: now + wait };
        None
    }

    /// Returns whether the next stream is to be opened at another relay.
    pub(crate) fn leaves_relay(&self) -> bool {
        self.leaves_relay
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
        self.phase = Phase::Waiting {
            until: now + requested + spread,
        };
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
            let until = now + about(after, rng);
            self.phase = Phase::Waiting { until };
        }
        refused
    }

    /// Returns whether the relay announced the end of the last stream, to be reopened soon.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced
    }

    /// Returns an outage that is due for a log line.
    pub(crate) fn outage(&mut self, now: Tick) -> Option<Outage> {
        let failures = self.failures.as_mut()?;
        let duration = now.since(failures.since);
        let is_short = failures.attempts < OUTAGE_ATTEMPTS && duration < OUTAGE_MIN_DURATION;
        let is_logged = |at: Tick| now < at + OUTAGE_LOG_INTERVAL;
        if is_short || failures.logged_at.is_some_and(is_logged) {
            return None;
        }
        failures.logged_at = Some(now);
        Some(Outage {
            attempts: failures.attempts,
            duration,
            reason: self.cause.clone().unwrap_or_default(),
        })
    }

    /// Returns why there is no stream: for people, once for each cause.
    pub(crate) fn cause(&self) -> Option<&Arc<str>> {
        self.cause.as_ref()
    }

    pub(crate) fn state(&self) -> ConnectionState {
        match self.phase {
            Phase::Open {
                first_message: Some(_),
                ..
            } => ConnectionState::Connected,
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

    /// Returns whether a proxy may answer so while the relay behind it is away: a relay has served
    /// this stream before.
    fn is_answer_of_proxy(&self, kind: ErrorKind) -> bool {
        self.ever_connected && matches!(kind, ErrorKind::NotFound | ErrorKind::Unsupported)
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

    /// Counts an attempt that failed before its first message.
    fn note_failure(&mut self, now: Tick) {
        if self.state() == ConnectionState::Connected {
            return;
        }
        let failures = self.failures.get_or_insert(Failures {
            attempts: 0,
            since: now,
            logged_at: None,
        });
        failures.attempts = failures.attempts.saturating_add(1);
    }

    fn reset_if_stable(&mut self, now: Tick) {
        if let Phase::Open {
            first_message: Some(first),
            ..
        } = self.phase
            && now.since(first) >= STABLE_AFTER
        {
            self.backoff.reset();
            self.untried = self.config.others;
        }
    }

    fn dead_at(&self, last_message: Tick) -> Tick {
        if planted!(SilenceUnnoticed) {
            return Tick::NEVER;
        }
        last_message + self.heartbeat * 5 / 2
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

/// Returns whether another relay may serve what this one did not: it cannot be reached, ends, or has no
/// room. A refusal of the caller or of the request would be repeated.
pub(crate) fn leaves_relay(error: Option<&Error>) -> bool {
    error.is_none_or(|error| match error.kind() {
        ErrorKind::Unavailable
        | ErrorKind::Timeout
        | ErrorKind::Closed
        | ErrorKind::Internal
        | ErrorKind::Busy => true,
        // Without a time the request is too large.
        ErrorKind::Exhausted => error.retry_after().is_some(),
        ErrorKind::Invalid
        | ErrorKind::NotFound
        | ErrorKind::Conflict
        | ErrorKind::Denied
        | ErrorKind::Unsupported => false,
    })
}

/// Returns whether the same request would be refused again.
pub(super) fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::Unsupported | ErrorKind::NotFound
    )
}
