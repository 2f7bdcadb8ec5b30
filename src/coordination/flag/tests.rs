//! Tests of flags: operations, failures, and all interleavings.

mod basics;
mod kept;
mod limits;
mod races;
mod stepped;
mod stored;
mod timers;
mod watchers;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::types::{FlagEvent, FlagName, FlagState, ListenerId, UnleashOptions};

fn name(name: &str) -> FlagName {
    FlagName::new(name).expect("a name")
}

fn listener(id: &str) -> ListenerId {
    ListenerId::new(id).expect("an id")
}

/// The wall clock, in seconds after a fixed day.
fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn forever() -> UnleashOptions {
    UnleashOptions::default()
}

fn lasting(seconds: u64) -> UnleashOptions {
    UnleashOptions {
        ttl: Some(Duration::from_secs(seconds)),
        ..UnleashOptions::default()
    }
}

/// Takes all pending events of a watcher.
fn take_all(watch: &super::WatchGuard) -> Vec<FlagEvent> {
    std::iter::from_fn(|| watch.next_event(std::task::Waker::noop()))
        .map(FlagEvent::from)
        .collect()
}

/// Takes the pending states of a watcher.
fn take_states(watch: &super::WatchGuard) -> Vec<FlagState> {
    let states = take_all(watch).into_iter().filter_map(|event| match event {
        FlagEvent::State(state) => Some(state),
        _ => None,
    });
    states.collect()
}
