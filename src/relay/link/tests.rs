//! Links connected by a broker in memory, in each situation of docs/internal/cluster-rules.md.
//!
//! A scenario returns what broke. It must pass with the rules as they are, and fail with each of
//! the planted faults that it names.

mod frames;
mod heartbeats;
mod isolation;
mod limits;
mod peers;
mod random;
mod world;

use crate::base::fault::Fault;

type Outcome = Result<(), String>;

/// Fails the scenario with a message.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

use ensure;

/// Runs a scenario with the rules as they are, then with each fault that it has to find.
#[track_caller]
fn check(scenario: impl Fn(Fault) -> Outcome, faults: &[Fault]) {
    if let Err(broken) = scenario(Fault::None) {
        panic!("{broken}");
    }
    let missed = faults.iter().filter(|fault| scenario(**fault).is_ok());
    let missed: Vec<_> = missed.collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
