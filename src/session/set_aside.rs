//! Entries that the relay refused with RESOURCE_EXHAUSTED, until it has room for them (R19).
//!
//! Each waits by a back-off of its own and is then sent in a *probe*: a request of such entries
//! only, at most one at a time, so that no other entry waits for them. A probe holds one entry
//! while the relay is full. Each one that is taken doubles the next, whose entries need not be due:
//! a relay that has room again is told of all that waits within a few round trips.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use super::entry::{Entry, Key};
use crate::{backoff::Backoff, clock::Tick, error::Error, words::Limits};

/// The entries that wait for room.
#[derive(Debug)]
pub(super) struct SetAside {
    /// By when each is due, and the order in which they came.
    entries: BTreeMap<(Tick, u64), Refused>,
    /// Where each key's entry is; unused where nothing is conflated.
    index: HashMap<Key, (Tick, u64)>,
    conflate: bool,
    next: u64,
    /// Entries of the next probe at most.
    probe: usize,
    /// No probe is sent before.
    paused_until: Tick,
}

/// An entry, and how it was refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) entry: Entry,
    pub(super) error: Error,
    backoff: Backoff,
    /// Until then the relay asked to wait.
    asked_until: Tick,
}

/// The first retry of an entry waits at most this long.
const BASE: Duration = Duration::from_millis(500);
/// No retry waits longer, unless the relay asked for it: half of a caller's default deadline, so
/// that a caller whose notification joins the entry is told that there is no room.
const MAX: Duration = Duration::from_secs(15);
/// Between two probes that are refused: 100,000 entries that wait cost a full relay 100 requests a
/// second, and not one for each of their back-offs.
const PAUSE: Duration = Duration::from_millis(10);

impl SetAside {
    pub(super) fn new(conflate: bool) -> Self {
        Self {
            entries: BTreeMap::new(),
            index: HashMap::new(),
            conflate,
            next: 0,
            probe: 1,
            paused_until: Tick::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.values_mut().map(|refused| &mut refused.entry)
    }

    /// Sets an entry aside that was refused for the first time.
    pub(super) fn add(&mut self, entry: Entry, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        let refused = Refused {
            entry,
            error: error.clone(),
            backoff: Backoff::new(BASE, MAX),
            asked_until: now,
        };
        self.wait(refused, now, rng);
    }

    /// Returns the entry that would be conflated with this one.
    pub(super) fn find(&mut self, key: &Key) -> Option<&mut Refused> {
        let place = self.index.get(key)?;
        self.entries.get_mut(place)
    }

    pub(super) fn holds(&self, key: &Key) -> bool {
        self.index.contains_key(key)
    }

    /// Returns when the next probe may be sent.
    pub(super) fn due(&self) -> Option<Tick> {
        let (place, first) = self.entries.first_key_value()?;
        Some(self.due_of(place.0, first).max(self.paused_until))
    }

    /// Takes the entries of the next probe out, at most so many and in so many bytes.
    pub(super) fn take_probe(&mut self, now: Tick, most: usize, room: usize) -> Vec<Refused> {
        let mut probe = Vec::new();
        if self.paused_until > now {
            return probe;
        }
        let (most, mut left) = (self.probe.min(most), room);
        while probe.len() < most
            && let Some((place, first)) = self.entries.first_key_value()
            && self.due_of(place.0, first) <= now
        {
            let bytes = first.entry.notification.encoded_at_most();
            if bytes > left && !probe.is_empty() {
                break;
            }
            left = left.saturating_sub(bytes);
            let (_, refused) = self.entries.pop_first().expect("it is the first");
            self.index.remove(&refused.entry.key);
            probe.push(refused);
        }
        probe
    }

    /// The relay took a probe of so many entries.
    pub(super) fn taken(&mut self, count: usize) {
        self.probe = (count * 2).clamp(1, Limits::EVENTS);
    }

    /// A probe of several was refused, and which of them is not known: the next one is smaller.
    pub(super) fn narrow(&mut self, most: usize) {
        self.probe = most.max(1);
    }

    /// A probe of one was refused: the relay is still full.
    pub(super) fn refused_again(
        &mut self,
        mut refused: Refused,
        error: &Error,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) {
        self.probe = 1;
        self.paused_until = now + PAUSE;
        refused.error = error.clone();
        self.wait(refused, now, rng);
    }

    /// Takes entries back that are due at once.
    pub(super) fn put_back(&mut self, probe: Vec<Refused>, now: Tick) {
        for refused in probe {
            self.insert(refused, now);
        }
    }

    /// Returns when an entry is due: sooner than by its back-off where the relay has room again.
    fn due_of(&self, due: Tick, refused: &Refused) -> Tick {
        if self.probe > 1 {
            refused.asked_until
        } else {
            due
        }
    }

    fn wait(&mut self, mut refused: Refused, now: Tick, rng: &mut fastrand::Rng) {
        let asked = refused.error.retry_after().unwrap_or_default();
        refused.asked_until = now + asked.min(Limits::AWAY);
        let due = refused.asked_until.max(now + refused.backoff.next(rng));
        self.insert(refused, due);
    }

    /// Adds an entry, or adds it to the one that waits for the same: that one keeps its time.
    fn insert(&mut self, refused: Refused, due: Tick) {
        if let Some(kept) = self.find(&refused.entry.key) {
            kept.merge(refused.entry);
            return;
        }
        self.next += 1;
        let place = (due, self.next);
        if self.conflate {
            self.index.insert(refused.entry.key.clone(), place);
        }
        self.entries.insert(place, refused);
    }
}

impl Refused {
    /// Takes on another notification of the same queue and time: it waits for room as well.
    pub(super) fn merge(&mut self, mut other: Entry) {
        other.is_set_aside();
        self.entry.merge(other);
    }
}
