//! The state of one flag, and what each of its watchers has received.
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
use crate::{
    base::{clock::Tick, fault::planted},
    types::{FlagName, FlagState, ListenerId},
};

/// The state of one flag.
#[derive(Debug)]
pub(super) struct FlagEntry {
    name: FlagName,
    /// Distinguishes two entries of one flag: what one knew is forgotten with it.
    pub(super) number: u64,
    /// The present state; `None` while it is unknown.
    present: Option<Arc<FlagState>>,
    /// When to read the blob again: at its expiry, which may have passed already.
    pub(super) check_at: Option<SystemTime>,
    /// The number of the present state. Each change increments it.
    change: u64,
    newest_set: Option<Arc<FlagState>>,
    /// The number of the newest set; 0 for none.
    newest_set_change: u64,
    /// The number of the present set; 0 if the flag is not set, or was set by hand.
    present_number: u64,
    /// The number of the newest set that is over, in the store; `None` before the first read.
    ended: Option<u64>,
    /// The versions of both blobs that the present state was read from.
    pub(super) versions: Option<Versions>,
    watchers: BTreeMap<u64, Watcher>,
    /// The listeners that watch, for operators.
    pub(super) listeners: BTreeMap<ListenerId, Streams>,
    /// The watchers that receive counts of acknowledgements, with the newest that they received.
    observers: BTreeMap<u64, Option<Acks>>,
    /// The number of watchers at other relays of the cluster, as far as this one has observers.
    pub(super) remote_watchers: u32,
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
    /// The number of the newest set that was over at the first read after the registration.
    base: Option<u64>,
    /// Whether the state is known for it (R20: only a read after the registration settles a
    /// watcher). Until then it is told nothing.
    synced: bool,
    /// The number of the newest state that it has received.
    delivered: u64,
    waker: Option<Waker>,
}

/// The open streams of one listener.
#[derive(Debug, Clone, Copy)]
pub(super) struct Streams {
    pub(super) count: u32,
    /// The start of the first one.
    pub(super) since: Tick,
}

/// A state of the flag that was in the store after its origin began.
#[derive(Debug)]
pub(super) struct Observed {
    /// The registry's sequence number at the begin of the read or write.
    pub(super) began: u64,
    pub(super) state: FlagState,
    /// When to read the blob again: at its expiry, which may have passed already.
    pub(super) check_at: Option<SystemTime>,
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
            versions: None,
            watchers: BTreeMap::new(),
            listeners: BTreeMap::new(),
            observers: BTreeMap::new(),
            remote_watchers: 0,
            acked: BTreeSet::new(),
            published_acks: None,
            idle_key: None,
        }
    }

    /// Registers a watcher under a sequence number of the registry.
    pub(super) fn register(&mut self, id: u64, acks: bool) {
        let watcher = Watcher {
            base: None,
            synced: false,
            delivered: self.change,
            waker: None,
        };
        self.watchers.insert(id, watcher);
        if acks {
            self.observers.insert(id, None);
        }
    }

    pub(super) fn unregister(&mut self, id: u64) {
        self.watchers.remove(&id);
        self.observers.remove(&id);
    }

    /// Notes a new stream of this listener.
    pub(super) fn stream_opened(&mut self, listener: &ListenerId, now: Tick) {
        let opened = Streams {
            count: 0,
            since: now,
        };
        let streams = self.listeners.entry(listener.clone()).or_insert(opened);
        streams.count += 1;
    }

    /// Notes the end of a stream of this listener.
    pub(super) fn stream_closed(&mut self, listener: &ListenerId) {
        if let Some(streams) = self.listeners.get_mut(listener) {
            streams.count -= 1;
            if streams.count == 0 {
                self.listeners.remove(listener);
            }
        }
    }

    /// Returns the number of watchers without the observers.
    pub(super) fn watching(&self) -> u32 {
        u32::try_from(self.watchers.len() - self.observers.len()).unwrap_or(u32::MAX)
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

    /// Takes the newest set that is over, as a read that began at this sequence number found it. A
    /// set with a greater number than the known one was missed: the watchers are told of it.
    pub(super) fn note_ended(&mut self, ended: Option<&EndedSet>, began: u64, wakers: &mut Wakers) {
        let number = ended.map_or(0, |ended| ended.number);
        // The known number stays when the store has forgotten its set.
        let base = number.max(self.ended.unwrap_or(0));
        for (_, watcher) in self.watchers.range_mut(..began) {
            watcher.base.get_or_insert(base);
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
            // The first read found an earlier end of the same set, which was extended then.
            let extended = known >= ended.state.generation
                && self.newest_set_change == 0
                && self.newest_set.as_deref() != Some(&ended.state);
            // The watchers were told the present set, which is later.
            if extended {
                self.change_to(ended.state.clone(), wakers);
            } else if ended.number > self.present_number {
                self.note_set(&ended.state, wakers);
            }
        }
    }

    /// Takes a set that was surely in the store, and is over.
    fn note_set(&mut self, set: &FlagState, wakers: &mut Wakers) {
        if self.generation() != Some(set.generation) {
            self.change_to(set.clone(), wakers);
        }
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

    /// Takes a state that was in the store. Watchers receive it if it is a change. Watchers that
    /// registered before its origin began become synchronized.
    pub(super) fn observe(&mut self, observed: Observed, wakers: &mut Wakers) {
        let state = observed.state;
        self.check_at = observed.check_at;
        let same = match &self.present {
            Some(present) => **present == state || (!present.set && !state.set),
            None => false,
        };
        let set = state.set;
        if !same {
            self.change_to(state, wakers);
        }
        let ended = self.ended.unwrap_or_default();
        for (_, watcher) in self.watchers.range_mut(..=observed.began) {
            let Some(base) = watcher.base.filter(|_| !watcher.synced) else {
                continue;
            };
            watcher.synced = true;
            // One that waited while a set began and ended is first told that set.
            watcher.delivered = match !set && ended > base {
                true => self.newest_set_change.saturating_sub(1),
                false => self.change - 1,
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
        if watcher.synced {
            if watcher.delivered < self.newest_set_change && !planted!(FlagSetConflated) {
                watcher.delivered = self.newest_set_change;
                return self.newest_set.clone().map(Event::State);
            }
            if watcher.delivered < self.change {
                watcher.delivered = self.change;
                return self.present.clone().map(Event::State);
            }
            // Counts of an earlier generation are stale.
            let generation = self.newest_set.as_ref().map(|set| set.generation);
            if let Some(told) = self.observers.get_mut(&id)
                && let Some(acks) = self.published_acks
                && generation == Some(acks.generation)
                && told.replace(acks) != Some(acks)
            {
                return Some(Event::Acks(acks));
            }
        }
        watcher.waker = Some(waker.clone());
        None
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
        let behind = self.observers.iter().filter(|(_, told)| **told != acks);
        for (id, _) in behind {
            if let Some(watcher) = self.watchers.get_mut(id) {
                wakers.push(watcher.waker.take());
            }
        }
    }
}
