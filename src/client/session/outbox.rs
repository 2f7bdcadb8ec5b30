//! A publisher's unsent entries in order of arrival, at most one per key. An entry is a conflated
//! notification with its waiters.

use std::{
    collections::{HashMap, VecDeque, hash_map},
    time::Duration,
};

use super::waiters::WaiterList;
use crate::{
    base::clock::Tick,
    types::{Limits, Notification, QueueAddress},
    wire::{MOST_COUNTED, proto::Counted},
};

/// The queue of unsent entries.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    entries: HashMap<EntryKey, Entry>,
    /// The keys of all entries, in their order.
    order: VecDeque<EntryKey>,
}

impl Outbox {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.values_mut()
    }

    /// Returns when the first entry may be sent.
    pub(super) fn due(&self) -> Option<Tick> {
        let first = self.order.front()?;
        Some(self.entries[first].due)
    }

    /// Removes the entries of the next request, in order of arrival.
    pub(super) fn take(&mut self, now: Tick, most: usize) -> Vec<Entry> {
        let mut taken: Vec<Entry> = Vec::new();
        while taken.len() < most
            && self.due().is_some_and(|due| due <= now)
            && let Some(front) = self.order.front()
        {
            // What a relay has counted and what it has not are two requests.
            let differs = |first: &Entry| first.key.counted_by != front.counted_by;
            if taken.first().is_some_and(differs) {
                break;
            }
            taken.extend(self.entries.remove(front));
            self.order.pop_front();
        }
        taken
    }

    /// Adds an entry at the end, or merges it into the entry with its key; returns that.
    pub(super) fn push(&mut self, entry: Entry) -> &mut Entry {
        self.add(entry, VecDeque::push_back)
    }

    /// Puts an entry back to the front, or merges it into the entry with its key.
    pub(super) fn put_back(&mut self, entry: Entry) {
        self.add(entry, VecDeque::push_front);
    }

    /// Returns whether an entry with this key is queued.
    pub(super) fn contains(&self, key: &EntryKey) -> bool {
        self.entries.contains_key(key)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    fn add(&mut self, entry: Entry, to: fn(&mut VecDeque<EntryKey>, EntryKey)) -> &mut Entry {
        match self.entries.entry(entry.key.clone()) {
            hash_map::Entry::Occupied(known) => {
                let known = known.into_mut();
                known.merge(entry);
                known
            }
            hash_map::Entry::Vacant(new) => {
                to(&mut self.order, entry.key.clone());
                new.insert(entry)
            }
        }
    }
}

/// Notifications with the same key are conflated: same queue, same due time, counted by the same relays.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct EntryKey {
    pub(super) queue: QueueAddress,
    /// Due time on the timer grid; `None` for an immediate notification.
    pub(super) due: Option<Tick>,
    /// The epochs of [`Entry::counted`], in order.
    pub(super) counted_by: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: EntryKey,
    pub(super) notification: Notification,
    pub(super) waiters: WaiterList,
    /// C8: relays that have counted all of it, and could not confirm that, in the order of their epochs.
    pub(super) counted: Vec<Counted>,
    /// The relay had no room for it: not sent again before this time. Otherwise in the past.
    pub(super) due: Tick,
}

impl Entry {
    /// Returns whether a relay has refused it for want of room before.
    pub(super) fn was_kept(&self) -> bool {
        self.due > Tick::default()
    }

    /// Adds another notification with the same key.
    pub(super) fn merge(&mut self, other: Self) {
        let (kept, new) = (&mut self.notification, other.notification);
        kept.notifications = kept
            .notifications
            .max(1)
            .saturating_add(new.notifications.max(1));
        kept.messages = kept.messages.max(1).saturating_add(new.messages.max(1));
        kept.payload_size = kept.payload_size.saturating_add(new.payload_size);
        if new.published_at >= kept.published_at {
            kept.published_at = new.published_at;
            kept.traceparent = new.traceparent;
        }
        merge_counted(&mut self.counted, &other.counted);
        self.due = self.due.max(other.due);
        self.waiters.extend(other.waiters);
    }

    /// A relay has counted it.
    pub(super) fn was_counted(&mut self, counted: &Counted) {
        let by = |other: &Counted| other.epoch.cmp(&counted.epoch);
        match self.counted.binary_search_by(by) {
            Ok(at) => self.counted[at].position = counted.position,
            // Of so many relays most have ended: what they have counted is of no use.
            Err(_) if self.counted.len() == MOST_COUNTED => self.counted = vec![counted.clone()],
            Err(at) => self.counted.insert(at, counted.clone()),
        }
        let epochs = self.counted.iter().map(|counted| counted.epoch.clone());
        self.key.counted_by = epochs.collect();
    }

    /// Returns the notification with its remaining delay.
    pub(super) fn with_remaining_delay(&self, now: Tick) -> Notification {
        // The grid may round up beyond the longest delay, which the relay would refuse. The cut
        // wake-up still comes no earlier than requested.
        let left = self.key.due.map_or(Duration::ZERO, |due| due.since(now));
        let delay = left.min(Limits::DELAY);
        Notification {
            delay,
            ..self.notification.clone()
        }
    }
}

/// Merges what relays have counted of two entries: the same relays, as their keys or the request say.
pub(super) fn merge_counted(kept: &mut [Counted], new: &[Counted]) {
    for (kept, new) in kept.iter_mut().zip(new) {
        kept.position = kept.position.max(new.position);
    }
}
