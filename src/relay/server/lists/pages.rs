//! The entries and the pages of lists: entries up to a number and a size, of this relay and merged with
//! those of the others (C13).

use std::collections::BTreeMap;

use prost::Message;

use crate::{
    coordination::flag::WatcherView,
    relay::hub::{ListenerStats, QueueStats},
    types::Limits,
    wire::{proto, selector_to_wire, span_to_wire},
};

/// The entries of a page, up to a number and to [`BYTES`]. The next page's token names its last entry, so
/// that concurrently added or removed entries shift no page.
#[derive(Debug)]
pub(crate) struct Page<T> {
    entries: Vec<T>,
    count: usize,
    bytes: usize,
}

/// A part of a list: entries in ascending order.
#[derive(Debug)]
pub(crate) struct Part<T> {
    pub(crate) entries: Vec<T>,
    /// There are entries above the last one.
    pub(crate) more: bool,
}

/// An entry that several relays may have.
pub(crate) trait Entry: Message + Sized {
    /// Lists are in the order of this text.
    fn key(&self) -> String;

    /// Adds what another relay has of the same entry.
    fn add(&mut self, other: Self);
}

/// Encoded bytes of a page; the next one begins where an entry would exceed them.
const BYTES: usize = 56 * 1024;
/// Encoded bytes of the selectors in one listener's entry. Further selectors are omitted; `queues` counts
/// the matches of all.
const SELECTOR_BYTES: usize = 16 * 1024;
/// Bytes around an entry: the field's number and the entry's length.
const FRAMING: usize = 6;

impl<T: Message> Page<T> {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            entries: Vec::new(),
            count: count.min(Limits::PAGE_MAX),
            bytes: 0,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds an entry, or returns `false` if the page is full. The first entry always fits.
    pub(crate) fn push(&mut self, entry: T) -> bool {
        let bytes = self.bytes + entry.encoded_len() + FRAMING;
        let full = self.entries.len() == self.count || bytes > BYTES;
        if full && !self.entries.is_empty() {
            return false;
        }
        self.bytes = bytes;
        self.entries.push(entry);
        true
    }

    pub(crate) fn into_entries(self) -> Vec<T> {
        self.entries
    }

    pub(super) fn into_part(self, more: bool) -> Part<T> {
        Part {
            entries: self.entries,
            more,
        }
    }
}

impl<T: Entry> Part<T> {
    /// Merges the parts of several relays. An entry above the last one of an unfinished part may be
    /// incomplete, so it is left for the next part.
    pub(super) fn merge(parts: Vec<Self>) -> Self {
        let unfinished = parts.iter().filter(|part| part.more);
        let ends = unfinished.filter_map(|part| part.entries.last());
        let complete_to = ends.map(T::key).min();
        let mut merged = BTreeMap::new();
        add_all(&mut merged, parts.into_iter().flat_map(|part| part.entries));
        if let Some(last) = &complete_to {
            merged.retain(|key, _| key <= last);
        }
        Self {
            entries: merged.into_values().collect(),
            more: complete_to.is_some(),
        }
    }
}

/// Adds entries to those with the same key.
pub(super) fn add_all<T: Entry>(
    all: &mut BTreeMap<String, T>,
    entries: impl IntoIterator<Item = T>,
) {
    for entry in entries {
        let key = entry.key();
        match all.get_mut(&key) {
            Some(known) => known.add(entry),
            None => _ = all.insert(key, entry),
        }
    }
}

impl Entry for proto::Queue {
    fn key(&self) -> String {
        format!("{}/{}", self.storage_account, self.queue_name)
    }

    /// Each relay counts the notifications of all, and its own listeners and timers.
    fn add(&mut self, other: Self) {
        self.sequence = self.sequence.max(other.sequence);
        self.notifications = self.notifications.max(other.notifications);
        self.payload_size = self.payload_size.max(other.payload_size);
        self.messages = self.messages.max(other.messages);
        self.listeners = self.listeners.saturating_add(other.listeners);
        self.timers = self.timers.saturating_add(other.timers);
        let idle = [self.idle_for, other.idle_for].into_iter().flatten();
        self.idle_for = idle.min_by_key(|span| (span.seconds, span.nanos));
        self.busy = self.busy.saturating_add(other.busy);
        // Each relay counts the messages of all, and has the reports of its own listeners. So what a
        // relay without a report knows is no bound, and of several bounds the least one holds.
        self.backlog = match (self.in_doubt, other.in_doubt) {
            (false, true) => self.backlog,
            (true, false) => other.backlog,
            (false, false) => self.backlog.min(other.backlog),
            (true, true) => self.backlog.max(other.backlog),
        };
        self.in_doubt &= other.in_doubt;
        let is_newer = match (&self.depth_age, &other.depth_age) {
            (Some(own), Some(others)) => (others.seconds, others.nanos) < (own.seconds, own.nanos),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if is_newer {
            self.current_queue_depth = other.current_queue_depth;
            self.depth_age = other.depth_age;
        }
    }
}

impl Entry for proto::Listener {
    /// The id of its stream, which is random: no other relay has the same one.
    fn key(&self) -> String {
        let id = self.subscription_id.rsplit('/').next();
        id.unwrap_or_default().to_owned()
    }

    fn add(&mut self, _: Self) {}
}

impl Entry for proto::FlagWatcher {
    /// A space is less than any letter of a name.
    fn key(&self) -> String {
        format!("{} {}", self.flag, self.listener_id)
    }

    /// A listener may have gone from one relay to another.
    fn add(&mut self, other: Self) {
        self.acknowledged |= other.acknowledged;
        if self.streams == 0 {
            self.since = other.since;
        }
        self.streams = self.streams.saturating_add(other.streams);
    }
}

pub(super) fn watcher(view: &WatcherView) -> proto::FlagWatcher {
    proto::FlagWatcher {
        flag: view.flag.to_string(),
        listener_id: view.listener.to_string(),
        streams: view.streams,
        since: Some(span_to_wire(view.since)),
        acknowledged: view.acknowledged,
    }
}

pub(super) fn listener(relay_id: &str, view: &ListenerStats) -> proto::Listener {
    let mut left = SELECTOR_BYTES;
    let selectors = view.selectors.iter().map(selector_to_wire);
    let selectors: Vec<_> = selectors
        .map_while(|selector| {
            left = left.checked_sub(selector.encoded_len() + FRAMING)?;
            Some(selector)
        })
        .collect();
    let group = view.group.as_ref().map(ToString::to_string);
    proto::Listener {
        selectors_omitted: selectors.len() < view.queues,
        listener_id: view.listener_id.to_string(),
        subscription_id: format!("{relay_id}/{:032x}", view.subscription.0),
        selectors,
        capacity: view.capacity,
        visibility_timeout: Some(span_to_wire(view.visibility_timeout)),
        connected_for: Some(span_to_wire(view.connected_for)),
        queues: count(view.queues),
        busy: count(view.busy),
        owed: count(view.behind),
        active_dequeue_tasks: view.active_dequeue_tasks,
        total_dequeue_tasks: view.total_dequeue_tasks,
        group: group.unwrap_or_default(),
        polling: view.polling,
        silent_for: view.silent_for.map(span_to_wire),
        busy_for: view.busy_for.map(span_to_wire),
        lost_for: view.lost_for.map(span_to_wire),
        agent: view.agent,
    }
}

pub(in super::super) fn queue(view: &QueueStats) -> proto::Queue {
    proto::Queue {
        storage_account: view.address.storage_account().to_owned(),
        queue_name: view.address.queue_name().to_owned(),
        sequence: view.sequence,
        notifications: view.notifications,
        payload_size: view.payload_size,
        messages: view.messages,
        listeners: count(view.listeners),
        timers: count(view.timers),
        idle_for: view.idle_for.map(span_to_wire),
        current_queue_depth: view.depth.map(|(messages, _)| messages),
        depth_age: view.depth.map(|(_, age)| span_to_wire(age)),
        backlog: view.backlog,
        in_doubt: view.in_doubt,
        busy: view.busy,
    }
}

pub(in super::super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, listeners: u32) -> proto::Queue {
        proto::Queue {
            storage_account: "acct".to_owned(),
            queue_name: name.to_owned(),
            listeners,
            ..proto::Queue::default()
        }
    }

    fn part(entries: &[(&str, u32)], more: bool) -> Part<proto::Queue> {
        Part {
            entries: entries.iter().map(|(name, of)| queue(name, *of)).collect(),
            more,
        }
    }

    fn merged(parts: Vec<Part<proto::Queue>>) -> (Vec<(String, u32)>, bool) {
        let part = Part::merge(parts);
        let entries = part.entries.into_iter();
        (
            entries
                .map(|queue| (queue.queue_name, queue.listeners))
                .collect(),
            part.more,
        )
    }

    #[test]
    fn a_merged_part_ends_where_the_first_unfinished_one_ends() {
        let all = merged(vec![
            part(&[("a", 1), ("c", 1), ("e", 1)], false),
            part(&[("b", 2), ("c", 2)], true),
        ]);
        let expected = [("a", 1), ("b", 2), ("c", 3)];
        let expected: Vec<_> = expected.map(|(name, of)| (name.to_owned(), of)).into();
        assert_eq!(all, (expected, true));
        let all = merged(vec![part(&[("a", 1)], false), part(&[], false)]);
        assert_eq!(all, (vec![("a".to_owned(), 1)], false));
    }

    #[test]
    fn the_newest_depth_of_all_relays_is_listed() {
        let reported = |depth, seconds| proto::Queue {
            current_queue_depth: Some(depth),
            depth_age: Some(prost_types::Duration { seconds, nanos: 0 }),
            ..queue("a", 1)
        };
        let mut listed = queue("a", 0);
        listed.add(reported(7, 9));
        listed.add(reported(5, 2));
        listed.add(reported(3, 4));
        assert_eq!((listed.current_queue_depth, listed.listeners), (Some(5), 3));
    }

    #[test]
    fn the_backlog_of_all_relays_is_the_least_that_a_report_bounds() {
        let known = |backlog, busy| proto::Queue {
            backlog,
            busy,
            ..queue("a", 1)
        };
        let unheard = |backlog| proto::Queue {
            in_doubt: true,
            ..known(backlog, 0)
        };
        for (all, expected) in [
            (vec![unheard(900), known(4, 1), known(7, 2)], (4, false, 3)),
            (vec![known(4, 1), unheard(0)], (4, false, 1)),
            (vec![unheard(3), unheard(5)], (5, true, 0)),
        ] {
            let mut all = all.into_iter();
            let mut listed = all.next().expect("not empty");
            all.for_each(|other| listed.add(other));
            let found = (listed.backlog, listed.in_doubt, listed.busy);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_watcher_that_went_to_another_relay_is_not_away() {
        let watcher = |streams, seconds, acknowledged| proto::FlagWatcher {
            streams,
            since: Some(prost_types::Duration { seconds, nanos: 0 }),
            acknowledged,
            ..proto::FlagWatcher::default()
        };
        let mut listed = watcher(0, 3, true);
        listed.add(watcher(1, 2, false));
        assert_eq!(listed, watcher(1, 2, true));
    }
}
