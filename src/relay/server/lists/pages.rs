//! The pages of a list: entries up to a number and a size, of this relay and merged with those of
//! the others (C13).

use std::collections::BTreeMap;

use prost::Message;

use super::after;
use crate::wire::proto;

/// The limits of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageLimits {
    pub(crate) count: usize,
    /// Encoded bytes; the next page begins where an entry would exceed them.
    bytes: usize,
    /// Encoded bytes of the selectors in one listener's entry. Further selectors are omitted;
    /// `queues` counts the matches of all.
    pub(super) selector_bytes: usize,
}

/// The entries of a page, up to its limits. The next page's token names its last entry, so that
/// concurrently added or removed entries shift no page.
#[derive(Debug)]
pub(crate) struct Page<T> {
    entries: Vec<T>,
    limits: PageLimits,
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
    /// The order of the list.
    type Key: Ord + Clone;

    fn key(&self) -> Self::Key;

    /// Returns the token of the page that ends with this entry.
    fn token(&self) -> String;

    /// Returns where a list goes on after this entry.
    fn after(&self) -> String {
        self.token()
    }

    /// Adds what another relay has of the same entry.
    fn add(&mut self, other: Self);
}

/// Bytes around an entry: the field's number and the entry's length.
pub(super) const FRAMING: usize = 6;

impl PageLimits {
    /// The limits of an answer to a client: selectors are 246 of the longest names, or thousands of
    /// usual ones.
    pub(crate) fn of_client(count: usize) -> Self {
        Self {
            count,
            bytes: 1024 * 1024,
            selector_bytes: 64 * 1024,
        }
    }

    /// The limits of a reply to a relay, which must fit a message of 64 KiB.
    pub(crate) fn of_relay(count: usize) -> Self {
        Self {
            count,
            bytes: 56 * 1024,
            selector_bytes: 16 * 1024,
        }
    }
}

impl<T: Message> Page<T> {
    pub(crate) fn new(limits: PageLimits) -> Self {
        Self {
            entries: Vec::new(),
            limits,
            bytes: 0,
        }
    }

    /// Adds an entry, or returns `false` if the page is full. The first entry always fits.
    pub(crate) fn push(&mut self, entry: T) -> bool {
        let bytes = self.bytes + entry.encoded_len() + FRAMING;
        let full = self.entries.len() == self.limits.count || bytes > self.limits.bytes;
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
    pub(super) fn merge(mut parts: Vec<Self>) -> Self {
        if parts.len() == 1
            && let Some(part) = parts.pop()
        {
            return part;
        }
        let unfinished = parts.iter().filter(|part| part.more);
        let complete_to = unfinished
            .filter_map(|part| part.entries.last())
            .map(T::key);
        let complete_to = complete_to.min();
        let mut merged = BTreeMap::<T::Key, T>::new();
        let mut more = false;
        for entry in parts.into_iter().flat_map(|part| part.entries) {
            let key = entry.key();
            if complete_to.as_ref().is_some_and(|last| key > *last) {
                more = true;
            } else if let Some(known) = merged.get_mut(&key) {
                known.add(entry);
            } else {
                merged.insert(key, entry);
            }
        }
        Self {
            entries: merged.into_values().collect(),
            more: more || complete_to.is_some(),
        }
    }
}

impl Entry for proto::Queue {
    type Key = String;

    fn key(&self) -> String {
        format!("{}/{}", self.storage_account, self.queue_name)
    }

    fn token(&self) -> String {
        self.key()
    }

    fn after(&self) -> String {
        after(&self.key())
    }

    /// Each relay counts the notifications of all, and its own listeners and timers.
    fn add(&mut self, other: Self) {
        self.sequence = self.sequence.max(other.sequence);
        self.notifications = self.notifications.max(other.notifications);
        self.payload_size = self.payload_size.max(other.payload_size);
        self.messages = self.messages.max(other.messages);
        self.listeners = self.listeners.saturating_add(other.listeners);
        self.timers = self.timers.saturating_add(other.timers);
        self.idle_for = least(self.idle_for, other.idle_for);
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
    type Key = String;

    /// The id of its stream, which is random: no other relay has the same one.
    fn key(&self) -> String {
        let id = self.subscription_id.rsplit('/').next();
        id.unwrap_or_default().to_owned()
    }

    fn token(&self) -> String {
        self.key()
    }

    fn add(&mut self, _: Self) {}
}

impl Entry for proto::FlagWatcher {
    type Key = (String, String);

    fn key(&self) -> (String, String) {
        (self.flag.clone(), self.listener_id.clone())
    }

    fn token(&self) -> String {
        format!("{}/{}", self.flag, self.listener_id)
    }

    /// A listener may have gone from one relay to another.
    fn add(&mut self, other: Self) {
        self.acknowledged |= other.acknowledged;
        self.since = match (self.streams, other.streams) {
            (0, 1..) => other.since,
            (1.., 0) => self.since,
            // Its first stream of several.
            (1.., 1..) => greatest(self.since, other.since),
            // The end of its last stream.
            (0, 0) => least(self.since, other.since),
        };
        self.streams = self.streams.saturating_add(other.streams);
    }
}

/// Returns the shorter of two durations.
fn least(
    one: Option<prost_types::Duration>,
    two: Option<prost_types::Duration>,
) -> Option<prost_types::Duration> {
    let all = [one, two].into_iter().flatten();
    all.min_by_key(|span| (span.seconds, span.nanos))
}

/// Returns the longer of two durations.
fn greatest(
    one: Option<prost_types::Duration>,
    two: Option<prost_types::Duration>,
) -> Option<prost_types::Duration> {
    let all = [one, two].into_iter().flatten();
    all.max_by_key(|span| (span.seconds, span.nanos))
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
