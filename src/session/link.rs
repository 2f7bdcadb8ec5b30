//! The life of a stream that reconnects for ever: wait, open, hold, notice that it is dead.
//!
//! What subscriptions and flag watches have in common. A stream on which nothing was heard for 2.5
//! heartbeats is dead; waits between attempts grow with full jitter, and start again only after a
//! stream that lasted (I18: retries are bounded), so that a flapping link makes no storm.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::{
    backoff::Backoff,
    clock::Tick,
    error::{Error, ErrorKind},
    fault::{Fault, planted},
    words::{ConnectionState, Goodbye, GoodbyeReason, Limits},
};

/// How a link reconnects.
#[derive(Debug, Clone)]
pub(crate) struct LinkConfig {
    /// The first reconnection waits at most this long.
    pub(crate) base: Duration,
    /// No reconnection waits longer.
    pub(crate) max: Duration,
    /// An attempt to open a stream that takes longer has failed.
    pub(crate) open_timeout: Duration,
    /// Bytes of a subscribe request at most.
    pub(crate) request_bytes: usize,
    /// Positions that a subscription keeps, and that a request states, at most.
    pub(crate) positions: usize,
    pub(crate) fault: Fault,
}

/// What a driver does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Open a stream now.
    Open,
    /// Wait until then, for the stream to open or for the next attempt.
    Wait(Tick),
    /// Read the stream; it is dead where nothing has come by then.
    Read(Tick),
    /// It is over: the link was refused for good.
    Closed,
}

/// The link's state machine.
#[derive(Debug)]
pub(crate) struct Link {
    config: LinkConfig,
    phase: Phase,
    backoff: Backoff,
    heartbeat: Duration,
    /// A relay has been heard here, on this stream or on an earlier one.
    found: bool,
    /// The last stream ended as the relay had announced, soon to be opened again, and no attempt
    /// failed since.
    announced: bool,
    /// Attempts that failed since a message last arrived.
    failures: Option<Failures>,
}

/// Consecutive attempts to open a stream, none of which brought a message.
#[derive(Debug)]
struct Failures {
    attempts: u32,
    since: Tick,
    reason: String,
    /// When they were last told of.
    told: Option<Tick>,
}

/// Attempts to open a stream that go on failing: to be logged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) attempts: u32,
    pub(crate) lasts: Duration,
    /// Why the last attempt failed.
    pub(crate) reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting {
        until: Tick,
    },
    Opening {
        until: Tick,
    },
    /// The stream is open; `since` the first message.
    Open {
        heard: Tick,
        since: Option<Tick>,
    },
    /// Ended by this side, until it is resumed.
    Paused,
    Closed,
}

/// I18: retries are bounded. Only a stream that lived this long sets the back-off back.
const LASTING: Duration = Duration::from_secs(10);
/// A relay that asks for a longer wait than this is away meanwhile.
const SOON: Duration = Duration::from_secs(5);
/// An outage is told of after so many failed attempts, or after so long: a relay's quick restart
/// passes in silence.
const OUTAGE_ATTEMPTS: u32 = 3;
const OUTAGE_LASTS: Duration = Duration::from_secs(10);
/// An outage is told of this often.
const OUTAGE_TOLD: Duration = Duration::from_secs(60);

impl Default for LinkConfig {
    /// The first reconnection within 1 s, growing to 10 s: a restart is seen within 3 s, and ten
    /// thousand listeners come back at about two thousand a second.
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            max: Duration::from_secs(10),
            open_timeout: Duration::from_secs(5),
            request_bytes: Limits::SUBSCRIBE_BYTES,
            positions: Limits::POSITIONS,
            fault: Fault::NONE,
        }
    }
}

impl Link {
    /// Makes a link that opens its first stream at once.
    pub(crate) fn new(config: LinkConfig) -> Self {
        let backoff = Backoff::new(config.base, config.max);
        let phase = Phase::Waiting {
            until: Tick::default(),
        };
        Self {
            config,
            phase,
            backoff,
            heartbeat: Limits::HEARTBEAT,
            found: false,
            announced: false,
            failures: None,
        }
    }

    /// Returns what to do next.
    pub(crate) fn step(&mut self, now: Tick) -> Step {
        match self.phase {
            Phase::Waiting { until } if until <= now => {
                self.phase = Phase::Opening {
                    until: now + self.config.open_timeout,
                };
                Step::Open
            }
            Phase::Waiting { until } | Phase::Opening { until } => Step::Wait(until),
            Phase::Open { heard, since } => {
                let dead = self.dead_at(heard);
                Step::Read(match self.announced && since.is_none() {
                    true => dead.min(heard + SOON),
                    false => dead,
                })
            }
            Phase::Paused => Step::Wait(Tick::NEVER),
            Phase::Closed => Step::Closed,
        }
    }

    /// The stream is open; its first message is still to come.
    pub(crate) fn opened(&mut self, now: Tick) {
        self.phase = Phase::Open {
            heard: now,
            since: None,
        };
    }

    /// Something arrived: a sign of life.
    pub(crate) fn heard(&mut self, now: Tick) {
        if let Phase::Open { since, .. } = self.phase {
            self.found = true;
            self.announced = false;
            self.failures = None;
            self.phase = Phase::Open {
                heard: now,
                since: since.or(Some(now)),
            };
        }
    }

    /// The relay stated its heartbeat.
    pub(crate) fn beats(&mut self, heartbeat: Duration) {
        self.heartbeat = heartbeat.clamp(Limits::HEARTBEAT_MIN, Limits::HEARTBEAT_MAX);
    }

    /// The time has come that the last step named. Returns whether the stream is to be dropped.
    pub(crate) fn elapsed(&mut self, now: Tick, rng: &mut fastrand::Rng) -> bool {
        let dead = match self.phase {
            Phase::Opening { until } => until <= now,
            Phase::Open { heard, .. } => self.dead_at(heard) <= now,
            Phase::Waiting { .. } | Phase::Paused | Phase::Closed => false,
        };
        if dead {
            self.broken(now, None, rng);
        } else if let Phase::Open { heard, since: None } = self.phase
            && heard + SOON <= now
        {
            // Something in between has opened it, and no relay speaks.
            self.announced = false;
        }
        dead
    }

    /// The stream broke or could not be opened. Returns the error where it is final.
    pub(crate) fn broken(
        &mut self,
        now: Tick,
        error: Option<&Error>,
        rng: &mut fastrand::Rng,
    ) -> Option<Error> {
        self.announced &= planted!(self.config.fault, AnnouncedForever);
        if let Some(error) = error.filter(|error| self.ends_with(error.kind())) {
            self.phase = Phase::Closed;
            return Some(error.clone());
        }
        self.note_failure(now, error);
        self.reset_after_lasting(now);
        let wait = asked(error) + self.backoff.next(rng);
        self.phase = Phase::Waiting { until: now + wait };
        None
    }

    /// The relay refused the request for its size, and the next one is smaller: the back-off does
    /// not grow.
    pub(crate) fn too_large(&mut self, now: Tick, error: &Error, rng: &mut fastrand::Rng) {
        self.note_failure(now, Some(error));
        let wait = asked(Some(error)) + crate::backoff::jitter(self.config.base, rng);
        self.phase = Phase::Waiting { until: now + wait };
    }

    /// The relay said goodbye: reconnect when it asked to. A goodbye is no failure, so the back-off
    /// does not grow; and a stream that lasted was a success, however it ended.
    pub(crate) fn goodbye(&mut self, now: Tick, goodbye: Goodbye, rng: &mut fastrand::Rng) {
        if !planted!(self.config.fault, GoodbyeKeepsBackoff) {
            self.reset_after_lasting(now);
        }
        self.announced = goodbye.reconnect_after <= SOON
            && matches!(
                goodbye.reason,
                GoodbyeReason::Rotation | GoodbyeReason::Draining
            );
        // Spread besides, whatever the relay says: it may have told everybody the same.
        let spread = crate::backoff::jitter(self.config.base / 4, rng);
        self.phase = Phase::Waiting {
            until: now + goodbye.reconnect_after.min(Limits::AWAY) + spread,
        };
    }

    /// Has a link that was refused for good ask again after about `after`; returns whether it was.
    pub(crate) fn ask_again(
        &mut self,
        now: Tick,
        after: Duration,
        rng: &mut fastrand::Rng,
    ) -> bool {
        let refused = self.phase == Phase::Closed;
        if refused {
            let until = now + crate::backoff::about(after, rng);
            self.phase = Phase::Waiting { until };
        }
        refused
    }

    /// Ends the stream until it is called with `false`, and opens the next one at once then. Returns
    /// whether that changes anything; it does not where the link was refused for good.
    pub(crate) fn pause(&mut self, paused: bool, now: Tick) -> bool {
        self.phase = match (paused, self.phase) {
            (true, Phase::Paused | Phase::Closed) => return false,
            (true, _) => Phase::Paused,
            (false, Phase::Paused) => Phase::Waiting { until: now },
            (false, _) => return false,
        };
        // Nothing is wrong with the relay.
        (self.announced, self.failures) = (true, None);
        true
    }

    /// Returns whether the relay ended the last stream as it had announced, to be opened again soon.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced
    }

    /// Returns the outage, where it is time to tell of it.
    pub(crate) fn outage(&mut self, now: Tick) -> Option<Outage> {
        let failures = self.failures.as_mut()?;
        let lasts = now.since(failures.since);
        if failures.attempts < OUTAGE_ATTEMPTS && lasts < OUTAGE_LASTS {
            return None;
        }
        if failures.told.is_some_and(|told| now < told + OUTAGE_TOLD) {
            return None;
        }
        failures.told = Some(now);
        Some(Outage {
            attempts: failures.attempts,
            lasts,
            reason: failures.reason.clone(),
        })
    }

    pub(crate) fn state(&self) -> ConnectionState {
        match self.phase {
            Phase::Open { since: Some(_), .. } => ConnectionState::Connected,
            Phase::Closed => ConnectionState::Closed,
            _ => ConnectionState::Reconnecting,
        }
    }

    /// Returns whether trying again is useless.
    ///
    /// A refusal of the request itself stays one. All others are final for a link that is new, so
    /// that a wrong address or a missing right is told at once; never for one that has worked. A
    /// proxy answers 404, 403 or UNIMPLEMENTED while the relay behind it restarts, and credentials
    /// are rotated behind a fleet that is parked: a listener that gave up then would sleep through
    /// every later wake-up, one that keeps asking costs a request in ten seconds.
    fn ends_with(&self, kind: ErrorKind) -> bool {
        match kind {
            ErrorKind::Invalid => true,
            kind => !self.found && is_final(kind),
        }
    }

    /// Counts an attempt that failed before any message arrived.
    fn note_failure(&mut self, now: Tick, error: Option<&Error>) {
        if matches!(self.phase, Phase::Open { since: Some(_), .. }) {
            return;
        }
        let failures = self.failures.get_or_insert_with(|| Failures {
            attempts: 0,
            since: now,
            reason: String::new(),
            told: None,
        });
        failures.attempts = failures.attempts.saturating_add(1);
        failures.reason = error.map_or_else(|| "no answer in time".to_owned(), Error::to_string);
    }

    fn reset_after_lasting(&mut self, now: Tick) {
        if let Phase::Open {
            since: Some(since), ..
        } = self.phase
            && now.since(since) >= LASTING
        {
            self.backoff.reset();
        }
    }

    fn dead_at(&self, heard: Tick) -> Tick {
        if planted!(self.config.fault, SilenceUnnoticed) {
            return Tick::NEVER;
        }
        heard + self.heartbeat * 5 / 2
    }
}

/// Returns how long the relay asked to wait, within reason.
fn asked(error: Option<&Error>) -> Duration {
    let asked = error.and_then(Error::retry_after);
    asked.unwrap_or_default().min(Limits::AWAY)
}

/// Returns whether the answer to a single request is a refusal, which the same request would meet
/// again.
pub(super) fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::Unsupported | ErrorKind::NotFound
    )
}
