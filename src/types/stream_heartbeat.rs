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
    /// At random within [`RECONNECT_SPREAD`]; also this stream's part of the span of a drain.
    reconnect_after: Duration,
    pub(crate) ended: bool,
}

/// A relay's orderly end: its streams end one after another within a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drain {
    pub(crate) began: Tick,
    pub(crate) span: Duration,
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

    /// Ends the stream at its age, or at its part of a drain's span. Returns its last message. A
    /// drain may bring `ends_at` forward.
    pub(crate) fn goodbye(&mut self, now: Tick, drain: Option<Drain>) -> Option<Goodbye> {
        if let Some(drain) = drain {
            let part = self.reconnect_after.div_duration_f64(RECONNECT_SPREAD);
            let ends_at = drain.began + drain.span.mul_f64(part);
            self.ends_at = self.ends_at.min(ends_at);
        }
        if now < self.ends_at {
            return None;
        }
        self.ended = true;
        let (reason, reconnect_after) = match drain {
            // The span of the drain already spreads the reconnections.
            Some(drain) if drain.span >= RECONNECT_SPREAD => {
                (GoodbyeReason::Draining, Duration::ZERO)
            }
            Some(_) => (GoodbyeReason::Draining, self.reconnect_after),
            None => (GoodbyeReason::Rotation, Duration::ZERO),
        };
        Some(Goodbye {
            reason,
            reconnect_after,
        })
    }
}

impl Drain {
    /// A drain without a span: all streams end now.
    #[cfg(test)]
    pub(crate) fn at_once(now: Tick) -> Self {
        Self {
            began: now,
            span: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Tick {
        Tick::default() + SECOND * u32::try_from(seconds).expect("few")
    }

    fn streams(count: usize) -> Vec<StreamLifecycle> {
        let mut rng = fastrand::Rng::with_seed(7);
        let stream = |_| StreamLifecycle::new(SECOND, SECOND * 1800, at(0), &mut rng);
        (0..count).map(stream).collect()
    }

    #[test]
    fn the_goodbyes_of_a_drain_are_spread_over_its_span() {
        let mut streams = streams(1000);
        let (began, span) = (at(100), SECOND * 10);
        let drain = Some(Drain { began, span });
        let mut told = Vec::new();
        for second in 100..=110 {
            let goodbyes = streams.iter_mut().filter(|stream| !stream.ended);
            let goodbyes = goodbyes.filter_map(|stream| stream.goodbye(at(second), drain));
            let goodbyes: Vec<_> = goodbyes.collect();
            for goodbye in &goodbyes {
                assert_eq!(goodbye.reason, GoodbyeReason::Draining);
                assert_eq!(goodbye.reconnect_after, Duration::ZERO, "spread already");
            }
            told.push(goodbyes.len());
        }
        assert_eq!(told.iter().sum::<usize>(), 1000, "{told:?}");
        assert!(told[0] < 5, "{told:?}");
        assert!(told[1..].iter().all(|n| (60..=140).contains(n)), "{told:?}");
    }

    #[test]
    fn a_stream_waits_for_its_part_of_the_drain_and_no_longer() {
        for mut stream in streams(100) {
            let (began, span) = (at(100), SECOND * 10);
            let drain = Some(Drain { began, span });
            if stream.goodbye(began, drain).is_none() {
                let until = stream.ends_at;
                assert!(until > began && until <= began + span, "{until:?}");
                assert!(stream.goodbye(until, drain).is_some());
            }
        }
    }

    #[test]
    fn a_drain_without_a_span_ends_all_streams_at_once_and_spreads_the_reconnections() {
        let mut waits = Vec::new();
        for mut stream in streams(100) {
            let goodbye = stream.goodbye(at(100), Some(Drain::at_once(at(100))));
            waits.push(goodbye.expect("it ends").reconnect_after);
        }
        assert!(waits.iter().all(|wait| *wait <= SECOND), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait > SECOND / 2), "{waits:?}");
    }

    #[test]
    fn a_stream_at_its_maximum_age_ends_with_a_rotation() {
        for mut stream in streams(10) {
            assert!(stream.goodbye(at(1000), None).is_none());
            let goodbye = stream.goodbye(at(3600), None).expect("it ends");
            assert_eq!(goodbye.reason, GoodbyeReason::Rotation);
        }
    }
}
