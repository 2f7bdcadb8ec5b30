//! The state of one flag, and what each of its watchers has received.
//!
//! Each state of the flag has a number. A watcher stores the number of the newest state that it has
//! received, and the flag stores the newest set beside the present state. R21: a set is never
//! conflated away. The memory of a watcher is constant, however many changes it has missed.
//!
//! A watcher is released by a set that it sees, and by a set that is over and has a greater number
//! than the newest one at its first read. Pure: no locks, no waits, no clock.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    task::Waker,
    time::SystemTime,
};

use super::{
    AckKey,
    document::{EndedSet, Versions},
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{FlagEvent, FlagState, ListenerId},
};

/// The state of one flag.
#[derive(Debug, Default)]
pub(super) struct FlagEntry {
    /// Distinguishes two entries of one flag: what one knew is forgotten with it.
    pub(super) number: u64,
    /// The present state; `None` while it is unknown.
    present: Option<FlagState>,
    /// The number of the present state. Each change increments it.
    change: u64,
    newest_set: Option<FlagState>,
    /// The number of the newest set; 0 for none.
    newest_set_change: u64,
    /// The number of the newest set that is over, in the store; `None` before the first read.
    ended: Option<u64>,
    /// The versions of both blobs that the present state was read from.
    pub(super) versions: Option<Versions>,
    watchers: BTreeMap<u64, Watcher>,
    /// The listeners that watch, for operators.
    pub(super) listeners: BTreeMap<ListenerId, Streams>,
    /// The watchers that receive counts of acknowledgements, with the newest that they received.
    observers: BTreeMap<u64, Option<FlagEvent>>,
    /// The number of watchers at other relays of the cluster, as far as this one has observers.
    pub(super) remote_watchers: u32,
    /// The listeners that acknowledged the newest set.
    pub(super) acked: BTreeSet<AckKey>,
    /// The acknowledgements of the newest set that were read from each other relay (its life).
    pub(super) remote_acks: HashMap<u128, u32>,
    /// The newest counts that observers may take. Older counts are conflated.
    published_acks: Option<FlagEvent>,
}

/// The state of one watcher.
#[derive(Debug, Default)]
struct Watcher {
    /// The number of the newest set that was over at the first read after the registration.
    base: Option<u64>,
    /// Whether the state is known for it (R20: only a read after the registration settles a
    /// watcher). Until then it is told nothing.
    synced: bool,
    /// The number of the newest state that it has received.
    delivered: u64,
    waker: Option<Waker>,
    /// The known expiry that had passed when it registered.
    expired: Option<SystemTime>,
}

/// The open streams of one listener.
#[derive(Debug, Clone, Copy)]
pub(super) struct Streams {
    pub(super) count: u32,
    /// The start of the first one.
    pub(super) since: Tick,
}

impl Watcher {
    /// Returns whether it registered when this set had expired: then it does not wait for that one.
    fn came_after(&self, set: &FlagState) -> bool {
        self.expired.is_some() && self.expired == set.expires_at
    }
}

impl FlagEntry {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    /// Registers a watcher under a sequence number of the registry.
    pub(super) fn register(&mut self, id: u64, acks: bool, expired: Option<SystemTime>) {
        let watcher = Watcher {
            delivered: self.change,
            expired,
            ..Watcher::default()
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
        count(self.watchers.len() - self.observers.len())
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

    /// Returns the newest set's generation.
    pub(super) fn generation(&self) -> Option<u64> {
        self.newest_set.as_ref().map(|state| state.generation)
    }

    /// Notes which set was over at the first read of the watchers that registered before it began.
    /// Returns the number of the newest set that is known to be over. The first read makes it known at
    /// once: the rest of that read may fail, and a set that ends afterwards was missed.
    pub(super) fn note_base(&mut self, ended: Option<&EndedSet>, began: u64) -> u64 {
        let number = ended.map_or(0, |ended| ended.number);
        if self.ended.is_none() {
            self.newest_set = ended.map(|ended| ended.state.clone());
        }
        let known = *self.ended.get_or_insert(number);
        // The known number stays when the store has forgotten its set.
        let base = number.max(known);
        for (_, watcher) in self.watchers.range_mut(..began) {
            watcher.base.get_or_insert(base);
        }
        known
    }

    /// Takes the newest set that is over, and the set that the same read or write found in the flag's
    /// blob. A set with a greater number than the known one was missed: the watchers are told of it,
    /// unless they were told a later one.
    pub(super) fn note_ended(
        &mut self,
        began: u64,
        ended: Option<&EndedSet>,
        found: Option<&FlagState>,
        wakers: &mut Vec<Waker>,
    ) {
        let known = self.note_base(ended, began);
        if let Some(ended) = ended.filter(|ended| ended.number > known) {
            self.ended = Some(ended.number);
            // The first read found an earlier end of the same set, which was extended then.
            let extended = known >= ended.state.generation
                && self.newest_set_change == 0
                && self.newest_set.as_ref() != Some(&ended.state);
            if extended {
                self.change_to(ended.state.clone(), wakers);
            } else if !self.is_present(found) {
                self.note_set(&ended.state, wakers);
            }
        }
    }

    /// Returns whether the present set is still in the store. Then a set that is over was over before
    /// it. Generations do not show that: the present set may have been cleared by hand, and followed by
    /// one of a relay whose clock is behind.
    fn is_present(&self, found: Option<&FlagState>) -> bool {
        match (&self.present, found) {
            (Some(present), Some(found)) => present.set && present.generation == found.generation,
            _ => false,
        }
    }

    /// Takes a set that was surely in the store, and is over.
    fn note_set(&mut self, set: &FlagState, wakers: &mut Vec<Waker>) {
        if self.generation() != Some(set.generation) {
            self.change_to(set.clone(), wakers);
        }
    }

    /// Takes a set that has expired and whose blob is still in the store. The first read shows nothing
    /// that a watcher waits for.
    pub(super) fn note_expired(&mut self, set: &FlagState, wakers: &mut Vec<Waker>) {
        if self.present.is_some() {
            self.note_set(set, wakers);
        } else {
            self.newest_set = Some(set.clone());
        }
    }

    /// Takes a state that was in the store after its read or write began. Watchers receive it if it is
    /// a change. Watchers that registered before this sequence number become synchronized.
    pub(super) fn observe(&mut self, began: u64, state: FlagState, wakers: &mut Vec<Waker>) {
        let same = match &self.present {
            Some(present) => *present == state || (!present.set && !state.set),
            None => false,
        };
        let set = state.set;
        if !same {
            self.change_to(state, wakers);
        }
        let ended = self.ended.unwrap_or_default();
        for (_, watcher) in self.watchers.range_mut(..=began) {
            let Some(base) = watcher.base.filter(|_| !watcher.synced) else {
                continue;
            };
            watcher.synced = true;
            // One that waited while a set began and ended is first told that set.
            watcher.delivered = match !set && ended > base {
                true => self.newest_set_change.saturating_sub(1),
                false => self.change - 1,
            };
            wakers.extend(watcher.waker.take());
        }
    }

    /// Makes a state the present one.
    fn change_to(&mut self, state: FlagState, wakers: &mut Vec<Waker>) {
        let set = state.set;
        if set && self.generation() != Some(state.generation) {
            self.acked.clear();
            self.remote_acks.clear();
            self.published_acks = None;
        }
        self.change += 1;
        if set {
            self.newest_set = Some(state.clone());
            self.newest_set_change = self.change;
        }
        self.present = Some(state);
        for watcher in self.watchers.values_mut().filter(|watcher| watcher.synced) {
            wakers.extend(watcher.waker.take());
        }
    }

    /// Returns whether the present state is known for this watcher, received or pending.
    pub(super) fn is_synced(&self, id: u64) -> bool {
        self.watchers.get(&id).is_none_or(|watcher| watcher.synced)
    }

    /// Takes the watcher's next event. If there is none, `waker` is woken when one is ready.
    pub(super) fn next_event(&mut self, id: u64, waker: &Waker) -> Option<FlagEvent> {
        let watcher = self.watchers.get_mut(&id)?;
        if watcher.synced {
            if watcher.delivered < self.newest_set_change && !planted!(FlagSetConflated) {
                watcher.delivered = self.newest_set_change;
                let is_over = self.newest_set_change < self.change;
                let set = self.newest_set.as_ref();
                if let Some(set) = set.filter(|set| !is_over || !watcher.came_after(set)) {
                    return Some(FlagEvent::State(set.clone()));
                }
            }
            if watcher.delivered < self.change {
                watcher.delivered = self.change;
                return self.present.clone().map(FlagEvent::State);
            }
            if let (Some(told), Some(acks)) = (self.observers.get_mut(&id), &self.published_acks)
                && told.replace(acks.clone()).as_ref() != Some(acks)
            {
                return Some(acks.clone());
            }
        }
        watcher.waker = Some(waker.clone());
        None
    }

    /// Publishes the present counts to the observers.
    pub(super) fn publish_acks(&mut self, wakers: &mut Vec<Waker>) {
        let acks = self.generation().map(|generation| FlagEvent::Acks {
            generation,
            acknowledged: count(self.acked.len()),
            watchers: self.watching().saturating_add(self.remote_watchers),
        });
        let behind = self.observers.iter().filter(|(_, told)| **told != acks);
        for (id, _) in behind {
            if let Some(watcher) = self.watchers.get_mut(id) {
                wakers.extend(watcher.waker.take());
            }
        }
        self.published_acks = acks;
    }
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
