//! The board: which flags are watched, what is known of them, and what may be told when.
//!
//! The decisions of PROTOCOL section 8, pure and synchronous. A watcher registers first; a read of
//! the store counts for those who had registered when it began, and only if no local write of its
//! flag ended during it (R20). Whoever works with the store says here when a read or a write began
//! and how it ended. Everything that happens is numbered by one count, which is all the time the
//! board knows.

use std::{collections::BTreeMap, task::Waker, time::SystemTime};

use super::{
    body::{HASHES, is_over},
    topic::{Source, Topic, Wakers},
};
use crate::{
    clock::micros,
    error::{Error, ErrorKind, Result},
    fault::{Fault, planted},
    words::{FlagEvent, FlagName, FlagState, ListenerId},
};

/// All flags that somebody watches, and some that are remembered for other reasons.
#[derive(Debug)]
pub(super) struct Board {
    topics: BTreeMap<FlagName, Topic>,
    /// Flags that nobody watches, remembered for their acknowledgements or their end; oldest first.
    idle: BTreeMap<u64, FlagName>,
    count: u64,
    last_generation: u64,
    acks: usize,
    /// Whoever waits for the next expiry.
    driver: Option<Waker>,
    /// Whether the store can remove what is over (R22).
    removes: bool,
    fault: Fault,
}

/// A read of the store that has begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    began: u64,
    writes_ended: u64,
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

/// Unwatched flags that are remembered: at about 2 KiB each, 2 MiB. Of one that is forgotten the
/// acknowledgements are unknown again, and its blob stays when it is over, and reads as not set.
const IDLE: usize = 1024;

/// Acknowledgements that are remembered, of all flags together: about 40 MB.
const ACKS: usize = 200_000;

impl Board {
    pub(super) fn new(removes: bool, fault: Fault) -> Self {
        Self {
            topics: BTreeMap::new(),
            idle: BTreeMap::new(),
            count: 0,
            last_generation: 0,
            acks: 0,
            driver: None,
            removes,
            fault,
        }
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

    /// Registers a watcher; what happens from now on reaches it.
    pub(super) fn register(&mut self, name: &FlagName, acks: bool) -> (u64, Wakers) {
        let id = self.tick();
        let mut wakers = Wakers::default();
        let topic = self.topic(name);
        topic.register(id, acks, &mut wakers);
        if let Some(place) = topic.idle.take() {
            self.idle.remove(&place);
        }
        (id, wakers)
    }

    pub(super) fn unregister(&mut self, name: &FlagName, id: u64) -> Wakers {
        let mut wakers = Wakers::default();
        if let Some(topic) = self.topics.get_mut(name) {
            topic.unregister(id, &mut wakers);
        }
        self.rest(name);
        wakers
    }

    /// Says that a read of the flag begins.
    pub(super) fn read_begins(&mut self, name: &FlagName) -> Reading {
        let began = self.tick();
        let writes_ended = self.topics.get(name).map_or(0, |topic| topic.writes_ended);
        Reading {
            began,
            writes_ended,
        }
    }

    /// Says what a read has found, be it over or not. It counts for nothing where a local write
    /// ended during it: its outcome may be from before that write (R20).
    pub(super) fn read_ends(
        &mut self,
        name: &FlagName,
        reading: Reading,
        found: Option<FlagState>,
        wall: SystemTime,
    ) -> Wakers {
        let mut wakers = Wakers::default();
        self.learn(found.as_ref());
        let fault = self.fault;
        if let Some(topic) = self.topics.get_mut(name) {
            #[cfg(test)]
            if planted!(fault, FlagReadBeforeRegister) {
                let state = judge(found.clone(), wall).unwrap_or_else(|| topic.unset());
                topic.register_late(&state, &mut wakers);
            }
            if topic.writes_ended == reading.writes_ended || planted!(fault, FlagReadDuringWrite) {
                self.apply_found(name, found, wall, reading.began, &mut wakers);
            }
        }
        self.rest(name);
        wakers
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
        let topic = self.topic(name);
        topic.writes_ended += 1;
        let watching = topic.watching();
        self.apply(name, state.clone(), state.expires_at, source, &mut wakers);
        self.rest(name);
        (state, watching, wakers)
    }

    /// Says that a local write has ended, nobody knows how: it may have happened.
    pub(super) fn write_is_lost(&mut self, name: &FlagName) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.writes_ended += 1;
        }
    }

    /// Remembers a flag that ends by itself, or has, though nobody watches it.
    pub(super) fn remember(&mut self, found: FlagState, wall: SystemTime) -> Wakers {
        let mut wakers = Wakers::default();
        self.learn(Some(&found));
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
    pub(super) fn owed(&mut self, name: &FlagName, id: u64, waker: &Waker) -> Option<FlagEvent> {
        self.topics.get_mut(name)?.owed(id, waker)
    }

    /// Counts an acknowledgement.
    ///
    /// # Errors
    /// `Exhausted` where too many are remembered.
    pub(super) fn ack(
        &mut self,
        name: &FlagName,
        generation: u64,
        listener: ListenerId,
    ) -> Result<Wakers> {
        if self.acks >= ACKS {
            self.forget_idle(0);
        }
        if self.acks >= ACKS {
            let message = format!("acknowledgements: the limit is {ACKS} of all flags together");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        let mut wakers = Wakers::default();
        if let Some(topic) = self.topics.get_mut(name) {
            let before = topic.acked.len();
            topic.ack(generation, listener, &mut wakers);
            self.acks += topic.acked.len() - before;
        }
        Ok(wakers)
    }

    /// Returns the flag's state while it is not set, with the generation that is known of it.
    pub(super) fn unset(&self, name: &FlagName) -> FlagState {
        let unset = || FlagState::unset(name.clone(), 0);
        self.topics.get(name).map_or_else(unset, Topic::unset)
    }

    /// Counts the watchers of all flags.
    pub(super) fn watchers(&self) -> u64 {
        self.topics
            .values()
            .map(|topic| u64::from(topic.watching()))
            .sum()
    }

    /// Returns the flags that somebody watches.
    pub(super) fn watched(&self) -> Vec<FlagName> {
        let watched = self.topics.iter().filter(|(_, topic)| topic.is_watched());
        watched.map(|(name, _)| name.clone()).collect()
    }

    /// Returns when the next flag ends by itself.
    pub(super) fn next_expiry(&self) -> Option<SystemTime> {
        self.topics.values().filter_map(Topic::ends).min()
    }

    /// Returns the flags that should have ended by now.
    pub(super) fn due(&self, wall: SystemTime) -> Vec<FlagName> {
        let due = |topic: &Topic| topic.ends().is_some_and(|end| end <= wall);
        let topics = self.topics.iter().filter(|(_, topic)| due(topic));
        topics.map(|(name, _)| name.clone()).collect()
    }

    /// Keeps whoever is to be woken when the next expiry is another one.
    pub(super) fn set_driver(&mut self, waker: &Waker) {
        self.driver = Some(waker.clone());
    }

    fn topic(&mut self, name: &FlagName) -> &mut Topic {
        let fault = self.fault;
        self.topics
            .entry(name.clone())
            .or_insert_with(|| Topic::new(name.clone(), fault))
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
        self.acks -= cleared;
        if ended != ends {
            wakers.push(self.driver.take());
        }
    }

    /// Learns of a generation that was given out elsewhere. Hashes and numbers beyond the clock's
    /// reach are nobody's count, and would only make two relays count from the same one.
    fn learn(&mut self, state: Option<&FlagState>) {
        let known = state.map_or(0, |state| state.generation);
        if known < HASHES {
            self.last_generation = self.last_generation.max(known);
        }
    }

    /// Forgets a flag that nobody watches, or remembers it for a while where there is a reason.
    fn rest(&mut self, name: &FlagName) {
        let place = self.tick();
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        if topic.is_watched() || topic.idle.is_some() && topic.is_worth_keeping() {
            return;
        }
        if topic.is_worth_keeping() {
            topic.idle = Some(place);
            self.idle.insert(place, name.clone());
            self.forget_idle(IDLE);
        } else {
            self.forget(name);
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
            self.acks -= topic.acked.len();
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
