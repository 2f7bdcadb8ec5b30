//! What the relay remembers of one flag, and what each of its watchers is owed.
//!
//! The flag's states are counted; a watcher remembers the number up to which it was told, and the
//! flag the newest set beside the present state. R21: a set is never conflated away. The
//! memory for a watcher is the same however much it missed. Plain data: locks nothing, waits for
//! nothing, reads no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    task::Waker,
    time::SystemTime,
};

use super::{
    acks::AckKey,
    body::Version,
    event::{Acks, Event, SharedState},
    wakers::Wakers,
};
use crate::{
    fault::{Fault, planted},
    words::{FlagName, FlagState},
};

/// One flag.
#[derive(Debug)]
pub(super) struct Topic {
    name: FlagName,
    /// The present state; `None` until something is known.
    present: Option<Arc<SharedState>>,
    /// When its blob is to be looked at again, because its time is over then or is over already.
    ends: Option<SystemTime>,
    /// The present state's number: it grows with each change.
    change: u64,
    newest_set: Option<Arc<SharedState>>,
    /// The newest set's number; 0 where there is none.
    newest_change: u64,
    /// The number of the newest set that began here and is no refreshment of an older one.
    unleashed_change: u64,
    /// When this entry was made, on the board's count.
    born: u64,
    /// When the newest local write ended, in whatever way, or the newest read that counted.
    ended: u64,
    /// The blob that the present state was read from; `None` where it was not read, or is gone.
    pub(super) version: Option<Version>,
    watchers: BTreeMap<u64, Watcher>,
    /// Those of the watchers that are told of acknowledgements.
    observers: BTreeSet<u64>,
    /// Who has acknowledged the newest set.
    pub(super) acked: BTreeSet<AckKey>,
    /// The count that observers are told: of the changes since they were told last, the newest.
    published: Option<Acks>,
    /// Its place among those that nobody watches.
    pub(super) idle: Option<u64>,
    fault: Fault,
}

/// One watcher.
#[derive(Debug)]
struct Watcher {
    /// When it registered, on the board's count.
    registered: u64,
    /// Whether a read that counts has told the present state (R20: only a fresh read settles a
    /// watcher).
    settled: bool,
    /// Whether nothing was told yet.
    first: bool,
    /// The number of the state up to which it was told.
    told: u64,
    told_acks: Option<Acks>,
    waker: Option<Waker>,
    /// A planted fault's reading from before the registration.
    #[cfg(test)]
    stale: Option<Arc<SharedState>>,
}

/// Where a state comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A local write that has set the flag anew, and began at this count.
    Unleash(u64),
    /// Another local write that has ended well.
    Write(u64),
    /// A read of the store that began at this count.
    Read(u64),
}

impl Topic {
    pub(super) fn new(name: FlagName, born: u64, fault: Fault) -> Self {
        Self {
            name,
            present: None,
            ends: None,
            change: 0,
            newest_set: None,
            newest_change: 0,
            unleashed_change: 0,
            born,
            ended: 0,
            version: None,
            watchers: BTreeMap::new(),
            observers: BTreeSet::new(),
            acked: BTreeSet::new(),
            published: None,
            idle: None,
            fault,
        }
    }

    pub(super) fn register(&mut self, id: u64, acks: bool) {
        let watcher = Watcher {
            registered: id,
            settled: false,
            first: true,
            told: self.change,
            told_acks: None,
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

    /// Returns how many watch, those that are told of acknowledgements not counted.
    pub(super) fn watching(&self) -> u32 {
        u32::try_from(self.watchers.len() - self.observers.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn is_watched(&self) -> bool {
        !self.watchers.is_empty()
    }

    pub(super) fn has_observers(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Returns whether it is to be remembered for its acknowledgements though nobody watches it.
    pub(super) fn has_acks(&self) -> bool {
        !self.acked.is_empty() && self.present.as_ref().is_some_and(|state| state.set)
    }

    /// R20: returns whether a read that began then counts: no local write has ended since, and no
    /// other read that counted, which may have seen newer content. An entry that was made since
    /// knows nothing of the writes before.
    pub(super) fn counts(&self, began: u64) -> bool {
        self.born < began && self.ended < began
    }

    /// Notes that a local write or a read that counts ends now.
    pub(super) fn ends_now(&mut self, now: u64) {
        self.ended = now;
        self.version = None;
    }

    /// Returns the state of this flag while it is not set.
    pub(super) fn unset(&self) -> FlagState {
        FlagState::unset(self.name.clone(), self.generation().unwrap_or(0))
    }

    /// Returns the newest set's generation.
    pub(super) fn generation(&self) -> Option<u64> {
        self.newest_set.as_ref().map(|state| state.generation)
    }

    /// Returns when the flag's blob is to be looked at, to end it.
    pub(super) fn ends(&self) -> Option<SystemTime> {
        self.ends
    }

    /// Takes a state, the present one since its source, and when its blob is to be looked at again.
    /// Tells the watchers where the state is another one, and settles those that had registered
    /// before its source began.
    pub(super) fn apply(
        &mut self,
        state: FlagState,
        ends: Option<SystemTime>,
        source: Source,
        wakers: &mut Wakers,
    ) {
        self.ends = ends;
        let same = match &self.present {
            Some(present) => ***present == state || (!present.set && !state.set),
            None => false,
        };
        if !same {
            self.change += 1;
            self.present = Some(SharedState::new(state));
            self.note_set(source);
        }
        let (Source::Unleash(began) | Source::Write(began) | Source::Read(began)) = source;
        wakers.reserve(if same { 0 } else { self.watchers.len() });
        let deaf = planted!(self.fault, FlagReadBeforeRegister);
        for watcher in self.watchers.values_mut() {
            let settles = watcher.registered < began && !watcher.settled && !deaf;
            watcher.settled |= settles;
            if watcher.registered > began && matches!(source, Source::Read(_)) && watcher.first {
                // What an older read found was before its time: it has missed nothing, and will
                // read for itself.
                watcher.told = self.change;
            }
            let write = matches!(source, Source::Unleash(_) | Source::Write(_));
            if write && same && watcher.first && watcher.registered < began {
                // An older read has seen this write before it ended, and does not count for this
                // watcher. R21: a set is never conflated away, so the write is told.
                watcher.told = watcher.told.min(self.change.saturating_sub(1));
            }
            if settles || !same {
                wakers.push(watcher.waker.take());
            }
        }
    }

    /// Keeps the newest set apart from the present state.
    fn note_set(&mut self, source: Source) {
        let Some(state) = self.present.clone().filter(|state| state.set) else {
            return;
        };
        if self.generation() != Some(state.generation) {
            self.acked.clear();
        }
        if matches!(source, Source::Unleash(_)) {
            self.unleashed_change = self.change;
        }
        self.newest_set = Some(state);
        self.newest_change = self.change;
    }

    /// Returns whether a watcher has been told the present state, or is only owed it.
    pub(super) fn is_settled(&self, id: u64) -> bool {
        self.watchers.get(&id).is_none_or(|watcher| watcher.settled)
    }

    /// Takes what a watcher is owed next; where that is nothing, `waker` is woken when it is more.
    pub(super) fn owed(&mut self, id: u64, waker: &Waker) -> Option<Event> {
        let watcher = self.watchers.get_mut(&id)?;
        #[cfg(test)]
        if watcher.first && watcher.stale.is_some() {
            watcher.first = false;
            return watcher.stale.take().map(Event::State);
        }
        if planted!(self.fault, FlagReadBeforeRegister) && !watcher.settled {
            watcher.waker = Some(waker.clone());
            return None;
        }
        let state = if watcher.first && watcher.told < self.unleashed_change {
            // It was unset when it was unleashed, and that was after this watcher had come: said
            // first, so that nobody takes the set for one that was there before.
            watcher.first = false;
            Some(SharedState::new(FlagState::unset(self.name.clone(), 0)))
        } else if watcher.told < self.newest_change && !planted!(self.fault, FlagSetConflated) {
            watcher.tell(self.newest_change);
            self.newest_set.clone()
        } else if watcher.settled && watcher.first || !watcher.first && watcher.told < self.change {
            watcher.tell(self.change);
            self.present.clone()
        } else {
            None
        };
        let event = state.map(Event::State).or_else(|| self.owed_acks(id));
        if event.is_none()
            && let Some(watcher) = self.watchers.get_mut(&id)
        {
            watcher.waker = Some(waker.clone());
        }
        event
    }

    /// Takes the count of acknowledgements, where it is another one than was told.
    fn owed_acks(&mut self, id: u64) -> Option<Event> {
        if !self.observers.contains(&id) {
            return None;
        }
        let acks = self.published?;
        let newest = self.generation();
        let watcher = self.watchers.get_mut(&id)?;
        let stale = newest != Some(acks.generation);
        if watcher.first || stale || watcher.told_acks == Some(acks) {
            return None;
        }
        watcher.told_acks = Some(acks);
        Some(Event::Acks(acks))
    }

    /// Returns whether an acknowledgement adds to the count: not one that was counted, and not one
    /// of another generation than the newest, which is too late to matter.
    pub(super) fn is_new_ack(&self, generation: u64, key: AckKey) -> bool {
        self.generation() == Some(generation) && !self.acked.contains(&key)
    }

    /// Takes the present count for the one that observers are told.
    pub(super) fn publish_acks(&mut self, wakers: &mut Wakers) {
        let acks = self.generation().map(|generation| Acks {
            generation,
            acknowledged: u32::try_from(self.acked.len()).unwrap_or(u32::MAX),
            watchers: self.watching(),
        });
        self.published = acks;
        for id in &self.observers {
            if let Some(watcher) = self.watchers.get_mut(id).filter(|w| w.told_acks != acks) {
                wakers.push(watcher.waker.take());
            }
        }
    }

    /// A planted fault: takes a reading as if every new watcher had registered only after it.
    #[cfg(test)]
    pub(super) fn register_late(&mut self, read: &FlagState, wakers: &mut Wakers) {
        for watcher in self.watchers.values_mut().filter(|w| !w.settled) {
            watcher.settled = true;
            watcher.told = self.change;
            watcher.stale = Some(SharedState::new(read.clone()));
            wakers.push(watcher.waker.take());
        }
    }
}

impl Watcher {
    fn tell(&mut self, number: u64) {
        self.told = number;
        self.first = false;
    }
}
