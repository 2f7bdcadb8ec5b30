//! Flags that were written through a relay, for the other relays of a cluster (C14).
//!
//! A hint never replaces the store: the receiver tells its watchers of a set that they have not seen
//! (R21), and then reads the flag.

use std::sync::Mutex;

use tokio::sync::Notify;

use super::{
    Flags,
    document::EndedSet,
    wakers::{PendingWakes, Wakers},
};
use crate::{
    base::sync::lock,
    types::{
        FlagState,
        cluster::{ChangedFlags, FlagHint, FlagSet},
    },
};

/// Hints that wait for the next frames.
#[derive(Debug, Default)]
pub(crate) struct FlagHints {
    waiting: Mutex<ChangedFlags>,
    changed: Notify,
}

impl FlagHints {
    fn add(&self, hint: FlagHint) {
        lock(&self.waiting).add(hint);
        self.changed.notify_one();
    }

    /// Waits until there are hints, and takes them. Cancel safe.
    pub(crate) async fn take(&self) -> ChangedFlags {
        loop {
            let taken = std::mem::take(&mut *lock(&self.waiting));
            if !taken.is_empty() {
                return taken;
            }
            self.changed.notified().await;
        }
    }
}

impl Flags {
    /// Returns the hints of writes from now on; the caller takes them from time to time.
    pub(crate) fn hints(&self) -> &FlagHints {
        self.inner.hints.get_or_init(FlagHints::default)
    }

    /// Notes a flag that was set, for the other relays, where there are any.
    pub(super) fn note_set(&self, state: &FlagState) {
        // The generation of a flag that was set by hand is a hash. Any number of a set that is over
        // is greater then.
        let number = match state.generation {
            FlagState::HASHES.. => 1,
            generation => generation,
        };
        self.note_written(state, true, number);
    }

    /// Notes a flag that was cleared.
    pub(super) fn note_cleared(&self, ended: &EndedSet) {
        self.note_written(&ended.state, false, ended.number);
    }

    fn note_written(&self, set: &FlagState, set_now: bool, number: u64) {
        if let Some(hints) = self.inner.hints.get() {
            hints.add(FlagHint {
                name: set.name.clone(),
                newest_set: Some(FlagSet::of(set)),
                set_now,
                number,
            });
        }
    }

    /// Takes the hints of another relay: tells this relay's watchers of a set that they have not
    /// seen, and has the flags read. Flags without a watcher are left out.
    pub(crate) fn hear(&self, hints: Vec<FlagHint>) -> PendingWakes<()> {
        let mut wakers = Wakers::default();
        for hint in hints {
            wakers.append(self.inner.registry().hear(hint));
        }
        self.inner.refresh_requested.notify_one();
        PendingWakes {
            outcome: (),
            wakers,
        }
    }
}
