//! Whether this relay is isolated, and what its streams are told of it (C9).

use std::time::Duration;

use super::{FLAP_HOLD, FLAP_WITHIN};
use crate::base::clock::Tick;

/// The state `degraded`.
#[derive(Debug)]
pub(super) struct Isolation {
    phase: Phase,
    /// How long the link must hold before this isolation ends.
    hold: Duration,
    /// The end of the last isolation; that of the start is none.
    ended_at: Option<Tick>,
    starting: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connected,
    Isolated,
    /// Own messages return again. The isolation ends at this time if they still do.
    Holding(Tick),
}

/// A change of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Began,
    Ended,
}

impl Isolation {
    /// A relay that starts is isolated.
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Isolated,
            hold: Duration::ZERO,
            ended_at: None,
            starting: true,
        }
    }

    /// Takes over whether own messages return at this moment.
    pub(super) fn update(&mut self, isolated: bool, now: Tick) -> Option<Change> {
        match (self.phase, isolated) {
            (Phase::Connected, true) => {
                let flaps = |ended_at: Tick| now.since(ended_at) < FLAP_WITHIN;
                self.hold = if self.ended_at.is_some_and(flaps) {
                    FLAP_HOLD
                } else {
                    Duration::ZERO
                };
                self.phase = Phase::Isolated;
                Some(Change::Began)
            }
            (Phase::Holding(_), true) => {
                self.phase = Phase::Isolated;
                None
            }
            (Phase::Isolated, false) if self.hold == Duration::ZERO => Some(self.end(now)),
            (Phase::Isolated, false) => {
                self.phase = Phase::Holding(now + self.hold);
                None
            }
            (Phase::Holding(until), false) if now >= until => Some(self.end(now)),
            _ => None,
        }
    }

    pub(super) fn is_degraded(&self) -> bool {
        self.phase != Phase::Connected
    }

    /// Returns when the state changes although nothing arrives.
    pub(super) fn deadline(&self) -> Tick {
        match self.phase {
            Phase::Holding(until) => until,
            Phase::Connected | Phase::Isolated => Tick::NEVER,
        }
    }

    fn end(&mut self, now: Tick) -> Change {
        self.phase = Phase::Connected;
        self.ended_at = (!self.starting).then_some(now);
        self.starting = false;
        Change::Ended
    }
}
