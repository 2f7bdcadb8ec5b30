//! The choices of a seed for the hand-over's simulation: machines, routes, limits, faults.

use std::time::Duration;

use super::{DAY, MILLI, SECOND, machine::file_id};
use crate::courier::{QueueManagerConfig, Route, handover::Policy};

/// The choices of a seed.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) machines: usize,
    paths: Paths,
    /// Machines are reached by two names.
    aliases: bool,
    pub(super) messages: usize,
    /// The largest number of messages of a commit.
    pub(super) burst: usize,
    /// The mean time between two commits.
    pub(super) pause: i64,
    /// The time that a consumer takes.
    pub(super) handling: i64,
    pub(super) latency: i64,
    pub(super) max_age: i64,
    max_queue: u64,
    max_outgoing: u64,
    /// Consumers delete messages without a transaction.
    pub(super) deletes: bool,
    /// One frame in this many is lost, and so on; 0: none.
    pub(super) lost: u32,
    pub(super) late: u32,
    pub(super) repeated: u32,
    pub(super) swapped: u32,
    /// One step in this many is the last one of its machine's life.
    pub(super) crash_at_step: u32,
    /// The mean time between two troubles.
    pub(super) troubles: i64,
    pub(super) crashes: bool,
    pub(super) restores: bool,
    pub(super) clock_jumps: bool,
    /// The queue "missing" is created and removed again. Without restores, which would bring back
    /// refused messages.
    pub(super) queue_changes: bool,
}

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paths {
    Direct,
    /// Through the last machine.
    Gate,
    /// All to an unknown machine, in a circle.
    Loop,
}

impl Shape {
    pub(super) fn new(rng: &mut fastrand::Rng) -> Self {
        let one_in = |rng: &mut fastrand::Rng, n: u32| if rng.bool() { rng.u32(3..n) } else { 0 };
        let paths = match rng.u8(..8) {
            0..=3 => Paths::Direct,
            4..=6 => Paths::Gate,
            _ => Paths::Loop,
        };
        let restores = rng.u8(..4) == 0;
        let slow = if rng.bool() { 50 * MILLI } else { 2 * SECOND };
        let far = if rng.bool() { 5 * MILLI } else { 300 * MILLI };
        let queue_changes = !restores && rng.u8(..3) == 0;
        Self {
            machines: if paths == Paths::Direct {
                rng.usize(2..=3)
            } else {
                3
            },
            paths,
            aliases: rng.u8(..4) == 0,
            messages: if rng.bool() {
                rng.usize(2..12)
            } else {
                rng.usize(12..60)
            },
            burst: if rng.bool() { 1 } else { rng.usize(2..8) },
            // Several offers are under way when the queues change.
            pause: match rng.u8(..3) {
                0 | 1 if queue_changes => rng.i64(5 * MILLI..200 * MILLI),
                0 => rng.i64(5 * MILLI..200 * MILLI),
                _ => rng.i64(50 * MILLI..4 * SECOND),
            },
            handling: rng.i64(MILLI..slow),
            latency: rng.i64(MILLI..far),
            // A restored copy may expire a message that was handed over before.
            max_age: match !restores && rng.u8(..4) == 0 {
                true => rng.i64(SECOND..20 * SECOND),
                false => 14 * DAY,
            },
            max_queue: if rng.bool() { rng.u64(1..4) } else { u64::MAX },
            max_outgoing: if rng.bool() { rng.u64(2..6) } else { u64::MAX },
            deletes: rng.bool(),
            lost: one_in(rng, 40),
            late: one_in(rng, 30),
            repeated: one_in(rng, 20),
            swapped: one_in(rng, 40),
            crash_at_step: one_in(rng, 60),
            troubles: rng.i64(300 * MILLI..8 * SECOND),
            crashes: rng.bool(),
            restores,
            clock_jumps: rng.u8(..4) == 0,
            queue_changes,
        }
    }

    /// Chooses the machine of a message, and its name.
    pub(super) fn destination(&self, rng: &mut fastrand::Rng, from: usize) -> (usize, String) {
        if self.paths == Paths::Loop && rng.u8(..4) == 0 {
            return (from, "nowhere:1".to_owned());
        }
        let to = (from + rng.usize(1..self.machines)) % self.machines;
        let name = usize::from(self.aliases && rng.bool());
        (to, names(to)[name].clone())
    }

    /// Returns whether a message passes a machine on its way.
    pub(super) fn is_routed(&self, from: usize, to: usize) -> bool {
        let gate = self.machines - 1;
        self.paths == Paths::Gate && from != gate && to != gate
    }

    /// Returns whether a message was sent into the loop.
    pub(super) fn is_loop(&self, from: usize, to: usize) -> bool {
        self.paths == Paths::Loop && from == to
    }
}

/// Returns the names of a machine.
fn names(number: usize) -> [String; 2] {
    ["machine", "alias"].map(|name| format!("{name}-{number}:7600"))
}

/// Returns the machine of a name.
pub(super) fn number(authority: &str) -> usize {
    let number = authority
        .split_once('-')
        .and_then(|(_, rest)| rest.strip_suffix(":7600"));
    number
        .and_then(|number| number.parse().ok())
        .expect("a machine")
}

/// Returns the rules of a machine.
pub(super) fn policy(own: usize, shape: &Shape) -> Policy {
    let route = |pattern: &str, hop: usize| Route {
        pattern: pattern.to_owned(),
        hop: names(hop)[0].clone(),
    };
    let gate = shape.machines - 1;
    let mut routes = Vec::new();
    if shape.paths == Paths::Gate {
        // A machine does not know its own names, so that the gate's are not routed.
        let direct = (0..shape.machines).filter(|to| *to != own && (own == gate || *to == gate));
        let names = direct.flat_map(names);
        routes.extend(names.map(|name| Route {
            pattern: name.clone(),
            hop: name,
        }));
        if own != gate {
            routes.push(route("*", gate));
        }
    }
    if shape.paths == Paths::Loop {
        routes.push(route("nowhere:1", (own + 1) % shape.machines));
    }
    Policy {
        own: file_id(own),
        config: QueueManagerConfig {
            max_body: 1_000,
            max_queue: Some(shape.max_queue),
            // Full machines in a circle of routes wait for each other, until their messages are too
            // old.
            max_outgoing: match shape.paths {
                Paths::Loop => u64::MAX,
                Paths::Direct | Paths::Gate => shape.max_outgoing,
            },
            max_age: Duration::from_micros(shape.max_age.unsigned_abs()),
            routes,
            ..QueueManagerConfig::default()
        },
    }
}
