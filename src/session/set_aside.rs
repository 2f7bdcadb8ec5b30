//! Entries that the relay refused with RESOURCE_EXHAUSTED, until it has room for them (R19: a bad
//! event fails alone).
//!
//! Each waits by a back-off of its own and is then sent in a *probe*: a request of such entries
//! only, at most one at a time, so that no other entry waits for them. Immediate entries, delayed
//! ones, and those whose delay has ended have probes of their own, because the relay may have room
//! for one kind and not for another. Immediate ones go first, and each kind has its share. A probe
//! holds one entry while the relay is full. Each one that is taken doubles the next of its kind, whose
//! entries need not be due: a relay that has room again is told of all that waits within a few round
//! trips.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use super::entry::{Entry, Key};
use crate::{backoff::Backoff, clock::Tick, error::Error, words::Limits};

/// The entries that wait for room.
#[derive(Debug)]
pub(super) struct SetAside {
    /// In the order of [`Kind`].
    lines: [Line; 3],
    /// When the delays of delayed entries end.
    ends: BTreeSet<(Tick, Place)>,
    /// Where each key's entry is; unused where nothing is conflated.
    index: HashMap<Key, (Kind, Place)>,
    conflate: bool,
    next: u64,
    /// What the newest probe held, and how many there were.
    probed: Kind,
    probes: usize,
    /// No probe is sent before.
    paused_until: Tick,
}

/// The entries of one kind.
#[derive(Debug)]
struct Line {
    /// By when each is due, and the order in which they came.
    entries: BTreeMap<Place, Refused>,
    /// Entries of the next probe at most.
    probe: usize,
}

/// What the relay has to have room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Immediate,
    /// Delayed once: it needs no timer any more.
    Ended,
    Delayed,
}

type Place = (Tick, u64);

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
/// Whose turn it is. Where nothing of the kind is due, the first kind goes that has something due.
const TURNS: [Kind; 4] = [Kind::Immediate, Kind::Ended, Kind::Immediate, Kind::Delayed];
/// Entries whose delay ends that one call looks at: they may all end at one time.
const ENDS: usize = 1024;

impl SetAside {
    pub(super) fn new(conflate: bool) -> Self {
        Self {
            lines: std::array::from_fn(|_| Line::new()),
            ends: BTreeSet::new(),
            index: HashMap::new(),
            conflate,
            next: 0,
            probed: Kind::Immediate,
            probes: 0,
            paused_until: Tick::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.iter().map(|line| line.entries.len()).sum()
    }

    pub(super) fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        let all = self.lines.iter_mut().map(|line| line.entries.values_mut());
        all.flatten().map(|refused| &mut refused.entry)
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
        let (kind, place) = *self.index.get(key)?;
        self.line(kind).entries.get_mut(&place)
    }

    pub(super) fn holds(&self, key: &Key) -> bool {
        self.index.contains_key(key)
    }

    /// Returns when the next probe may be sent, or a delay ends.
    pub(super) fn due(&self) -> Option<Tick> {
        let end = self.ends.first().map(|(end, _)| *end);
        let due = self.lines.iter().filter_map(Line::due);
        let first = due.chain(end).min()?;
        Some(first.max(self.paused_until))
    }

    /// Takes the entries of the next probe out, at most so many and in so many bytes.
    pub(super) fn take_probe(&mut self, now: Tick, most: usize, room: usize) -> Vec<Refused> {
        let mut probe = Vec::new();
        if self.paused_until > now {
            return probe;
        }
        self.end_delays(now);
        let Some(kind) = self.turn(now) else {
            return probe;
        };
        (self.probed, self.probes) = (kind, self.probes.wrapping_add(1));
        let (most, mut left) = (self.line(kind).probe.min(most), room);
        while probe.len() < most
            && let Some((place, first)) = self.line(kind).first_due(now)
        {
            let bytes = first.entry.notification.encoded_at_most();
            if bytes > left && !probe.is_empty() {
                break;
            }
            left = left.saturating_sub(bytes);
            probe.extend(self.remove(kind, place));
        }
        probe
    }

    /// The relay took a probe of so many entries.
    pub(super) fn taken(&mut self, count: usize) {
        self.line(self.probed).probe = (count * 2).clamp(1, Limits::EVENTS);
    }

    /// A probe of several was refused, and which of them is not known: the next one is smaller.
    pub(super) fn narrow(&mut self, most: usize) {
        self.line(self.probed).probe = most.max(1);
    }

    /// A probe of one was refused: the relay is still full.
    pub(super) fn refused_again(
        &mut self,
        mut refused: Refused,
        error: &Error,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) {
        self.line(self.probed).probe = 1;
        self.paused_until = now + PAUSE;
        refused.error = error.clone();
        self.wait(refused, now, rng);
    }

    /// Takes entries back that are due at once.
    pub(super) fn put_back(&mut self, probe: Vec<Refused>, now: Tick) {
        for refused in probe {
            self.insert(refused, now, now);
        }
    }

    fn line(&mut self, kind: Kind) -> &mut Line {
        &mut self.lines[kind as usize]
    }

    /// Chooses what the next probe holds.
    fn turn(&self, now: Tick) -> Option<Kind> {
        let turn = TURNS[self.probes % TURNS.len()];
        let mut kinds = [turn, Kind::Immediate, Kind::Ended, Kind::Delayed].into_iter();
        kinds.find(|kind| self.lines[*kind as usize].first_due(now).is_some())
    }

    /// Moves entries whose delay has ended to their line, due at once unless the relay asked to wait: it
    /// refuses them for want of timers no longer.
    fn end_delays(&mut self, now: Tick) {
        for _ in 0..ENDS {
            let Some(&(end, place)) = self.ends.first().filter(|(end, _)| *end <= now) else {
                break;
            };
            let Some(refused) = self.remove(Kind::Delayed, place) else {
                self.ends.remove(&(end, place));
                continue;
            };
            let due = place.0.min(refused.asked_until.max(end));
            self.insert(refused, due, now);
        }
    }

    fn remove(&mut self, kind: Kind, place: Place) -> Option<Refused> {
        let refused = self.line(kind).entries.remove(&place)?;
        let key = &refused.entry.key;
        self.index.remove(key);
        if let Some(end) = key.due {
            self.ends.remove(&(end, place));
        }
        Some(refused)
    }

    fn wait(&mut self, mut refused: Refused, now: Tick, rng: &mut fastrand::Rng) {
        let asked = refused.error.retry_after().unwrap_or_default();
        refused.asked_until = now + asked.min(Limits::AWAY);
        let due = refused.asked_until.max(now + refused.backoff.next(rng));
        self.insert(refused, due, now);
    }

    /// Adds an entry, or adds it to the one that waits for the same: that one keeps its time.
    fn insert(&mut self, refused: Refused, due: Tick, now: Tick) {
        if let Some(kept) = self.find(&refused.entry.key) {
            kept.merge(refused.entry);
            return;
        }
        self.next += 1;
        let place = (due, self.next);
        let kind = match refused.entry.key.due {
            None => Kind::Immediate,
            Some(end) if end <= now => Kind::Ended,
            Some(end) => {
                self.ends.insert((end, place));
                Kind::Delayed
            }
        };
        if self.conflate {
            self.index.insert(refused.entry.key.clone(), (kind, place));
        }
        self.line(kind).entries.insert(place, refused);
    }
}

impl Line {
    fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            probe: 1,
        }
    }

    fn due(&self) -> Option<Tick> {
        let (place, first) = self.entries.first_key_value()?;
        Some(self.due_of(*place, first))
    }

    fn first_due(&self, now: Tick) -> Option<(Place, &Refused)> {
        let (place, first) = self.entries.first_key_value()?;
        (self.due_of(*place, first) <= now).then_some((*place, first))
    }

    /// Returns when an entry is due: sooner than by its back-off where the relay has room again.
    fn due_of(&self, (due, _): Place, refused: &Refused) -> Tick {
        if self.probe > 1 {
            refused.asked_until
        } else {
            due
        }
    }
}

impl Refused {
    /// Takes on another notification of the same queue and time: it waits for room as well.
    pub(super) fn merge(&mut self, mut other: Entry) {
        other.is_set_aside();
        self.entry.merge(other);
    }
}
