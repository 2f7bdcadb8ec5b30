//! The state of one flag, and the pending events of its watchers.
//!
//! Each state of the flag has a number. A watcher stores the number of the newest state that it has
//! received, and the flag stores the newest set beside the present state. R21: a set is never
//! conflated away. The memory of a watcher is constant, however many changes it has missed. Pure:
//! no locks, no waits, no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    task::Waker,
    time::SystemTime,
};

use super::{
    acks::AckKey,
    document::{ALLOWANCE, Version},
    event::{Acks, Event, SharedState},
    wakers::Wakers,
};
#[cfg(all(feature = "relay", feature = "nats"))]
use crate::types::cluster::FlagSet;
use crate::{
    base::fault::{Fault, planted},
    types::{FlagName, FlagState},
};

/// The state of one flag.
#[derive(Debug)]
pub(super) struct FlagEntry {
    name: FlagName,
    /// The present state; `None` while it is unknown.
    present: Option<Arc<SharedState>>,
    /// When to read the blob again: at its expiry, which may have passed already.
    check_at: Option<SystemTime>,
    /// The number of the present state. Each change increments it.
    change: u64,
    newest_set: Option<Arc<SharedState>>,
    /// The number of the newest set; 0 for none.
    newest_set_change: u64,
    /// The number of the newest local write that set the flag under a new generation.
    unleashed_change: u64,
    /// The registry's sequence number at the creation of this entry.
    created: u64,
    /// The end of the newest local write, with any outcome, or of the newest read that counted.
    updated: u64,
    /// The version of the blob that the present state was read from; `None` if it was not read or
    /// has no blob.
    pub(super) version: Option<Version>,
    watchers: BTreeMap<u64, Watcher>,
    /// The watchers that receive counts of acknowledgements.
    observers: BTreeSet<u64>,
    /// The number of watchers at other relays of the cluster, as far as this one has observers.
    remote_watchers: u32,
    /// The listeners that acknowledged the newest set.
    pub(super) acked: BTreeSet<AckKey>,
    /// The newest counts that observers may take. Older counts are conflated.
    published_acks: Option<Acks>,
    /// The key in the registry's `idle` while the flag is not watched.
    pub(super) idle_key: Option<u64>,
    fault: Fault,
}

/// The state of one watcher.
#[derive(Debug)]
struct Watcher {
    /// The registry's sequence number at the registration.
    registered: u64,
    /// The relay's wall clock after the registration, when the first read began.
    registered_at: Option<SystemTime>,
    /// Whether a read that counts has supplied the present state (R20: only a fresh read settles a
    /// watcher).
    synced: bool,
    /// Whether it has received no state yet.
    is_new: bool,
    /// The number of the newest state that it has received.
    delivered: u64,
    delivered_acks: Option<Acks>,
    waker: Option<Waker>,
    /// Planted fault: a state that was read before the registration.
    #[cfg(test)]
    stale: Option<Arc<SharedState>>,
}

/// The origin of a state. The number is the registry's sequence at its begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StateOrigin {
    /// A local write that set the flag under a new generation.
    Unleash(u64),
    /// A set through another relay, which may have been cleared long ago, with its time on that
    /// relay's clock.
    Heard(u64, Option<SystemTime>),
    /// Another successful local write.
    Write(u64),
    /// A read of the store.
    Read(u64),
}

impl StateOrigin {
    /// Returns whether it is a write that set the flag under a new generation.
    pub(super) fn is_new_set(self) -> bool {
        matches!(self, Self::Unleash(_) | Self::Heard(..))
    }
}

impl FlagEntry {
    pub(super) fn new(name: FlagName, created: u64, fault: Fault) -> Self {
        Self {
            name,
            present: None,
            check_at: None,
            change: 0,
            newest_set: None,
            newest_set_change: 0,
            unleashed_change: 0,
            created,
            updated: 0,
            version: None,
            watchers: BTreeMap::new(),
            observers: BTreeSet::new(),
            remote_watchers: 0,
            acked: BTreeSet::new(),
            published_acks: None,
            idle_key: None,
            fault,
        }
    }

    pub(super) fn register(&mut self, id: u64, acks: bool) {
        let watcher = Watcher {
            registered: id,
            registered_at: None,
            synced: false,
            is_new: true,
            delivered: self.change,
            delivered_acks: None,
            waker: None,
            #[cfg(test)]
            stale: None,
        };
        self.watchers.insert(id, watcher);
        if acks {
            self.observers.insert(id);
        }
    }

    pub(super) fn unregister(&mut self, id: u64) {
        self.watchers.remove(&id);
        self.observers.remove(&id);
    }

    /// Returns the number of watchers without the observers.
    pub(super) fn watching(&self) -> u32 {
        u32::try_from(self.watchers.len() - self.observers.len()).unwrap_or(u32::MAX)
    }

    /// Sets the number of watchers at other relays. Returns whether it has changed.
    #[cfg(all(feature = "relay", feature = "nats"))]
    pub(super) fn set_remote_watchers(&mut self, watchers: u32) -> bool {
        std::mem::replace(&mut self.remote_watchers, watchers) != watchers
    }

    pub(super) fn is_watched(&self) -> bool {
        !self.watchers.is_empty()
    }

    pub(super) fn has_observers(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Returns whether the flag's acknowledgements keep it although it is not watched.
    pub(super) fn has_acks(&self) -> bool {
        !self.acked.is_empty() && self.present.as_ref().is_some_and(|state| state.set)
    }

    /// R20: returns whether a read that began at this sequence number counts. It does not if a
    /// local write has ended since, or another read that counted and may have seen newer content.
    /// Nor does it if this entry was created since, because the entry does not know earlier writes.
    pub(super) fn accepts_read(&self, began: u64) -> bool {
        self.created < began && self.updated < began
    }

    /// Returns whether a write ended or a read counted since this sequence number.
    pub(super) fn is_updated_since(&self, began: u64) -> bool {
        self.updated > began
    }

    /// Returns whether the newest set that is known here is older than one through another relay.
    #[cfg(all(feature = "relay", feature = "nats"))]
    pub(super) fn is_before(&self, set: &FlagSet) -> bool {
        let newest = self.newest_set.as_deref();
        newest.is_none_or(|known| {
            if planted!(self.fault, FlagHashOrdered) {
                return known.generation < set.generation;
            }
            let order = FlagState::set_order(known.generation, known.set_at);
            known.generation != set.generation && order < set.order()
        })
    }

    /// Notes the end of a local write, or of a read that counts.
    pub(super) fn mark_updated(&mut self, now: u64) {
        self.updated = now;
        self.version = None;
    }

    /// Returns the unset state of this flag.
    pub(super) fn unset(&self) -> FlagState {
        FlagState::unset(self.name.clone(), self.generation().unwrap_or(0))
    }

    /// Returns the newest set's generation.
    pub(super) fn generation(&self) -> Option<u64> {
        self.newest_set.as_ref().map(|state| state.generation)
    }

    /// Returns when to read the blob again, to end the flag.
    pub(super) fn check_at(&self) -> Option<SystemTime> {
        self.check_at
    }

    /// Applies a state that has held since its origin began, and the time to read the blob again.
    /// Watchers receive the state if it is a change. Watchers that registered before the origin
    /// began become synchronized.
    pub(super) fn apply(
        &mut self,
        state: FlagState,
        check_at: Option<SystemTime>,
        source: StateOrigin,
        wakers: &mut Wakers,
    ) {
        self.check_at = check_at;
        let same = match &self.present {
            Some(present) => ***present == state || (!present.set && !state.set),
            None => false,
        };
        if !same {
            self.change += 1;
            self.present = Some(SharedState::new(state));
            self.note_set(source);
        }
        let (StateOrigin::Unleash(began)
        | StateOrigin::Heard(began, _)
        | StateOrigin::Write(began)
        | StateOrigin::Read(began)) = source;
        wakers.reserve(if same { 0 } else { self.watchers.len() });
        let ignores_reads = planted!(self.fault, FlagReadBeforeRegister);
        for watcher in self.watchers.values_mut() {
            if watcher.came_after(source) && !planted!(self.fault, FlagOldSetTold) {
                // Its own read has seen the set, or found it cleared. A first state that it has not
                // received yet comes with the read that follows the announcement.
                watcher.delivered = self.change;
                watcher.synced &= !watcher.is_new;
                continue;
            }
            let syncs = watcher.registered < began && !watcher.synced && !ignores_reads;
            watcher.synced |= syncs;
            if watcher.registered > began
                && matches!(source, StateOrigin::Read(_))
                && watcher.is_new
            {
                // The state is older than this watcher. The watcher has missed nothing and reads
                // for itself.
                watcher.delivered = self.change;
            }
            let write = !matches!(source, StateOrigin::Read(_));
            if write && same && watcher.is_new && watcher.registered < began {
                // An older read has seen this write before it ended, and does not count for this
                // watcher. R21: a set is never conflated away, so the write is sent.
                watcher.delivered = watcher.delivered.min(self.change.saturating_sub(1));
            }
            if syncs || !same {
                wakers.push(watcher.waker.take());
            }
        }
    }

    /// Remembers a set apart from the present state.
    fn note_set(&mut self, source: StateOrigin) {
        let Some(state) = self.present.clone().filter(|state| state.set) else {
            return;
        };
        if self.generation() != Some(state.generation) {
            self.acked.clear();
        }
        if source.is_new_set() {
            self.unleashed_change = self.change;
        }
        self.newest_set = Some(state);
        self.newest_set_change = self.change;
    }

    /// Notes the relay's wall clock after a watcher's registration.
    pub(super) fn set_registered_at(&mut self, id: u64, wall: SystemTime) {
        if let Some(watcher) = self.watchers.get_mut(&id) {
            watcher.registered_at.get_or_insert(wall);
        }
    }

    /// Returns whether the present state is known for this watcher, received or pending.
    pub(super) fn is_synced(&self, id: u64) -> bool {
        self.watchers.get(&id).is_none_or(|watcher| watcher.synced)
    }

    /// Takes the watcher's next event. If there is none, `waker` is woken when one is ready.
    pub(super) fn next_event(&mut self, id: u64, waker: &Waker) -> Option<Event> {
        let ignores_reads = planted!(self.fault, FlagReadBeforeRegister);
        let conflates_sets = planted!(self.fault, FlagSetConflated);
        let watcher = self.watchers.get_mut(&id)?;
        #[cfg(test)]
        if watcher.is_new && watcher.stale.is_some() {
            watcher.is_new = false;
            return watcher.stale.take().map(Event::State);
        }
        if ignores_reads && !watcher.synced {
            watcher.waker = Some(waker.clone());
            return None;
        }
        let state = if watcher.is_new && watcher.delivered < self.unleashed_change {
            // The flag was unleashed after this watcher registered. The watcher first receives "not
            // set", so that it does not take the set for an older one.
            watcher.is_new = false;
            Some(SharedState::new(FlagState::unset(self.name.clone(), 0)))
        } else if watcher.delivered < self.newest_set_change && !conflates_sets {
            watcher.mark_delivered(self.newest_set_change);
            self.newest_set.clone()
        } else if watcher.synced && watcher.is_new
            || !watcher.is_new && watcher.delivered < self.change
        {
            watcher.mark_delivered(self.change);
            self.present.clone()
        } else {
            None
        };
        let event = state.map(Event::State).or_else(|| self.next_acks(id));
        if event.is_none()
            && let Some(watcher) = self.watchers.get_mut(&id)
        {
            watcher.waker = Some(waker.clone());
        }
        event
    }

    /// Takes the counts of acknowledgements if they have changed since the last ones sent.
    fn next_acks(&mut self, id: u64) -> Option<Event> {
        if !self.observers.contains(&id) {
            return None;
        }
        let acks = self.published_acks?;
        let newest = self.generation();
        let watcher = self.watchers.get_mut(&id)?;
        let stale = newest != Some(acks.generation);
        if watcher.is_new || stale || watcher.delivered_acks == Some(acks) {
            return None;
        }
        watcher.delivered_acks = Some(acks);
        Some(Event::Acks(acks))
    }

    /// Returns whether an acknowledgement increases the count. A repeated one does not, nor does a
    /// late one of an earlier generation.
    pub(super) fn is_new_ack(&self, generation: u64, key: AckKey) -> bool {
        self.generation() == Some(generation) && !self.acked.contains(&key)
    }

    /// Publishes the present counts to the observers.
    pub(super) fn publish_acks(&mut self, wakers: &mut Wakers) {
        let acks = self.generation().map(|generation| Acks {
            generation,
            acknowledged: u32::try_from(self.acked.len()).unwrap_or(u32::MAX),
            watchers: self.watching().saturating_add(self.remote_watchers),
        });
        self.published_acks = acks;
        for id in &self.observers {
            if let Some(watcher) = self
                .watchers
                .get_mut(id)
                .filter(|w| w.delivered_acks != acks)
            {
                wakers.push(watcher.waker.take());
            }
        }
    }

    /// Planted fault: applies a read as if every new watcher had registered after it.
    #[cfg(test)]
    pub(super) fn register_late(&mut self, read: &FlagState, wakers: &mut Wakers) {
        for watcher in self.watchers.values_mut().filter(|w| !w.synced) {
            watcher.synced = true;
            watcher.delivered = self.change;
            watcher.stale = Some(SharedState::new(read.clone()));
            wakers.push(watcher.waker.take());
        }
    }
}

impl Watcher {
    /// Returns whether it registered after a set through another relay, also if the clocks differ
    /// by the allowance.
    fn came_after(&self, source: StateOrigin) -> bool {
        let StateOrigin::Heard(_, Some(set_at)) = source else {
            return false;
        };
        let registered = self.registered_at;
        registered.is_some_and(|at| at > set_at + ALLOWANCE)
    }

    fn mark_delivered(&mut self, number: u64) {
        self.delivered = number;
        self.is_new = false;
    }
}
