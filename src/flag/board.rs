//! The board: which flags are watched, what is known of them, and what may be told when.
//!
//! The decisions of docs/protocol.md section 8, pure and synchronous. A watcher registers first; a
//! read of the store counts for those who had registered when it began, and only if no local write
//! of its flag ended during it (R20: only a fresh read settles a watcher). Whoever works with the
//! store says here when a read or a write began and how it ended. Everything that happens is
//! numbered by one count, which is all the time the board knows.

mod acknowledge;
mod watchers;

use std::{
    collections::{BTreeMap, BTreeSet},
    task::Waker,
    time::SystemTime,
};

pub(super) use self::watchers::Registered;
use super::{
    FlagsConfig,
    acks::AckBudget,
    body::{HASHES, Version, is_over},
    event::Event,
    presence::Presence,
    refresh::Watched,
    set_flags::SetFlags,
    topic::{Source, Topic},
    wakers::Wakers,
};
use crate::{
    clock::micros,
    error::Result,
    fault::{Fault, planted},
    words::{FlagName, FlagState},
};

/// All flags that somebody watches, and some that are remembered for other reasons.
#[derive(Debug)]
pub(super) struct Board {
    topics: BTreeMap<FlagName, Topic>,
    /// Flags that nobody watches, remembered for their acknowledgements; oldest first.
    idle: BTreeMap<u64, FlagName>,
    /// When flags end by themselves, soonest first.
    ends: BTreeSet<(SystemTime, FlagName)>,
    /// Flags that are set in the store.
    pub(super) set: SetFlags,
    /// Flags that are watched.
    watched: BTreeSet<FlagName>,
    max_watched: usize,
    presence: Presence,
    count: u64,
    last_generation: u64,
    acks: AckBudget,
    /// Flags whose observers are to be told of acknowledgements.
    acks_changed: BTreeSet<FlagName>,
    /// The task that tells them.
    teller: Option<Waker>,
    /// Whoever waits for the next expiry.
    driver: Option<Waker>,
    /// Whether the store has a conditional delete (R22: an expired flag is removed only as it was
    /// read).
    removes: bool,
    fault: Fault,
}

/// A read of the store that has begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    began: u64,
}

/// What a local write has left in the store.
#[derive(Debug, Clone)]
pub(super) enum Written {
    /// The flag, set anew: under another generation.
    Unleashed(FlagState),
    /// The flag, set as before, but with another end, who and why.
    Kept(FlagState),
    /// The flag as it was found, set: there was nothing to write after all.
    Found(FlagState),
    /// Nothing, or what is over.
    Unset,
}

impl Written {
    /// Returns the flag as it is set now.
    pub(super) fn state(&self) -> Option<&FlagState> {
        match self {
            Self::Unleashed(state) | Self::Kept(state) | Self::Found(state) => Some(state),
            Self::Unset => None,
        }
    }
}

/// Unwatched flags that are remembered for their acknowledgements: at about 2 KiB each, 2 MiB. Of
/// one that is forgotten the acknowledgements are unknown again.
const IDLE: usize = 1024;

impl Board {
    pub(super) fn new(removes: bool, config: &FlagsConfig) -> Self {
        Self {
            topics: BTreeMap::new(),
            idle: BTreeMap::new(),
            ends: BTreeSet::new(),
            set: SetFlags::new(config.max_flags),
            watched: BTreeSet::new(),
            max_watched: config.max_watched_flags,
            presence: Presence::new(),
            count: 0,
            last_generation: 0,
            acks: AckBudget::new(config.max_acks_per_flag, config.max_acks),
            acks_changed: BTreeSet::new(),
            teller: None,
            driver: None,
            removes,
            fault: config.fault,
        }
    }

    /// Notes that the store has no conditional delete: flags that are over stay there.
    pub(super) fn cannot_remove(&mut self) {
        self.removes = false;
    }

    fn tick(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Returns a generation for a flag that is set now.
    pub(super) fn new_generation(&mut self, wall: SystemTime) -> u64 {
        let micros = micros(wall);
        if planted!(self.fault, FlagGenerationRepeats) {
            return micros;
        }
        // One for all flags: it outlives each of them, and costs eight bytes.
        self.last_generation = micros.max(self.last_generation + 1);
        self.last_generation
    }

    /// Says that a read of a flag begins, or a list of all.
    pub(super) fn read_begins(&mut self) -> Reading {
        Reading { began: self.tick() }
    }

    /// Says what a read has found, be it over or not. R20: it counts for nothing where a local
    /// write ended during it, because its outcome may be from before that write.
    pub(super) fn read_ends(
        &mut self,
        name: &FlagName,
        reading: Reading,
        found: Option<(FlagState, Version)>,
        wall: SystemTime,
    ) -> Wakers {
        let mut wakers = Wakers::default();
        let now = self.tick();
        let (found, version) = found.unzip();
        self.learn(found.as_ref());
        let fault = self.fault;
        if let Some(topic) = self.topics.get_mut(name) {
            #[cfg(test)]
            if planted!(fault, FlagReadBeforeRegister) {
                let state = judge(found.clone(), wall).unwrap_or_else(|| topic.unset());
                topic.register_late(&state, &mut wakers);
            }
            if topic.counts(reading.began) || planted!(fault, FlagReadDuringWrite) {
                topic.ends_now(now);
                topic.version = version;
                self.apply_found(name, found, wall, reading.began, &mut wakers);
            }
        }
        self.rest(name);
        wakers
    }

    /// Says what a whole list of the store has shown of a flag: the version of its blob, or that it
    /// has none. Returns whether the flag must be read, because its blob is another one.
    pub(super) fn list_ends(
        &mut self,
        name: &FlagName,
        reading: Reading,
        version: Option<&Version>,
        wakers: &mut Wakers,
    ) -> bool {
        let fault = self.fault;
        let now = self.tick();
        let Some(topic) = self.topics.get_mut(name) else {
            return false;
        };
        if version.is_some() {
            return topic.version.as_ref() != version;
        }
        if topic.counts(reading.began) || planted!(fault, FlagListDuringWrite) {
            topic.ends_now(now);
            let unset = topic.unset();
            self.apply(name, unset, None, Source::Read(reading.began), wakers);
            self.rest(name);
        }
        false
    }

    /// Takes the names of all flags that a whole list has shown.
    pub(super) fn set_flags_are(&mut self, listed: &BTreeSet<FlagName>, reading: Reading) {
        self.set.replace(listed, reading.began);
    }

    pub(super) fn max_flags(&self) -> usize {
        self.set.max()
    }

    /// Reserves room for a flag that is about to be set; returns whether it took any.
    ///
    /// # Errors
    /// `Exhausted`, naming the limit.
    pub(super) fn admit_set(&mut self, name: &FlagName) -> Result<bool> {
        let now = self.tick();
        self.set.reserve(name, now)
    }

    /// Says that a local write of the flag begins, and returns its number.
    pub(super) fn write_begins(&mut self) -> u64 {
        self.tick()
    }

    /// Says that a local write has ended well, and what it left. Returns the state as it is told,
    /// and how many it is told to.
    pub(super) fn write_ends(
        &mut self,
        name: &FlagName,
        began: u64,
        written: Written,
    ) -> (FlagState, u32, Wakers) {
        let mut wakers = Wakers::default();
        let (state, source) = match written {
            Written::Unleashed(state) => (Some(state), Source::Unleash(began)),
            Written::Kept(state) => (Some(state), Source::Write(began)),
            Written::Found(state) => (Some(state), Source::Read(began)),
            Written::Unset => (None, Source::Write(began)),
        };
        self.learn(state.as_ref());
        let state = state.unwrap_or_else(|| self.unset(name));
        if state.expires_at.is_none() && !self.topics.contains_key(name) {
            return (state, 0, wakers);
        }
        let now = self.tick();
        let topic = self.topic(name);
        topic.ends_now(now);
        let watching = topic.watching();
        self.apply(name, state.clone(), state.expires_at, source, &mut wakers);
        self.rest(name);
        (state, watching, wakers)
    }

    /// Says that a local write has ended, nobody knows how: it may have happened.
    pub(super) fn write_is_lost(&mut self, name: &FlagName) {
        let now = self.tick();
        if let Some(topic) = self.topics.get_mut(name) {
            topic.ends_now(now);
        }
    }

    /// Remembers a flag that ends by itself, or has, though nobody watches it.
    pub(super) fn remember(&mut self, found: FlagState, wall: SystemTime) -> Wakers {
        let mut wakers = Wakers::default();
        self.learn(Some(&found));
        self.set.found(&found.name);
        if found.expires_at.is_some() && !self.topics.contains_key(&found.name) {
            let (name, began) = (found.name.clone(), self.tick());
            self.apply_found(&name, Some(found), wall, began, &mut wakers);
            self.rest(&name);
        }
        wakers
    }

    pub(super) fn is_settled(&self, name: &FlagName, id: u64) -> bool {
        self.topics
            .get(name)
            .is_none_or(|topic| topic.is_settled(id))
    }

    /// Takes what a watcher is owed next; where that is nothing, `waker` is woken when it is more.
    pub(super) fn owed(&mut self, name: &FlagName, id: u64, waker: &Waker) -> Option<Event> {
        self.topics.get_mut(name)?.owed(id, waker)
    }

    /// Returns the flag's state while it is not set, with the generation that is known of it.
    pub(super) fn unset(&self, name: &FlagName) -> FlagState {
        let unset = || FlagState::unset(name.clone(), 0);
        self.topics.get(name).map_or_else(unset, Topic::unset)
    }

    /// Returns what the refresh has to look at.
    pub(super) fn to_refresh(&self) -> Watched {
        Watched {
            names: self.watched.iter().cloned().collect(),
            set: self.set.len(),
            is_full: self.set.is_full(),
        }
    }

    /// Returns when the next flag ends by itself.
    pub(super) fn next_expiry(&self) -> Option<SystemTime> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// Returns the flags that should have ended by now.
    pub(super) fn due(&self, wall: SystemTime) -> Vec<FlagName> {
        let due = self.ends.iter().take_while(|(end, _)| *end <= wall);
        due.map(|(_, name)| name.clone()).collect()
    }

    /// Keeps whoever is to be woken when the next expiry is another one.
    pub(super) fn set_driver(&mut self, waker: &Waker) {
        self.driver = Some(waker.clone());
    }

    fn topic(&mut self, name: &FlagName) -> &mut Topic {
        let (born, fault) = (self.tick(), self.fault);
        self.topics
            .entry(name.clone())
            .or_insert_with(|| Topic::new(name.clone(), born, fault))
    }

    /// Takes what was found in the store. What is over reads as not set, and stays due until it is
    /// removed, where it can be.
    fn apply_found(
        &mut self,
        name: &FlagName,
        found: Option<FlagState>,
        wall: SystemTime,
        began: u64,
        wakers: &mut Wakers,
    ) {
        let ends = found.as_ref().and_then(|state| state.expires_at);
        let state = judge(found, wall);
        let ends = ends.filter(|_| state.is_some() || self.removes);
        let state = state.unwrap_or_else(|| self.unset(name));
        self.apply(name, state, ends, Source::Read(began), wakers);
    }

    fn apply(
        &mut self,
        name: &FlagName,
        state: FlagState,
        ends: Option<SystemTime>,
        source: Source,
        wakers: &mut Wakers,
    ) {
        let topic = self.topic(name);
        let (ended, acks) = (topic.ends(), topic.acked.len());
        topic.apply(state, ends, source, wakers);
        let cleared = acks - topic.acked.len();
        self.acks.give_back(cleared);
        if ended != ends {
            if let Some(end) = ended {
                self.ends.remove(&(end, name.clone()));
            }
            self.ends.extend(ends.map(|end| (end, name.clone())));
            wakers.push(self.driver.take());
        }
        self.mark_acks(name, wakers);
    }

    /// Learns of a generation that was given out elsewhere. Hashes and numbers beyond the clock's
    /// reach are nobody's count, and would only make two relays count from the same one.
    fn learn(&mut self, state: Option<&FlagState>) {
        let known = state.map_or(0, |state| state.generation);
        if known < HASHES {
            self.last_generation = self.last_generation.max(known);
        }
    }

    /// Forgets a flag that nobody watches, unless it must end by itself or is set and has
    /// acknowledgements. Those that end are as many as may be set; of a further one, set by another
    /// relay, the blob stays when it is over, and reads as not set.
    fn rest(&mut self, name: &FlagName) {
        let place = self.tick();
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        if topic.is_watched() {
            return;
        }
        if topic.ends().is_some() && self.ends.len() <= self.set.max() {
            if let Some(place) = topic.idle.take() {
                self.idle.remove(&place);
            }
        } else if !topic.has_acks() {
            self.forget(name);
        } else if topic.idle.is_none() {
            topic.idle = Some(place);
            self.idle.insert(place, name.clone());
            self.forget_idle(IDLE);
        }
    }

    fn forget_idle(&mut self, keep: usize) {
        while self.idle.len() > keep
            && let Some((_, name)) = self.idle.pop_first()
        {
            self.forget(&name);
        }
    }

    fn forget(&mut self, name: &FlagName) {
        if let Some(topic) = self.topics.remove(name) {
            self.acks.give_back(topic.acked.len());
            if let Some(end) = topic.ends() {
                self.ends.remove(&(end, name.clone()));
            }
            if let Some(place) = topic.idle {
                self.idle.remove(&place);
            }
        }
    }
}

/// Returns the state where it is set and not over.
pub(super) fn judge(state: Option<FlagState>, wall: SystemTime) -> Option<FlagState> {
    state.filter(|state| state.set && !is_over(state, wall))
}
