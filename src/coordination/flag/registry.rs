//! The registry of watches: the watched flags, their known states, and the events of watchers.
//!
//! The decisions of docs/protocol.md section 8, pure and synchronous. A watcher first registers. A
//! read of the store counts for the watchers that registered before it began, and only if no local
//! write of the flag ended during it (R20: only a fresh read settles a watcher). Callers report the
//! begin and the end of each read and write. One sequence number orders all of these steps; the
//! registry knows no other time.

mod acknowledge;
mod other_relays;
#[cfg(all(feature = "relay", feature = "nats"))]
mod remote_acks;
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
    document::{EndRule, HASHES, StoredFlag, Version},
    entry::{FlagEntry, StateOrigin},
    event::Event,
    presence::Presence,
    set_flags::SetFlags,
    wakers::Wakers,
};
use crate::{
    base::{
        clock::micros,
        fault::{Fault, planted},
    },
    error::Result,
    types::{FlagName, FlagState},
};

/// The flags that a refresh reads.
#[derive(Debug)]
pub(super) struct RefreshPlan {
    /// Names of the watched flags, sorted.
    pub(super) names: Vec<FlagName>,
    /// Number of known set flags, watched or not.
    pub(super) set: usize,
    /// Whether the number of set flags is at its limit. Only a list shows that other writers have
    /// cleared some.
    pub(super) is_full: bool,
}

/// The watched flags, and unwatched flags that are remembered for their acknowledgements or expiry.
#[derive(Debug)]
pub(super) struct WatchRegistry {
    entries: BTreeMap<FlagName, FlagEntry>,
    /// Unwatched flags that are remembered for their acknowledgements, oldest first.
    idle: BTreeMap<u64, FlagName>,
    /// The expiry times of flags, soonest first.
    expiries: BTreeSet<(SystemTime, FlagName)>,
    /// Flags that are set in the store.
    pub(super) set: SetFlags,
    /// Flags that are watched.
    watched: BTreeSet<FlagName>,
    max_watched: usize,
    presence: Presence,
    sequence: u64,
    last_generation: u64,
    acks: AckBudget,
    /// Flags whose observers must receive new counts of acknowledgements.
    acks_changed: BTreeSet<FlagName>,
    /// The task that sends counts of acknowledgements.
    ack_task: Option<Waker>,
    /// The task that waits for the next expiry.
    expiry_task: Option<Waker>,
    /// Whether the store has a conditional delete (R22: an expired flag is removed only as it was
    /// read).
    can_remove_expired: bool,
    /// Whether other relays announce their writes of the store.
    shared: bool,
    fault: Fault,
}

/// The start of a read of the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadStart {
    began: u64,
}

/// The state that a local write left in the store.
#[derive(Debug, Clone)]
pub(super) enum WriteOutcome {
    /// The write set the flag under a new generation.
    Unleashed(FlagState),
    /// Another relay set the flag under a new generation.
    Heard(FlagState),
    /// The flag was already set. The write changed its expiry, author or reason.
    Kept(FlagState),
    /// The flag was found set, and nothing was written.
    Found(FlagState),
    /// There is no blob, or only an expired one.
    Unset,
}

impl WriteOutcome {
    /// Returns the state of a flag that is set now.
    pub(super) fn state(&self) -> Option<&FlagState> {
        match self {
            Self::Unleashed(state)
            | Self::Heard(state)
            | Self::Kept(state)
            | Self::Found(state) => Some(state),
            Self::Unset => None,
        }
    }
}

/// Unwatched flags that are remembered for their acknowledgements: at about 2 KiB each, 2 MiB. The
/// acknowledgements of a forgotten flag are unknown again.
const MAX_IDLE: usize = 1024;

impl WatchRegistry {
    pub(super) fn new(can_remove_expired: bool, config: &FlagsConfig) -> Self {
        Self {
            entries: BTreeMap::new(),
            idle: BTreeMap::new(),
            expiries: BTreeSet::new(),
            set: SetFlags::new(config.max_flags),
            watched: BTreeSet::new(),
            max_watched: config.max_watched_flags,
            presence: Presence::new(),
            sequence: 0,
            last_generation: 0,
            acks: AckBudget::new(config.max_acks_per_flag, config.max_acks),
            acks_changed: BTreeSet::new(),
            ack_task: None,
            expiry_task: None,
            can_remove_expired,
            shared: false,
            fault: config.fault,
        }
    }

    /// Notes that the store has no conditional delete, so expired blobs stay there.
    pub(super) fn set_cannot_remove(&mut self) {
        self.can_remove_expired = false;
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Returns a new generation for a flag that is being set.
    pub(super) fn new_generation(&mut self, wall: SystemTime) -> u64 {
        let micros = micros(wall);
        if planted!(self.fault, FlagGenerationRepeats) {
            return micros;
        }
        // One counter serves all flags: it outlives each of them and costs eight bytes.
        self.last_generation = micros.max(self.last_generation + 1);
        self.last_generation
    }

    /// Starts a read of one flag or a list of all flags.
    pub(super) fn begin_read(&mut self) -> ReadStart {
        ReadStart {
            began: self.next_sequence(),
        }
    }

    /// Applies the result of a read, also of an expired flag. R20: the read does not count if a
    /// local write ended during it, because its result may be older than that write.
    pub(super) fn finish_read(
        &mut self,
        name: &FlagName,
        reading: ReadStart,
        found: Option<StoredFlag>,
        wall: SystemTime,
    ) -> Wakers {
        let mut wakers = Wakers::default();
        let now = self.next_sequence();
        let version = found.as_ref().map(StoredFlag::version);
        self.note_generation(found.as_ref().map(|found| &found.state));
        let fault = self.fault;
        let accepts_any_read = planted!(fault, FlagReadDuringWrite);
        if let Some(entry) = self.entries.get_mut(name) {
            #[cfg(test)]
            if planted!(fault, FlagReadBeforeRegister) {
                let state = found
                    .clone()
                    .and_then(|found| found.active(EndRule::SetAt, wall))
                    .unwrap_or_else(|| entry.unset());
                entry.register_late(&state, &mut wakers);
            }
            if entry.accepts_read(reading.began) || accepts_any_read {
                entry.mark_updated(now);
                entry.version = version;
                self.apply_found(name, found, wall, reading.began, &mut wakers);
            }
        }
        self.forget_if_unused(name);
        wakers
    }

    /// Takes one flag's result of a complete list: the version of its blob, or `None` for no blob.
    /// Returns whether the flag must be read because its blob has changed.
    pub(super) fn apply_listed(
        &mut self,
        name: &FlagName,
        reading: ReadStart,
        version: Option<&Version>,
        wakers: &mut Wakers,
    ) -> bool {
        let accepts_any_list = planted!(self.fault, FlagListDuringWrite);
        let now = self.next_sequence();
        let Some(entry) = self.entries.get_mut(name) else {
            return false;
        };
        if version.is_some() {
            return entry.version.as_ref() != version;
        }
        if entry.accepts_read(reading.began) || accepts_any_list {
            entry.mark_updated(now);
            let unset = entry.unset();
            self.apply(name, unset, None, StateOrigin::Read(reading.began), wakers);
            self.forget_if_unused(name);
        }
        false
    }

    /// Takes the names of all flags in a complete list.
    pub(super) fn replace_set_flags(&mut self, listed: &BTreeSet<FlagName>, reading: ReadStart) {
        self.set.replace(listed, reading.began);
    }

    pub(super) fn max_flags(&self) -> usize {
        self.set.max()
    }

    /// Reserves room for a flag that is about to be set. Returns whether it took new room.
    ///
    /// # Errors
    /// `Exhausted`, naming the limit.
    pub(super) fn admit_set(&mut self, name: &FlagName) -> Result<bool> {
        let now = self.next_sequence();
        self.set.reserve(name, now)
    }

    /// Starts a local write of the flag and returns its sequence number.
    pub(super) fn begin_write(&mut self) -> u64 {
        self.next_sequence()
    }

    /// Ends a successful local write. Returns the state to report and the number of watchers.
    pub(super) fn finish_write(
        &mut self,
        name: &FlagName,
        began: u64,
        written: WriteOutcome,
    ) -> (FlagState, u32, Wakers) {
        let mut wakers = Wakers::default();
        let (state, source) = match written {
            WriteOutcome::Unleashed(state) => (Some(state), StateOrigin::Unleash(began)),
            WriteOutcome::Heard(state) => {
                let source = StateOrigin::Heard(began, state.set_at);
                (Some(state), source)
            }
            WriteOutcome::Kept(state) => (Some(state), StateOrigin::Write(began)),
            WriteOutcome::Found(state) => (Some(state), StateOrigin::Read(began)),
            WriteOutcome::Unset => (None, StateOrigin::Write(began)),
        };
        self.note_generation(state.as_ref());
        let state = state.unwrap_or_else(|| self.unset(name));
        if state.expires_at.is_none() && !self.entries.contains_key(name) {
            return (state, 0, wakers);
        }
        let now = self.next_sequence();
        let unordered = self.is_unordered(name, began) && !source.is_new_set();
        let entry = self.entry(name);
        entry.mark_updated(now);
        let watching = entry.watching();
        if unordered {
            // The state may be older than the one known here. The caller has the flag read again.
            return (state, watching, wakers);
        }
        self.apply(name, state.clone(), state.expires_at, source, &mut wakers);
        self.forget_if_unused(name);
        (state, watching, wakers)
    }

    /// Ends a local write with unknown outcome: it may have happened.
    pub(super) fn abandon_write(&mut self, name: &FlagName) {
        let now = self.next_sequence();
        if let Some(entry) = self.entries.get_mut(name) {
            entry.mark_updated(now);
        }
    }

    /// Remembers a flag with an expiry that a search of the store found, even if it is not watched.
    pub(super) fn add_found(&mut self, found: StoredFlag, wall: SystemTime) -> Wakers {
        let mut wakers = Wakers::default();
        self.note_generation(Some(&found.state));
        let name = found.state.name.clone();
        self.set.found(&name);
        if found.state.expires_at.is_some() && !self.entries.contains_key(&name) {
            let began = self.next_sequence();
            self.apply_found(&name, Some(found), wall, began, &mut wakers);
            self.forget_if_unused(&name);
        }
        wakers
    }

    /// Notes the wall clock after a watcher's registration.
    pub(super) fn set_registered_at(&mut self, name: &FlagName, id: u64, wall: SystemTime) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.set_registered_at(id, wall);
        }
    }

    /// Returns whether this relay knows the generation as the flag's newest one.
    pub(super) fn knows_generation(&self, name: &FlagName, generation: u64) -> bool {
        let entry = self.entries.get(name);
        entry.is_some_and(|entry| entry.generation() == Some(generation))
    }

    pub(super) fn is_synced(&self, name: &FlagName, id: u64) -> bool {
        self.entries
            .get(name)
            .is_none_or(|entry| entry.is_synced(id))
    }

    /// Takes the watcher's next event. If there is none, `waker` is woken when one is ready.
    pub(super) fn next_event(&mut self, name: &FlagName, id: u64, waker: &Waker) -> Option<Event> {
        self.entries.get_mut(name)?.next_event(id, waker)
    }

    /// Returns the unset state of a flag, with its last known generation.
    pub(super) fn unset(&self, name: &FlagName) -> FlagState {
        let unset = || FlagState::unset(name.clone(), 0);
        self.entries.get(name).map_or_else(unset, FlagEntry::unset)
    }

    /// Returns which flags the next refresh must read.
    pub(super) fn refresh_plan(&self) -> RefreshPlan {
        RefreshPlan {
            names: self.watched.iter().cloned().collect(),
            set: self.set.len(),
            is_full: self.set.is_full(),
        }
    }

    /// Returns the time of the next expiry.
    pub(super) fn next_expiry(&self) -> Option<SystemTime> {
        self.expiries.first().map(|(end, _)| *end)
    }

    /// Returns the flags that have expired by now.
    pub(super) fn due(&self, wall: SystemTime) -> Vec<FlagName> {
        let due = self.expiries.iter().take_while(|(end, _)| *end <= wall);
        due.map(|(_, name)| name.clone()).collect()
    }

    /// Sets the waker for a change of the next expiry.
    pub(super) fn set_expiry_task(&mut self, waker: &Waker) {
        self.expiry_task = Some(waker.clone());
    }

    fn entry(&mut self, name: &FlagName) -> &mut FlagEntry {
        let (created, fault) = (self.next_sequence(), self.fault);
        self.entries
            .entry(name.clone())
            .or_insert_with(|| FlagEntry::new(name.clone(), created, fault))
    }

    /// Applies the result of a read. An expired flag reads as not set, and stays due until its blob
    /// is removed, where the store can do that.
    fn apply_found(
        &mut self,
        name: &FlagName,
        found: Option<StoredFlag>,
        wall: SystemTime,
        began: u64,
        wakers: &mut Wakers,
    ) {
        let check_at = found.as_ref().and_then(|found| found.state.expires_at);
        let state = found.and_then(|found| found.active(EndRule::SetAt, wall));
        let check_at = check_at.filter(|_| state.is_some() || self.can_remove_expired);
        let state = state.unwrap_or_else(|| self.unset(name));
        self.apply(name, state, check_at, StateOrigin::Read(began), wakers);
    }

    fn apply(
        &mut self,
        name: &FlagName,
        state: FlagState,
        check_at: Option<SystemTime>,
        source: StateOrigin,
        wakers: &mut Wakers,
    ) {
        let entry = self.entry(name);
        let (ended, acks) = (entry.check_at(), entry.acked.len());
        entry.apply(state, check_at, source, wakers);
        let cleared = acks - entry.acked.len();
        self.acks.give_back(cleared);
        if ended != check_at {
            if let Some(end) = ended {
                self.expiries.remove(&(end, name.clone()));
            }
            self.expiries
                .extend(check_at.map(|end| (end, name.clone())));
            wakers.push(self.expiry_task.take());
        }
        self.mark_acks(name, wakers);
    }

    /// Takes a generation that another writer gave out. A hash, or a number beyond the clock's
    /// reach, is no counter: two relays would continue from the same value.
    fn note_generation(&mut self, state: Option<&FlagState>) {
        self.note_number(state.map_or(0, |state| state.generation));
    }

    fn note_number(&mut self, generation: u64) {
        if generation < HASHES {
            self.last_generation = self.last_generation.max(generation);
        }
    }

    /// Forgets an unwatched flag, unless it has an expiry, or is set and has acknowledgements. At
    /// most `max` flags with an expiry are remembered. For one more, set by another relay, the
    /// expired blob stays and reads as not set.
    fn forget_if_unused(&mut self, name: &FlagName) {
        let key = self.next_sequence();
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        if entry.is_watched() {
            return;
        }
        if entry.check_at().is_some() && self.expiries.len() <= self.set.max() {
            if let Some(key) = entry.idle_key.take() {
                self.idle.remove(&key);
            }
        } else if !entry.has_acks() {
            self.forget(name);
        } else if entry.idle_key.is_none() {
            entry.idle_key = Some(key);
            self.idle.insert(key, name.clone());
            self.forget_idle(MAX_IDLE);
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
        if let Some(entry) = self.entries.remove(name) {
            self.acks.give_back(entry.acked.len());
            if let Some(end) = entry.check_at() {
                self.expiries.remove(&(end, name.clone()));
            }
            if let Some(key) = entry.idle_key {
                self.idle.remove(&key);
            }
        }
    }
}
