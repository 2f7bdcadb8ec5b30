//! The life of a stream that reconnects for ever: wait, open, hold, notice that it is dead.
//!
//! What subscriptions and flag watches have in common. A stream on which nothing was heard for 2.5
//! heartbeats is dead; waits between attempts grow with full jitter, and start again only after a
//! stream that lasted (I18), so that a flapping link makes no storm.

use std::time::Duration;

use crate::{
    backoff::Backoff,
    clock::Tick,
    error::{Error, ErrorKind},
    fault::{Fault, planted},
    words::{ConnectionState, Goodbye, Limits},
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
    Closed,
}

/// A stream that lived this long was a success (I18).
const LASTING: Duration = Duration::from_secs(10);

impl Default for LinkConfig {
    /// The first reconnection within 1 s, growing to 10 s: a restart is seen within 3 s, and ten
    /// thousand listeners come back at about two thousand a second.
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            max: Duration::from_secs(10),
            open_timeout: Duration::from_secs(5),
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
            Phase::Open { heard, .. } => Step::Read(self.dead_at(heard)),
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
            Phase::Waiting { .. } | Phase::Closed => false,
        };
        if dead {
            self.broken(now, None, rng);
        }
        dead
    }

    /// The stream broke or could not be opened. Returns the error where it is final.
    pub(crate) fn broken(
        &mut self,
        now: Tick,
        error: Option<Error>,
        rng: &mut fastrand::Rng,
    ) -> Option<Error> {
        if let Some(error) = error.as_ref().filter(|error| self.ends_with(error.kind())) {
            self.phase = Phase::Closed;
            return Some(error.clone());
        }
        if let Phase::Open {
            since: Some(since), ..
        } = self.phase
            && now.since(since) >= LASTING
        {
            self.backoff.reset();
        }
        let asked = error
            .and_then(|error| error.retry_after())
            .unwrap_or_default()
            .min(Limits::AWAY);
        self.phase = Phase::Waiting {
            until: now + asked + self.backoff.next(rng),
        };
        None
    }

    /// The relay said goodbye: reconnect when it asked to.
    pub(crate) fn goodbye(&mut self, now: Tick, goodbye: Goodbye, rng: &mut fastrand::Rng) {
        // Spread besides, whatever the relay says: it may have told everybody the same.
        let spread = crate::backoff::jitter(self.config.base / 4, rng);
        self.phase = Phase::Waiting {
            until: now + goodbye.reconnect_after.min(Limits::AWAY) + spread,
        };
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

    fn dead_at(&self, heard: Tick) -> Tick {
        if planted!(self.config.fault, SilenceUnnoticed) {
            return Tick::NEVER;
        }
        heard + self.heartbeat * 5 / 2
    }
}

/// Returns whether the answer to a single request is a refusal, which the same request would meet
/// again.
pub(super) fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::Unsupported | ErrorKind::NotFound
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick::from_nanos(seconds * 1_000_000_000)
    }

    fn link() -> (Link, fastrand::Rng) {
        (
            Link::new(LinkConfig::default()),
            fastrand::Rng::with_seed(1),
        )
    }

    #[test]
    fn silence_for_two_and_a_half_heartbeats_is_death() {
        let (mut link, mut rng) = link();
        assert_eq!(link.step(at(0)), Step::Open);
        link.opened(at(0));
        link.heard(at(1));
        assert_eq!(link.state(), ConnectionState::Connected);
        assert_eq!(link.step(at(2)), Step::Read(at(26)));
        assert!(!link.elapsed(at(25), &mut rng));
        assert!(link.elapsed(at(26), &mut rng));
        assert_eq!(link.state(), ConnectionState::Reconnecting);
    }

    #[test]
    fn waits_grow_until_a_stream_has_lasted() {
        let (mut link, mut rng) = link();
        for _ in 0..20 {
            link.broken(at(0), None, &mut rng);
        }
        let waits = (0..50).map(|_| {
            link.opened(at(0));
            link.heard(at(0));
            link.broken(at(1), None, &mut rng);
            let Step::Wait(until) = link.step(at(0)) else {
                panic!("it waits")
            };
            until.since(at(1))
        });
        assert!(
            waits.max() > Some(Duration::from_secs(5)),
            "a stream of a second is no success"
        );
        link.opened(at(0));
        link.heard(at(0));
        link.broken(at(10), None, &mut rng);
        let Step::Wait(until) = link.step(at(0)) else {
            panic!("it waits")
        };
        assert!(until <= at(11));
    }

    #[test]
    fn only_a_refusal_is_final() {
        let (mut link, mut rng) = link();
        let gone = Error::new(ErrorKind::Unavailable, "connection refused");
        assert!(link.broken(at(0), Some(gone), &mut rng).is_none());
        let refused = Error::invalid("selectors", "must hold at least one");
        assert!(link.broken(at(0), Some(refused), &mut rng).is_some());
        assert_eq!(link.step(at(99)), Step::Closed);
    }

    #[test]
    fn what_a_proxy_may_say_is_final_only_until_the_relay_was_heard() {
        for kind in [
            ErrorKind::Denied,
            ErrorKind::NotFound,
            ErrorKind::Unsupported,
        ] {
            let (mut link, mut rng) = link();
            link.opened(at(0));
            let refused = Some(Error::new(kind, "not here"));
            assert!(link.broken(at(0), refused, &mut rng).is_some(), "{kind:?}");
            assert_eq!(link.state(), ConnectionState::Closed);

            let (mut link, mut rng) = self::link();
            link.opened(at(0));
            link.heard(at(1));
            link.broken(at(2), None, &mut rng);
            for second in 3..100 {
                let refused = Some(Error::new(kind, "not here"));
                let refusal = link.broken(at(second), refused, &mut rng);
                assert!(refusal.is_none(), "{kind:?}");
                assert_eq!(link.state(), ConnectionState::Reconnecting);
            }
            link.opened(at(200));
            link.heard(at(200));
            assert_eq!(link.state(), ConnectionState::Connected);
        }
    }

    #[test]
    fn a_request_that_breaks_a_rule_is_final_at_any_time() {
        let (mut link, mut rng) = link();
        link.opened(at(0));
        link.heard(at(1));
        let refused = Error::invalid("selectors", "must hold at least one");
        assert!(link.broken(at(2), Some(refused), &mut rng).is_some());
    }

    #[test]
    fn nobody_is_sent_away_for_longer_than_a_minute() {
        let (mut link, mut rng) = link();
        let week = Duration::from_secs(7 * 24 * 3600);
        let busy = Error::new(ErrorKind::Unavailable, "draining").with_retry_after(week);
        let goodbye = Goodbye {
            reason: crate::words::GoodbyeReason::Draining,
            reconnect_after: week,
        };
        for refused in [true, false] {
            link.opened(at(0));
            if refused {
                link.broken(at(0), Some(busy.clone()), &mut rng);
            } else {
                link.goodbye(at(0), goodbye, &mut rng);
            }
            let Step::Wait(until) = link.step(at(0)) else {
                panic!("it waits")
            };
            assert!(until >= at(60) && until <= at(61), "{until:?}");
        }
    }

    #[test]
    fn a_goodbye_is_obeyed() {
        let (mut link, mut rng) = link();
        link.opened(at(0));
        let reconnect_after = Duration::from_secs(5);
        let reason = crate::words::GoodbyeReason::Draining;
        link.goodbye(
            at(0),
            Goodbye {
                reason,
                reconnect_after,
            },
            &mut rng,
        );
        let Step::Wait(until) = link.step(at(1)) else {
            panic!("it waits")
        };
        assert!(until >= at(5) && until <= at(6));
    }
}
