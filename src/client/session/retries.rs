//! Entries that the relay refused with RESOURCE_EXHAUSTED, until it has room for them (R19: a bad
//! event fails alone).
//!
//! Each entry waits for its own back-off and is then sent in a *probe*: a request of such entries
//! only, at most one at a time, so that no other entry waits for them. Immediate entries, delayed
//! entries, and entries whose delay has ended have separate probes, because the relay may have room
//! for one kind and not for another. Probes of immediate entries go first, and each kind has its
//! share. A probe holds one entry while the relay is full. Each accepted probe doubles the next one
//! of its kind, whose entries need not be due. So a relay with room again receives all waiting
//! entries within a few round trips.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use super::outbox::{Entry, EntryKey};
use crate::{
    base::{backoff::Backoff, clock::Tick},
    error::Error,
    types::Limits,
};

/// Entries that wait until the relay has room.
#[derive(Debug)]
pub(super) struct SetAside {
    /// In the order of [`EntryKind`].
    lists: [RetryList; 3],
    /// End times of the delays of delayed entries.
    delay_ends: BTreeSet<(Tick, DueOrder)>,
    /// Location of each key's entry.
    index: HashMap<EntryKey, (EntryKind, DueOrder)>,
    next: u64,
    /// Kind of the newest probe.
    probed: EntryKind,
    /// Number of probes so far.
    probes: usize,
    /// Earliest time of the next probe.
    paused_until: Tick,
}

/// The entries of one kind.
#[derive(Debug)]
struct RetryList {
    entries: BTreeMap<DueOrder, RefusedEntry>,
    /// Maximum entries of the next probe.
    probe_limit: usize,
}

/// The resource of the relay that an entry needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    Immediate,
    /// Formerly delayed: it needs no timer any more.
    DelayEnded,
    Delayed,
}

/// Order of a kind's entries: retry time, then order of arrival.
type DueOrder = (Tick, u64);

/// An entry with its refusal.
#[derive(Debug)]
pub(super) struct RefusedEntry {
    pub(super) entry: Entry,
    pub(super) error: Error,
    backoff: Backoff,
    /// End of the wait that the relay requested.
    relay_wait_until: Tick,
}

/// Maximum wait before the first retry of an entry.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Maximum wait between retries, unless the relay requests more. It is half of a caller's default
/// deadline, so that a caller whose notification joins the entry learns of the refusal.
const MAX_RETRY: Duration = Duration::from_secs(15);
/// Pause after a refused probe. 100,000 waiting entries then cost a full relay 100 requests a
/// second, instead of one request for each entry's back-off.
const PROBE_PAUSE: Duration = Duration::from_millis(10);
/// Round-robin order of probes. If no entry of the kind is due, the first kind with a due entry is
/// used.
const PROBE_ORDER: [EntryKind; 4] = [
    EntryKind::Immediate,
    EntryKind::DelayEnded,
    EntryKind::Immediate,
    EntryKind::Delayed,
];
/// Maximum ended delays that one call processes, because thousands may end at one time.
const MAX_ENDS_PER_CALL: usize = 1024;

impl SetAside {
    pub(super) fn new() -> Self {
        Self {
            lists: std::array::from_fn(|_| RetryList::new()),
            delay_ends: BTreeSet::new(),
            index: HashMap::new(),
            next: 0,
            probed: EntryKind::Immediate,
            probes: 0,
            paused_until: Tick::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lists.iter().map(|list| list.entries.len()).sum()
    }

    pub(super) fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        let all = self.lists.iter_mut().map(|list| list.entries.values_mut());
        all.flatten().map(|refused| &mut refused.entry)
    }

    /// Adds an entry after its first refusal.
    pub(super) fn add(&mut self, entry: Entry, error: &Error, now: Tick, rng: &mut fastrand::Rng) {
        let refused = RefusedEntry {
            entry,
            error: error.clone(),
            backoff: Backoff::new(FIRST_RETRY, MAX_RETRY),
            relay_wait_until: now,
        };
        self.schedule(refused, now, rng);
    }

    /// Returns the entry with this key.
    pub(super) fn find(&mut self, key: &EntryKey) -> Option<&mut RefusedEntry> {
        let (kind, order) = *self.index.get(key)?;
        self.list(kind).entries.get_mut(&order)
    }

    pub(super) fn contains(&self, key: &EntryKey) -> bool {
        self.index.contains_key(key)
    }

    /// Returns when the next probe may be sent or the next delay ends.
    pub(super) fn due(&self) -> Option<Tick> {
        let end = self.delay_ends.first().map(|(end, _)| *end);
        let due = self.lists.iter().filter_map(RetryList::due);
        let first = due.chain(end).min()?;
        Some(first.max(self.paused_until))
    }

    /// Removes and returns the entries of the next probe: at most `max_entries`, in `max_bytes`.
    pub(super) fn take_probe(
        &mut self,
        now: Tick,
        max_entries: usize,
        max_bytes: usize,
    ) -> Vec<RefusedEntry> {
        let mut probe = Vec::new();
        if self.paused_until > now {
            return probe;
        }
        self.end_delays(now);
        let Some(kind) = self.next_kind(now) else {
            return probe;
        };
        (self.probed, self.probes) = (kind, self.probes.wrapping_add(1));
        let max_entries = self.list(kind).probe_limit.min(max_entries);
        let mut left = max_bytes;
        while probe.len() < max_entries
            && let Some((order, first)) = self.list(kind).first_due(now)
        {
            let bytes = first.entry.notification.encoded_at_most();
            if bytes > left && !probe.is_empty() {
                break;
            }
            left = left.saturating_sub(bytes);
            probe.extend(self.remove(kind, order));
        }
        probe
    }

    /// Doubles the next probe after the relay accepted one of `count` entries.
    pub(super) fn probe_accepted(&mut self, count: usize) {
        self.list(self.probed).probe_limit = (count * 2).clamp(1, Limits::EVENTS);
    }

    /// Limits the next probe after one of several entries was refused, as the refused entry among
    /// them is unknown.
    pub(super) fn limit_probe(&mut self, max_entries: usize) {
        self.list(self.probed).probe_limit = max_entries.max(1);
    }

    /// Keeps an entry whose single-entry probe was refused: the relay is still full.
    pub(super) fn refused_again(
        &mut self,
        mut refused: RefusedEntry,
        error: &Error,
        now: Tick,
        rng: &mut fastrand::Rng,
    ) {
        self.list(self.probed).probe_limit = 1;
        self.paused_until = now + PROBE_PAUSE;
        refused.error = error.clone();
        self.schedule(refused, now, rng);
    }

    /// Puts the entries of an unanswered probe back; they are due at once.
    pub(super) fn put_back(&mut self, probe: Vec<RefusedEntry>, now: Tick) {
        for refused in probe {
            self.insert(refused, now, now);
        }
    }

    fn list(&mut self, kind: EntryKind) -> &mut RetryList {
        &mut self.lists[kind as usize]
    }

    /// Selects the kind of the next probe.
    fn next_kind(&self, now: Tick) -> Option<EntryKind> {
        let preferred = PROBE_ORDER[self.probes % PROBE_ORDER.len()];
        let mut kinds = [
            preferred,
            EntryKind::Immediate,
            EntryKind::DelayEnded,
            EntryKind::Delayed,
        ]
        .into_iter();
        kinds.find(|kind| self.lists[*kind as usize].first_due(now).is_some())
    }

    /// Moves entries whose delay has ended to their list. They are due at once unless the relay
    /// requested a wait, because they need no timer of the relay any more.
    fn end_delays(&mut self, now: Tick) {
        for _ in 0..MAX_ENDS_PER_CALL {
            let Some(&(end, order)) = self.delay_ends.first().filter(|(end, _)| *end <= now) else {
                break;
            };
            let Some(refused) = self.remove(EntryKind::Delayed, order) else {
                self.delay_ends.remove(&(end, order));
                continue;
            };
            let due = order.0.min(refused.relay_wait_until.max(end));
            self.insert(refused, due, now);
        }
    }

    fn remove(&mut self, kind: EntryKind, order: DueOrder) -> Option<RefusedEntry> {
        let refused = self.list(kind).entries.remove(&order)?;
        let key = &refused.entry.key;
        self.index.remove(key);
        if let Some(end) = key.due {
            self.delay_ends.remove(&(end, order));
        }
        Some(refused)
    }

    fn schedule(&mut self, mut refused: RefusedEntry, now: Tick, rng: &mut fastrand::Rng) {
        let requested = refused.error.retry_after().unwrap_or_default();
        refused.relay_wait_until = now + requested.min(Limits::MAX_RECONNECT_AFTER);
        let due = refused
            .relay_wait_until
            .max(now + refused.backoff.next(rng));
        self.insert(refused, due, now);
    }

    /// Adds an entry, or merges it into the entry with its key, which keeps its retry time.
    fn insert(&mut self, refused: RefusedEntry, due: Tick, now: Tick) {
        if let Some(kept) = self.find(&refused.entry.key) {
            kept.merge(refused.entry);
            return;
        }
        self.next += 1;
        let order = (due, self.next);
        let kind = match refused.entry.key.due {
            None => EntryKind::Immediate,
            Some(end) if end <= now => EntryKind::DelayEnded,
            Some(end) => {
                self.delay_ends.insert((end, order));
                EntryKind::Delayed
            }
        };
        self.index.insert(refused.entry.key.clone(), (kind, order));
        self.list(kind).entries.insert(order, refused);
    }
}

impl RetryList {
    fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            probe_limit: 1,
        }
    }

    fn due(&self) -> Option<Tick> {
        let (order, first) = self.entries.first_key_value()?;
        Some(self.due_of(*order, first))
    }

    fn first_due(&self, now: Tick) -> Option<(DueOrder, &RefusedEntry)> {
        let (order, first) = self.entries.first_key_value()?;
        (self.due_of(*order, first) <= now).then_some((*order, first))
    }

    /// Returns when an entry is due. The back-off is skipped once the relay has room again.
    fn due_of(&self, (due, _): DueOrder, refused: &RefusedEntry) -> Tick {
        if self.probe_limit > 1 {
            refused.relay_wait_until
        } else {
            due
        }
    }
}

impl RefusedEntry {
    /// Adds another notification with the same key, which waits for room as well.
    pub(super) fn merge(&mut self, mut other: Entry) {
        other.mark_set_aside();
        self.entry.merge(other);
    }
}
