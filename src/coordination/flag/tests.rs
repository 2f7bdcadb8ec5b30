//! Tests of flags: operations, failures, and all interleavings.

mod acknowledgements;
mod basics;
mod ends;
mod kept;
mod limits;
#[cfg(all(feature = "relay", feature = "nats"))]
mod other_relays;
mod races;
mod stepped;
mod stored;
mod timers;
mod watchers;
mod watching;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use self::stepped::SteppedStore;
use super::{Flags, FlagsConfig, WatchGuard};
use crate::{
    base::sync::lock,
    types::{FlagEvent, FlagName, FlagState, ListenerId, UnleashOptions},
};

impl Flags {
    /// Returns the time of the next expiry.
    pub(crate) fn next_expiry(&self) -> Option<SystemTime> {
        self.inner
            .registry(|registry| registry.expiries.values().min().copied())
    }
}

/// Makes flags on a store that answers at once.
fn setup() -> (SteppedStore, Flags) {
    with(FlagsConfig::default())
}

fn with(config: FlagsConfig) -> (SteppedStore, Flags) {
    let store = SteppedStore::at_once();
    let flags = Flags::new(Arc::new(store.clone()), config);
    (store, flags)
}

/// Registers a watcher that knows the present state.
async fn watch(flags: &Flags, flag: &str) -> WatchGuard {
    let watch = flags.watch(&name(flag), listener("w"), false, at(0));
    watch.sync(at(0)).await.expect("sync");
    watch
}

/// Sets a flag at a second, and returns its state.
async fn unleash(flags: &Flags, flag: &str, options: &UnleashOptions, second: u64) -> FlagState {
    unleash_counted(flags, flag, options, second).await.0
}

/// Sets a flag at a second, and returns its state and the number of watchers.
async fn unleash_counted(
    flags: &Flags,
    flag: &str,
    options: &UnleashOptions,
    second: u64,
) -> (FlagState, u32) {
    let unleashed = flags.unleash(&name(flag), options, at(second)).await;
    unleashed.expect("unleash")
}

/// Returns a time that a test sets, and a clock that shows it.
fn settable_clock() -> (
    Arc<Mutex<SystemTime>>,
    impl Fn() -> SystemTime + Clone + Send + Sync + 'static,
) {
    let now = Arc::new(Mutex::new(at(0)));
    let shown = Arc::clone(&now);
    (now, move || *lock(&shown))
}

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
fn take_all(watch: &WatchGuard) -> Vec<FlagEvent> {
    std::iter::from_fn(|| watch.next_event(std::task::Waker::noop())).collect()
}

/// Takes the pending states of a watcher.
fn take_states(watch: &WatchGuard) -> Vec<FlagState> {
    let states = take_all(watch).into_iter().filter_map(|event| match event {
        FlagEvent::State(state) => Some(state),
        _ => None,
    });
    states.collect()
}
