//! The state of one flag, and the pending events of its watchers.
//!
//! Each state of the flag has a number. A watcher stores the number of the newest state that it has
//! received, and the flag stores the newest set beside the present state. R21: a set is never
//! conflated away. The memory of a watcher is constant, however many changes it has missed.
//!
//! A watcher is released by a set that it sees, and by a set that is over and has a greater number
//! than the newest one at its first read. Pure: no locks, no waits, no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    task::Waker,
    time::SystemTime,
};

use super::{
    acks::AckKey,
    document::{EndedSet, Version},
    event::{Acks, Event},
    wakers::Wakers,
};
#[cfg(all(feature = "relay", feature = "nats"))]
use crate::types::cluster::FlagHint;
use crate::{
    base::fault::planted,
    types::{FlagName, FlagState},
};

/// The state of one flag.
#[derive(Debug)]
pub(super) struct FlagEntry {
    name: FlagName,
    /// Distinguishes two entries of one flag: what one knew is forgotten with it.
    number: u64,
    /// The present state; `None` while it is unknown.
    present: Option<Arc<FlagState>>,
    /// When to read the blob again: at its expiry, which may have passed already.
    check_at: Option<SystemTime>,
    /// The number of the present state. Each change increments it.
    change: u64,
    newest_set: Option<Arc<FlagState>>,
    /// The number of the newest set; 0 for none.
    newest_set_change: u64,
    /// The number of the present set; 0 if the flag is not set, or was set by hand.
    present_number: u64,
    /// The number of the newest set that is over, in the store; `None` before the first read.
    ended: Option<u64>,
    /// The registry's sequence number when the newest set of another relay was heard and told.
    heard: u64,
    /// The versions of both blobs that the present state was read from.
    pub(super) versions: Option<Versions>,
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
}

/// The versions of the flag's blob and of its newest set that is over; `None` for no blob.
pub(super) type Versions = (Option<Version>, Option<Version>);

/// The state of one watcher.
#[derive(Debug)]
struct Watcher {
    /// The registry's sequence number at the registration.
    registered: u64,
    /// The number of the newest set that was over at the first read after the registration.
    base: Option<u64>,
    /// Whether the state is known for it (R20: only a read after the registration settles a
    /// watcher). Until then it is told nothing.
    synced: bool,
    /// Whether its first state, "not set", is pending.
    first_unset: bool,
    /// The number of the newest state that it has received.
    delivered: u64,
    delivered_acks: Option<Acks>,
    waker: Option<Waker>,
}

/// A state of the flag that was in the store after its origin began.
#[derive(Debug)]
pub(super) struct Observed {
    /// The registry's sequence number at the begin of the read or write.
    pub(super) began: u64,
    pub(super) state: FlagState,
    /// When to read the blob again: at its expiry, which may have passed already.
    pub(super) check_at: Option<SystemTime>,
    /// Whether a local write has set the flag under a new generation.
    pub(super) unleashed: bool,
}

impl FlagEntry {
    pub(super) fn new(name: FlagName, number: u64) -> Self {
        Self {
            name,
            number,
            present: None,
            check_at: None,
            change: 0,
            newest_set: None,
            newest_set_change: 0,
            present_number: 0,
            ended: None,
            heard: 0,
            versions: None,
            watchers: BTreeMap::new(),
            observers: BTreeSet::new(),
            remote_watchers: 0,
            acked: BTreeSet::new(),
            published_acks: None,
            idle_key: None,
        }
    }

    pub(super) fn register(&mut self, id: u64, acks: bool) {
        let watcher = Watcher {
            registered: id,
            base: None,
            synced: false,
            first_unset: false,
            delivered: self.change,
            delivered_acks: None,
            waker: None,
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

    #[cfg(all(feature = "relay", feature = "nats"))]
    pub(super) fn number(&self) -> u64 {
        self.number
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

    /// Takes the newest set that is over, as a read that began at this sequence number found it. A
    /// set with a greater number than the known one was missed: the watchers are told of it.
    pub(super) fn note_ended(&mut self, ended: Option<&EndedSet>, began: u64, wakers: &mut Wakers) {
        let number = ended.map_or(0, |ended| ended.number);
        let registered = self.watchers.values_mut().filter(|w| w.registered < began);
        for watcher in registered {
            watcher.base.get_or_insert(number);
        }
        let Some(known) = self.ended else {
            self.ended = Some(number);
            if let Some(ended) = ended
                && self.newest_set.is_none()
            {
                self.newest_set = Some(Arc::new(ended.state.clone()));
            }
            return;
        };
        if let Some(ended) = ended.filter(|ended| ended.number > known) {
            self.ended = Some(ended.number);
            // The watchers were told the present set, which is later.
            if ended.number > self.present_number {
                self.note_set(&ended.state, wakers);
            }
        }
    }

    /// Takes a set that was surely in the store, and may be over. Returns whether it is new here.
    pub(super) fn note_set(&mut self, set: &FlagState, wakers: &mut Wakers) -> bool {
        let is_new = self.generation() != Some(set.generation);
        if is_new {
            self.change_to(set.clone(), wakers);
        }
        is_new
    }

    /// Takes a set that has expired and whose blob is still in the store. The first read shows nothing
    /// that a watcher waits for.
    pub(super) fn note_expired(&mut self, set: &FlagState, wakers: &mut Wakers) {
        if self.present.is_some() {
            self.note_set(set, wakers);
        } else {
            self.newest_set = Some(Arc::new(set.clone()));
        }
    }

    /// Takes a set through another relay, which may be over. The flag must be read then. A set whose
    /// number is not greater than that of the present set, or of the newest one that is over, is older
    /// than what the watchers know (C14: a late hint releases no later watcher).
    #[cfg(all(feature = "relay", feature = "nats"))]
    pub(super) fn hear(&mut self, hint: FlagHint, now: u64, wakers: &mut Wakers) {
        let Some(set) = hint.newest_set else { return };
        let is_later = |ended: u64| {
            let is_told = hint.number <= ended || hint.number <= self.present_number;
            hint.number == 0 || !is_told || planted!(FlagOldSetTold)
        };
        if !self.ended.is_some_and(is_later) {
            return;
        }
        if self.present.is_some() && self.note_set(&set.into_state(&self.name), wakers) {
            self.heard = now;
        }
    }

    /// Returns whether another relay's set was heard since this sequence number. The order of it and
    /// of an observation that began before is unknown, and a read follows.
    pub(super) fn heard_since(&self, began: u64) -> bool {
        self.heard > began
    }

    /// Takes a state that was in the store. Watchers receive it if it is a change. Watchers that
    /// registered before its origin began become synchronized.
    pub(super) fn observe(&mut self, observed: Observed, wakers: &mut Wakers) {
        let Observed {
            began,
            state,
            check_at,
            unleashed,
        } = observed;
        self.check_at = check_at;
        let same = match &self.present {
            Some(present) => **present == state || (!present.set && !state.set),
            None => false,
        };
        if !same {
            self.change_to(state, wakers);
        }
        let (change, ended) = (self.change, self.ended.unwrap_or_default());
        let set = self.present.as_ref().is_some_and(|present| present.set);
        let newest_set = self.newest_set_change;
        for watcher in self.watchers.values_mut() {
            let Some(base) = watcher.base.filter(|_| !watcher.synced) else {
                continue;
            };
            if watcher.registered > began {
                continue;
            }
            watcher.synced = true;
            // A set that this watcher has waited for is never its first state, so that it does not
            // take it for an older one.
            watcher.first_unset = !set || unleashed;
            watcher.delivered = match () {
                () if set => change - 1,
                () if ended > base => newest_set.saturating_sub(1),
                () => change,
            };
            wakers.push(watcher.waker.take());
        }
    }

    /// Makes a state the present one.
    fn change_to(&mut self, state: FlagState, wakers: &mut Wakers) {
        let set = state.set;
        if set && self.generation() != Some(state.generation) {
            self.acked.clear();
        }
        self.change += 1;
        // A generation is greater than the numbers of the sets that were over before.
        self.present_number = match state.generation {
            generation if set && generation < FlagState::HASHES => generation,
            _ => 0,
        };
        let state = Arc::new(state);
        self.present = Some(Arc::clone(&state));
        if set {
            self.newest_set = Some(state);
            self.newest_set_change = self.change;
        }
        wakers.reserve(self.watchers.len());
        for watcher in self.watchers.values_mut().filter(|watcher| watcher.synced) {
            wakers.push(watcher.waker.take());
        }
    }

    /// Returns whether the present state is known for this watcher, received or pending.
    pub(super) fn is_synced(&self, id: u64) -> bool {
        self.watchers.get(&id).is_none_or(|watcher| watcher.synced)
    }

    /// Takes the watcher's next event. If there is none, `waker` is woken when one is ready.
    pub(super) fn next_event(&mut self, id: u64, waker: &Waker) -> Option<Event> {
        let watcher = self.watchers.get_mut(&id)?;
        let state = if !watcher.synced {
            None
        } else if std::mem::take(&mut watcher.first_unset) {
            let generation = self.newest_set.as_ref().map_or(0, |set| set.generation);
            let unset = FlagState::unset(self.name.clone(), generation);
            Some(Arc::new(unset))
        } else if watcher.delivered < self.newest_set_change && !planted!(FlagSetConflated) {
            watcher.delivered = self.newest_set_change;
            self.newest_set.clone()
        } else if watcher.delivered < self.change {
            watcher.delivered = self.change;
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
        if !watcher.synced || stale || watcher.delivered_acks == Some(acks) {
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
}
