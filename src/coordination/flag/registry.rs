//! The registry of watches: the watched flags, their known states, and the events of watchers.
//!
//! The decisions of docs/internal/protocol-rules.md section 8, pure and synchronous. A watcher first
//! registers. A read of the store counts for the watchers that registered before it began (R20: only
//! a fresh read settles a watcher). Callers hold the flag's lock during each read and write, so that
//! those of one flag are in order. One sequence number orders registrations, reads and writes; the
//! registry knows no other time.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound::{Excluded, Unbounded},
    task::Waker,
    time::{Duration, SystemTime},
};

use super::{
    AckKey, FlagsConfig,
    document::{EndedSet, HASHES, StoredFlag, Version, Versions},
    entry::FlagEntry,
};
use crate::{
    base::{
        clock::{Tick, micros},
        fault::planted,
    },
    error::{Error, ErrorKind, Result},
    types::{FlagEvent, FlagName, FlagState, ListenerId},
};

/// The watched flags, and unwatched flags that are remembered for their acknowledgements.
#[derive(Debug, Default)]
pub(super) struct WatchRegistry {
    config: FlagsConfig,
    pub(super) entries: BTreeMap<FlagName, FlagEntry>,
    /// Flags that became unwatched with acknowledgements, oldest first. Some may be watched again.
    idle: VecDeque<FlagName>,
    /// The known expiry times, also of flags that are not watched.
    pub(super) expiries: BTreeMap<FlagName, SystemTime>,
    /// About the number of flags that are set in the store: of the newest list, and since.
    pub(super) set: usize,
    sequence: u64,
    last_generation: u64,
    /// At least the number of remembered acknowledgements.
    acks: usize,
    /// Whether observers may have to receive new counts of acknowledgements.
    pub(super) acks_changed: bool,
    /// The watchers to wake when the registry is unlocked.
    pub(super) wakers: Vec<Waker>,
}

/// A listener that watches a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatcherView {
    pub(crate) flag: FlagName,
    pub(crate) listener: ListenerId,
    /// Number of its streams.
    pub(crate) streams: u32,
    /// Time since its first stream began.
    pub(crate) since: Duration,
    /// Whether it has acknowledged the flag's newest generation.
    pub(crate) acknowledged: bool,
}

/// A query of the list of watchers.
#[derive(Debug)]
pub(crate) struct WatchersQuery {
    /// Lists this flag only; `None` lists all.
    pub(crate) flag: Option<FlagName>,
    /// Starts after this entry.
    pub(crate) after: Option<(FlagName, ListenerId)>,
    /// Largest number of entries.
    pub(crate) count: usize,
}

/// Unwatched flags that are remembered for their acknowledgements: at about 2 KiB each, 2 MiB. The
/// acknowledgements of a forgotten flag are unknown again.
const MAX_IDLE: usize = 1024;
/// The range of the steps of generations while the clock is behind: about a second.
const BEHIND: u64 = 1_000_003;

impl WatchRegistry {
    pub(super) fn new(config: FlagsConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Returns the number of the next registration, or of a read or write that begins.
    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Returns a new generation for a flag that is being set. It is greater than the number of each
    /// set that is over.
    pub(super) fn new_generation(&mut self, wall: SystemTime, ended: u64) -> u64 {
        let micros = micros(wall);
        if planted!(FlagGenerationRepeats) {
            return micros;
        }
        // One counter serves all flags: it outlives each of them and costs eight bytes.
        let least = self.last_generation.max(ended) + 1;
        // Two relays whose clocks are behind must not continue from one number in the same way.
        self.last_generation = match micros >= least {
            true => micros,
            false => least + micros % BEHIND,
        };
        self.last_generation
    }

    /// Takes a generation that another writer gave out. A hash, or a number beyond the clock's
    /// reach, is no counter: two relays would continue from the same value.
    fn note_generation(&mut self, state: &FlagState) {
        if state.generation < HASHES {
            self.last_generation = self.last_generation.max(state.generation);
        }
    }

    /// Returns whether the store has as many flags as may be set.
    pub(super) fn is_full(&self) -> bool {
        self.set >= self.config.max_flags
    }

    /// Checks that one more flag may be set.
    ///
    /// # Errors
    /// `Exhausted`, naming the limit.
    pub(super) fn admit_set(&self, name: &FlagName) -> Result<()> {
        if !self.is_full() {
            return Ok(());
        }
        let message = format!(
            "flag `{name}` was not set: the limit is {} set flags; clear a flag that is not needed",
            self.config.max_flags
        );
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    /// Checks that clients may watch one more flag. Flags that are not watched make room.
    ///
    /// # Errors
    /// `Exhausted`, naming the limit.
    pub(super) fn admit_watch(&mut self, name: &FlagName) -> Result<()> {
        let max = self.config.max_watched_flags;
        if self.entries.len() >= max {
            self.forget_idle();
        }
        if self.entries.len() < max || self.entries.contains_key(name) {
            return Ok(());
        }
        let message = format!("flag `{name}` cannot be watched: the limit is {max} watched flags");
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    /// Registers a watcher, which receives all later changes, under the number that it returns.
    pub(super) fn register(&mut self, name: &FlagName, acks: bool, wall: SystemTime) -> u64 {
        let id = self.next_sequence();
        let expired = self.expiries.get(name).copied().filter(|end| *end <= wall);
        self.entry(name).register(id, acks, expired);
        self.acks_changed = true;
        id
    }

    pub(super) fn unregister(&mut self, name: &FlagName, id: u64) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.unregister(id);
        }
        self.acks_changed = true;
        self.forget_if_unused(name);
    }

    /// Lists the listeners of watched flags, by flag and listener. A page starts where the previous
    /// one ended, so its cost does not grow with the number of watchers.
    pub(super) fn list_watchers(&self, query: &WatchersQuery, now: Tick) -> Vec<WatcherView> {
        let after = query.after.as_ref();
        let first_flag = query.flag.as_ref().or_else(|| after.map(|(flag, _)| flag));
        let entries = match first_flag {
            Some(first) => self.entries.range(first..),
            None => self.entries.range::<FlagName, _>(..),
        };
        entries
            .take_while(|(flag, _)| query.flag.as_ref().is_none_or(|only| only == *flag))
            .flat_map(|(flag, entry)| {
                let begin = match after {
                    Some((last, listener)) if last == flag => Excluded(listener),
                    _ => Unbounded,
                };
                let listeners = entry.listeners.range::<ListenerId, _>((begin, Unbounded));
                listeners.map(move |(listener, streams)| WatcherView {
                    flag: flag.clone(),
                    listener: listener.clone(),
                    streams: streams.count,
                    since: now.since(streams.since),
                    acknowledged: entry.acked.contains(&AckKey::of(listener)),
                })
            })
            .take(query.count)
            .collect()
    }

    /// Counts the watchers of all flags.
    pub(super) fn watchers(&self) -> u64 {
        let watching = |entry: &FlagEntry| u64::from(entry.watching());
        self.entries.values().map(watching).sum()
    }

    /// Returns the watched flags, sorted.
    pub(super) fn watched(&self) -> Vec<FlagName> {
        let watched = self.entries.iter().filter(|(_, entry)| entry.is_watched());
        watched.map(|(name, _)| name.clone()).collect()
    }

    /// Notes which set was over at the first read of the flag's watchers, for a read or write that
    /// began at this sequence number.
    pub(super) fn note_base(&mut self, name: &FlagName, ended: Option<&EndedSet>, began: u64) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.note_base(ended, began);
        }
    }

    /// Applies the result of a read, also of an expired flag, which the store can remove or not. The
    /// caller has noted the base before it read the flag.
    pub(super) fn finish_read(
        &mut self,
        name: &FlagName,
        began: u64,
        flag: Option<StoredFlag>,
        (ended, ended_etag): (Option<EndedSet>, Version),
        wall: SystemTime,
        can_remove: bool,
    ) {
        let etag = flag.as_ref().map(|flag| flag.etag.clone());
        let found = flag.as_ref().map(|flag| flag.state.clone());
        match &found {
            Some(found) => self.note_found(found),
            None => self.set_expiry(name, None),
        }
        let active = flag.and_then(|flag| flag.active(wall));
        if active.is_none() && !can_remove {
            self.set_expiry(name, None);
        }
        if let Some(entry) = self.entries.get_mut(name) {
            let (ended, found) = (ended.as_ref(), found.as_ref());
            entry.note_ended(began, ended, found, &mut self.wakers);
            if let Some(expired) = found.filter(|_| active.is_none()) {
                entry.note_expired(expired, &mut self.wakers);
            }
            let generation = entry.generation().unwrap_or(0);
            let state = active.unwrap_or_else(|| FlagState::unset(name.clone(), generation));
            entry.observe(began, state, &mut self.wakers);
            entry.versions = Some((etag, ended_etag));
            self.acks_changed = true;
        }
        self.forget_if_unused(name);
    }

    /// Notes the generation and the expiry of a flag that is in the store.
    pub(super) fn note_found(&mut self, state: &FlagState) {
        self.note_generation(state);
        self.set_expiry(&state.name, state.expires_at);
    }

    /// Returns whether a watched flag must be read, because the versions in a list are not those of
    /// its newest read.
    pub(super) fn is_stale(&self, name: &FlagName, listed: &Versions) -> bool {
        let entry = self.entries.get(name);
        entry.is_some_and(|entry| entry.versions.as_ref() != Some(listed))
    }

    /// Ends a local write that began at this sequence number, and found this set in the flag's blob. It
    /// found or wrote this set that is over. Returns the number of watchers.
    pub(super) fn finish_write(
        &mut self,
        began: u64,
        state: FlagState,
        ended: Option<&EndedSet>,
        found: Option<&FlagState>,
    ) -> u32 {
        let name = state.name.clone();
        self.note_found(&state);
        let mut watching = 0;
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.note_ended(began, ended, found, &mut self.wakers);
            entry.versions = None;
            entry.observe(began, state, &mut self.wakers);
            watching = entry.watching();
            self.acks_changed = true;
        }
        self.forget_if_unused(&name);
        watching
    }

    /// Counts an acknowledgement of the newest set. A repeated one changes nothing. Returns `false` if
    /// this relay does not know that generation as the newest one.
    ///
    /// A refused one is not counted, so a count is never higher than the number of listeners that
    /// acknowledged: `unleash --expect` may report "unmet", never a false "met".
    ///
    /// # Errors
    /// `Exhausted` if too many are remembered; then it is not counted.
    pub(super) fn ack(&mut self, name: &FlagName, generation: u64, key: AckKey) -> Result<bool> {
        let max = self.config.max_acks;
        if self.acks >= max {
            self.forget_idle();
        }
        let is_newest = |entry: &&mut FlagEntry| entry.generation() == Some(generation);
        let Some(entry) = self.entries.get_mut(name).filter(is_newest) else {
            return Ok(false);
        };
        if entry.acked.contains(&key) {
            return Ok(true);
        }
        if self.acks >= max {
            let message = format!(
                "acknowledgement of flag `{name}`: the limit is {max} of all flags together"
            );
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        entry.acked.insert(key);
        self.acks += 1;
        self.acks_changed = true;
        Ok(true)
    }

    /// Publishes the newest counts of acknowledgements to the observers.
    pub(super) fn publish_acks(&mut self) {
        self.acks_changed = false;
        self.acks = 0;
        for entry in self.entries.values_mut() {
            self.acks += entry.acked.len();
            if entry.has_observers() {
                entry.publish_acks(&mut self.wakers);
            }
        }
    }

    pub(super) fn is_synced(&self, name: &FlagName, id: u64) -> bool {
        self.entries
            .get(name)
            .is_none_or(|entry| entry.is_synced(id))
    }

    /// Takes the watcher's next event. If there is none, `waker` is woken when one is ready.
    pub(super) fn next_event(
        &mut self,
        name: &FlagName,
        id: u64,
        waker: &Waker,
    ) -> Option<FlagEvent> {
        self.entries.get_mut(name)?.next_event(id, waker)
    }

    /// Returns the unset state of a flag, with its last known generation.
    pub(super) fn unset(&self, name: &FlagName) -> FlagState {
        let generation = self.entries.get(name).and_then(FlagEntry::generation);
        FlagState::unset(name.clone(), generation.unwrap_or(0))
    }

    /// Returns the flags that have expired by now.
    pub(super) fn due(&self, wall: SystemTime) -> Vec<FlagName> {
        let due = self.expiries.iter().filter(|(_, end)| **end <= wall);
        due.map(|(name, _)| name.clone()).collect()
    }

    /// Notes an expiry that was read without the flag's lock. An earlier one stays: it was set since,
    /// or the read at that time corrects it.
    pub(super) fn note_listed(&mut self, state: &FlagState) {
        self.note_generation(state);
        let known = self.expiries.get(&state.name);
        if let Some(end) = state.expires_at
            && known.is_none_or(|known| end < *known)
        {
            self.set_expiry(&state.name, Some(end));
        }
    }

    /// Notes when a flag's blob must be read again. Of flags that are not watched, the number is
    /// limited: an expired blob beyond it stays, and reads as not set.
    fn set_expiry(&mut self, name: &FlagName, end: Option<SystemTime>) {
        let room = self.expiries.len() < self.config.max_flags || self.entries.contains_key(name);
        match end {
            Some(end) if room => self.expiries.insert(name.clone(), end),
            _ => self.expiries.remove(name),
        };
    }

    pub(super) fn entry(&mut self, name: &FlagName) -> &mut FlagEntry {
        let number = self.next_sequence();
        self.entries
            .entry(name.clone())
            .or_insert_with(|| FlagEntry::new(number))
    }

    /// Forgets an unwatched flag, unless it is set and has acknowledgements, which other relays read.
    fn forget_if_unused(&mut self, name: &FlagName) {
        let unwatched = |entry: &&FlagEntry| !entry.is_watched();
        let Some(entry) = self.entries.get(name).filter(unwatched) else {
            return;
        };
        let mut unused = Some(name.clone());
        if entry.has_acks() {
            if self.idle.contains(name) {
                return;
            }
            self.idle.extend(unused);
            let is_full = self.idle.len() > MAX_IDLE;
            unused = is_full.then(|| self.idle.pop_front()).flatten();
        }
        if let Some(name) = unused
            && self
                .entries
                .get(&name)
                .is_some_and(|entry| !entry.is_watched())
        {
            self.entries.remove(&name);
        }
    }

    /// Forgets all flags that are not watched.
    fn forget_idle(&mut self) {
        if !self.idle.is_empty() {
            self.idle.clear();
            self.entries.retain(|_, entry| entry.is_watched());
            self.acks = self.entries.values().map(|entry| entry.acked.len()).sum();
        }
    }
}
