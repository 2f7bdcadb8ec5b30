//! Flags that were written through a relay, for the other relays of a cluster (C14).
//!
//! A hint never replaces the store: the receiver counts it as a write that ended (R20), tells its
//! watchers of a set that they have not seen (R21), and then reads the flag. Hints of one flag
//! conflate to its newest set and its present state.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use tokio::sync::Notify;

use super::{Flags, registry::WriteOutcome, writes::WriteGuard};
use crate::{
    base::{fault::planted, sync::lock},
    error::Result,
    types::{
        FlagName, FlagState,
        cluster::{FlagHint, FlagSet},
    },
};

/// Hints that wait for their receiver: at most one for each flag.
#[derive(Debug, Default)]
pub(crate) struct FlagHints {
    waiting: Mutex<BTreeMap<FlagName, FlagHint>>,
    changed: Notify,
}

/// The delay of a further try after a failure of the store.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl FlagHints {
    pub(crate) fn add(&self, hint: FlagHint) {
        match lock(&self.waiting).entry(hint.name.clone()) {
            Entry::Vacant(place) => {
                place.insert(hint);
            }
            Entry::Occupied(mut place) => place.get_mut().merge(hint),
        }
        self.changed.notify_one();
    }

    /// Waits until there are hints, and takes them. Cancel safe.
    pub(crate) async fn take(&self) -> Vec<FlagHint> {
        loop {
            let taken = std::mem::take(&mut *lock(&self.waiting));
            if !taken.is_empty() {
                return taken.into_values().collect();
            }
            self.changed.notified().await;
        }
    }
}

impl Flags {
    /// Returns the hints of writes from now on; the caller takes them from time to time.
    pub(crate) fn hints(&self) -> &FlagHints {
        self.inner.hints.get_or_init(|| {
            self.inner.registry().set_shared();
            FlagHints::default()
        })
    }

    /// Notes a write for the other relays, where there are any.
    pub(super) fn note_written(&self, name: &FlagName, state: &FlagState) {
        if let Some(hints) = self.inner.hints.get() {
            hints.add(FlagHint {
                name: name.clone(),
                newest_set: state.set.then(|| FlagSet::of(state)),
                set_now: state.set,
            });
        }
    }

    /// Takes the hints of another relay: tells this relay's watchers of a set that they have not
    /// seen, then reads the flags. Flags without a watcher are left out.
    ///
    /// # Errors
    /// The store's error. The next refresh reads these flags again.
    pub(crate) async fn apply_hints(&self, hints: Vec<FlagHint>, wall: SystemTime) -> Result<()> {
        let mut names = Vec::with_capacity(hints.len());
        // A hint that was late may name an older set than the one known here.
        for hint in hints {
            let set = hint.newest_set.as_ref();
            let heard = self.inner.registry().hear(&hint.name, set);
            let Some(is_newer) = heard else { continue };
            let write = WriteGuard::begin(&self.inner, &hint.name);
            let told = !planted!(self.inner.fault, LinkHintSetUntold);
            match hint.newest_set.filter(|_| told) {
                Some(set) if is_newer => {
                    let outcome = WriteOutcome::Heard(set.into_state(&hint.name));
                    write.end(outcome).wake_watchers().await;
                }
                // Dropped, it counts as a write with an unknown outcome: earlier reads do not count.
                _ => drop(write),
            }
            names.push(hint.name);
        }
        self.read_each(&names, wall).await
    }
}

/// Tells this relay's watchers of flags that were written through other relays. The store may be
/// slow, and the task of the cluster must not wait for it.
pub(crate) async fn read_heard<S: Future<Output = ()>>(
    flags: Flags,
    heard: Arc<FlagHints>,
    wall: impl Fn() -> SystemTime,
    sleep: impl Fn(Duration) -> S,
) {
    loop {
        let hints = heard.take().await;
        if let Err(error) = flags.apply_hints(hints, wall()).await {
            tracing::warn!(%error, "flags of another relay could not be read; they are read again");
            sleep(READ_AGAIN_AFTER).await;
            flags.refresh_soon();
        }
    }
}
