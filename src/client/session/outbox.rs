//! A publisher's unsent entries, at most one per key, in the order in which they are sent. An entry is a
//! conflated notification with its callers.

use std::{
    collections::{HashMap, VecDeque, hash_map},
    time::Duration,
};

use futures_channel::oneshot;

use crate::{
    base::clock::Tick,
    error::Result,
    types::{Accepted, Limits, Notification, QueueAddress},
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

    /// Removes the entries of the next request.
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

    /// Adds an entry at the end, or merges it into the entry with its key.
    pub(super) fn push(&mut self, entry: Entry) {
        match self.entries.entry(entry.key.clone()) {
            hash_map::Entry::Occupied(mut known) => known.get_mut().merge(entry),
            hash_map::Entry::Vacant(new) => {
                self.order.push_back(entry.key.clone());
                new.insert(entry);
            }
        }
    }

    /// Returns whether an entry with this key is queued.
    pub(super) fn contains(&self, key: &EntryKey) -> bool {
        self.entries.contains_key(key)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
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

/// The result of a notification, for its caller.
pub(super) type Answer = oneshot::Receiver<Result<Accepted>>;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: EntryKey,
    pub(super) notification: Notification,
    /// One for each caller; some may have stopped waiting.
    pub(super) callers: Vec<oneshot::Sender<Result<Accepted>>>,
    /// C8: relays that have counted all of it, and could not confirm that, in the order of their epochs.
    pub(super) counted: Vec<Counted>,
    /// The relay had no room for it: not sent again before this time. Otherwise in the past.
    pub(super) due: Tick,
}

impl Entry {
    pub(super) fn new(notification: Notification, now: Tick) -> (Self, Answer) {
        let (caller, answer) = oneshot::channel();
        let delay = notification.delay;
        let key = EntryKey {
            queue: notification.queue.clone(),
            due: (!delay.is_zero()).then(|| now.after_on_grid(delay)),
            counted_by: Vec::new(),
        };
        let entry = Self {
            key,
            notification,
            callers: vec![caller],
            counted: Vec::new(),
            due: Tick::default(),
        };
        (entry, answer)
    }

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
        if self.callers.len() + other.callers.len() > self.callers.capacity() {
            self.purge();
            // As many as are left come before the next purge, so its cost per caller is constant.
            let most = self.callers.len().max(other.callers.len());
            self.callers.reserve_exact(most.max(4));
        }
        let others = other.callers.into_iter();
        self.callers
            .extend(others.filter(|caller| !caller.is_canceled()));
    }

    /// Answers all callers.
    pub(super) fn answer(&mut self, result: &Result<Accepted>) {
        for caller in std::mem::take(&mut self.callers) {
            // One that has stopped waiting takes no result.
            let _ = caller.send(result.clone());
        }
    }

    /// Removes callers that stopped waiting, so that lists grow with queues and not with calls.
    pub(super) fn purge(&mut self) {
        self.callers.retain(|caller| !caller.is_canceled());
        self.callers.shrink_to(self.callers.len() * 2);
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
