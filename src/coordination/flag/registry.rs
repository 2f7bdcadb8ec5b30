//! The registry of watches: the watched flags, their known states, and the events of watchers.
//!
//! The decisions of docs/internal/protocol-rules.md section 8, pure and synchronous. A watcher first registers. A
//! read of the store counts for the watchers that registered before it began (R20: only a fresh read
//! settles a watcher). Callers hold the flag's lock during each read and write, so that those of one
//! flag are in order. One sequence number orders registrations, reads and writes; the registry knows
//! no other time.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
    task::Waker,
    time::{Duration, SystemTime},
};

use super::{
    FlagsConfig,
    acks::{AckBudget, AckKey},
    document::{EndRule, EndedSet, HASHES, StoredFlag},
    entry::{FlagEntry, Observed, Versions},
    event::Event,
    set_flags::SetFlags,
    wakers::Wakers,
};
use crate::{
    base::{
        clock::{Tick, micros},
        fault::planted,
    },
    error::{Error, ErrorKind, Result},
    types::{FlagName, FlagState, ListenerId},
};

/// The watched flags, and unwatched flags that are remembered for their acknowledgements or expiry.
#[derive(Debug)]
pub(super) struct WatchRegistry {
    pub(super) entries: BTreeMap<FlagName, FlagEntry>,
    /// Unwatched flags that are remembered for their acknowledgements, oldest first.
    idle: BTreeMap<u64, FlagName>,
    /// The expiry times of flags, soonest first.
    expiries: BTreeSet<(SystemTime, FlagName)>,
    /// Flags that are set in the store.
    pub(super) set: SetFlags,
    /// Flags that are watched.
    watched: BTreeSet<FlagName>,
    max_watched: usize,
    sequence: u64,
    last_generation: u64,
    pub(super) acks: AckBudget,
    /// Flags whose observers must receive new counts of acknowledgements.
    pub(super) acks_changed: BTreeSet<FlagName>,
    /// The task that sends counts of acknowledgements.
    pub(super) ack_task: Option<Waker>,
    /// The task that waits for the next expiry.
    expiry_task: Option<Waker>,
    /// Whether the store has a conditional delete (R22: an expired flag is removed only as it was
    /// read).
    pub(super) can_remove_expired: bool,
}

/// The outcome of a local write.
#[derive(Debug, Clone)]
pub(super) struct Written {
    pub(super) state: FlagState,
    /// The set that it has ended.
    pub(super) ended: Option<EndedSet>,
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
    pub(super) fn new(can_remove_expired: bool, config: &FlagsConfig) -> Self {
        Self {
            entries: BTreeMap::new(),
            idle: BTreeMap::new(),
            expiries: BTreeSet::new(),
            set: SetFlags::new(config.max_flags),
            watched: BTreeSet::new(),
            max_watched: config.max_watched_flags,
            sequence: 0,
            last_generation: 0,
            acks: AckBudget {
                used: 0,
                per_flag: config.max_acks_per_flag,
                total: config.max_acks,
            },
            acks_changed: BTreeSet::new(),
            ack_task: None,
            expiry_task: None,
            can_remove_expired,
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

    /// Checks that clients may watch one more flag.
    ///
    /// # Errors
    /// `Exhausted`, naming the limit.
    pub(super) fn admit_watch(&self, name: &FlagName) -> Result<()> {
        if self.watched.len() < self.max_watched || self.watched.contains(name) {
            return Ok(());
        }
        let message = format!(
            "flag `{name}` cannot be watched: the limit is {} watched flags",
            self.max_watched
        );
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    /// Registers a watcher, which receives all later changes, under the number that it returns.
    pub(super) fn register(&mut self, name: &FlagName, acks: bool) -> (u64, Wakers) {
        let id = self.next_sequence();
        let mut wakers = Wakers::default();
        let entry = self.entry(name);
        entry.register(id, acks);
        if let Some(key) = entry.idle_key.take() {
            self.idle.remove(&key);
        }
        self.watched.insert(name.clone());
        self.mark_acks(name, &mut wakers);
        (id, wakers)
    }

    pub(super) fn unregister(&mut self, name: &FlagName, id: u64) -> Wakers {
        let mut wakers = Wakers::default();
        if let Some(entry) = self.entries.get_mut(name) {
            entry.unregister(id);
            if !entry.is_watched() {
                self.watched.remove(name);
            }
        }
        self.mark_acks(name, &mut wakers);
        self.forget_if_unused(name);
        wakers
    }

    /// Shows a listener's stream no longer.
    pub(super) fn stream_closed(&mut self, name: &FlagName, listener: &ListenerId) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.stream_closed(listener);
        }
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

    /// Takes a flag's newest set that is over, as a read or write that began at this sequence number
    /// found it.
    pub(super) fn note_ended(
        &mut self,
        name: &FlagName,
        ended: Option<&EndedSet>,
        began: u64,
    ) -> Wakers {
        let mut wakers = Wakers::default();
        self.change(name, &mut wakers, |entry, wakers| {
            entry.note_ended(ended, began, wakers);
        });
        wakers
    }

    /// Applies the result of a read, also of an expired flag. The caller has noted the newest set that
    /// is over before it read the flag.
    pub(super) fn finish_read(
        &mut self,
        name: &FlagName,
        began: u64,
        (found, versions): (Option<StoredFlag>, Option<Versions>),
        wall: SystemTime,
    ) -> Wakers {
        let mut wakers = Wakers::default();
        self.note_generation(found.as_ref().map(|found| &found.state));
        if !self.entries.contains_key(name) {
            return wakers;
        }
        let check_at = found.as_ref().and_then(|found| found.state.expires_at);
        let set = found.as_ref().map(|found| found.state.clone());
        let active = found.and_then(|found| found.active(EndRule::SetAt, wall));
        let check_at = check_at.filter(|_| active.is_some() || self.can_remove_expired);
        let expired = set.filter(|_| active.is_none());
        let observed = Observed {
            began,
            state: active.unwrap_or_else(|| self.unset(name)),
            check_at,
        };
        self.change(name, &mut wakers, |entry, wakers| {
            if let Some(expired) = expired {
                entry.note_expired(&expired, wakers);
            }
            entry.observe(observed, wakers);
            entry.versions = versions;
        });
        self.forget_if_unused(name);
        wakers
    }

    /// Returns whether a watched flag must be read, because the versions in a list are not those of
    /// its newest read.
    pub(super) fn is_stale(&self, name: &FlagName, listed: &Versions) -> bool {
        let entry = self.entries.get(name);
        entry.is_some_and(|entry| entry.versions.as_ref() != Some(listed))
    }

    /// Ends a successful local write. Returns the number of watchers.
    pub(super) fn finish_write(
        &mut self,
        name: &FlagName,
        began: u64,
        written: Written,
    ) -> (u32, Wakers) {
        let mut wakers = Wakers::default();
        let Written { state, ended } = written;
        self.note_generation(Some(&state));
        if state.expires_at.is_none() && !self.entries.contains_key(name) {
            return (0, wakers);
        }
        let observed = Observed {
            began,
            check_at: state.expires_at,
            state,
        };
        self.entry(name);
        let watching = self.change(name, &mut wakers, |entry, wakers| {
            if ended.is_some() {
                entry.note_ended(ended.as_ref(), began, wakers);
            }
            entry.versions = None;
            entry.observe(observed, wakers);
            entry.watching()
        });
        self.forget_if_unused(name);
        (watching.unwrap_or_default(), wakers)
    }

    /// Remembers a flag with an expiry that a search of the store found, even if it is not watched.
    pub(super) fn add_found(&mut self, found: StoredFlag, wall: SystemTime) -> Wakers {
        let mut wakers = Wakers::default();
        self.note_generation(Some(&found.state));
        let name = found.state.name.clone();
        self.set.found(&name);
        if found.state.expires_at.is_some() && !self.entries.contains_key(&name) {
            let began = self.next_sequence();
            self.entry(&name);
            wakers.append(self.finish_read(&name, began, (Some(found), None), wall));
        }
        wakers
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

    /// Returns the watched flags, sorted.
    pub(super) fn watched(&self) -> Vec<FlagName> {
        self.watched.iter().cloned().collect()
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

    pub(super) fn entry(&mut self, name: &FlagName) -> &mut FlagEntry {
        let number = self.next_sequence();
        self.entries
            .entry(name.clone())
            .or_insert_with(|| FlagEntry::new(name.clone(), number))
    }

    /// Changes a known flag, and keeps what follows from it: the room of acknowledgements, and the
    /// order of expiries.
    fn change<T>(
        &mut self,
        name: &FlagName,
        wakers: &mut Wakers,
        change: impl FnOnce(&mut FlagEntry, &mut Wakers) -> T,
    ) -> Option<T> {
        let entry = self.entries.get_mut(name)?;
        let (ended, acks) = (entry.check_at, entry.acked.len());
        let output = change(entry, wakers);
        let check_at = entry.check_at;
        self.acks.used -= acks - entry.acked.len();
        if ended != check_at {
            if let Some(end) = ended {
                self.expiries.remove(&(end, name.clone()));
            }
            self.expiries
                .extend(check_at.map(|end| (end, name.clone())));
            wakers.push(self.expiry_task.take());
        }
        self.mark_acks(name, wakers);
        Some(output)
    }

    /// Takes a generation that another writer gave out. A hash, or a number beyond the clock's
    /// reach, is no counter: two relays would continue from the same value.
    fn note_generation(&mut self, state: Option<&FlagState>) {
        let generation = state.map_or(0, |state| state.generation);
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
        if entry.check_at.is_some() && self.expiries.len() <= self.set.max() {
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

    pub(super) fn forget_idle(&mut self, keep: usize) {
        while self.idle.len() > keep
            && let Some((_, name)) = self.idle.pop_first()
        {
            self.forget(&name);
        }
    }

    fn forget(&mut self, name: &FlagName) {
        if let Some(entry) = self.entries.remove(name) {
            self.acks.used -= entry.acked.len();
            if let Some(end) = entry.check_at {
                self.expiries.remove(&(end, name.clone()));
            }
            if let Some(key) = entry.idle_key {
                self.idle.remove(&key);
            }
        }
    }
}
