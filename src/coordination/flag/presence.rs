//! The present and recent listeners of each flag, for operators.
//!
//! It has no influence on events. Plain data under the registry's lock. A page starts where the
//! previous one ended, so its cost does not grow with the number of watchers.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};

use crate::{
    base::clock::Tick,
    types::{FlagName, ListenerId},
};

/// The listeners of all flags, by name.
#[derive(Debug)]
pub(super) struct Presence {
    flags: BTreeMap<FlagName, BTreeMap<ListenerId, ListenerEntry>>,
    /// Listeners that are away, the oldest departure first.
    away: BTreeMap<u64, (FlagName, ListenerId)>,
    max_away: usize,
    departures: u64,
}

/// One listener of one flag.
#[derive(Debug, Clone, Copy)]
struct ListenerEntry {
    /// 0 while it is away.
    streams: u32,
    /// The start of its first stream, or the end of its last one.
    since: Tick,
    /// Its key in `away`.
    departure: u64,
}

/// A present or recent listener of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatcherView {
    pub(crate) flag: FlagName,
    pub(crate) listener: ListenerId,
    /// Number of its streams; 0 while it is away.
    pub(crate) streams: u32,
    /// Time since its first stream began or its last one ended.
    pub(crate) since: Duration,
    /// Whether it has acknowledged the flag's newest generation.
    pub(crate) acknowledged: bool,
}

/// A query of the list of watchers.
#[derive(Debug)]
pub(crate) struct WatchersQuery {
    /// Lists this flag only; `None` lists all.
    pub(crate) flag: Option<FlagName>,
    /// Includes listeners that are away.
    pub(crate) away: bool,
    /// Starts after this entry.
    pub(crate) after: Option<(FlagName, ListenerId)>,
    /// Largest number of entries.
    pub(crate) count: usize,
}

/// Remembered listeners that are away, of all flags: at about 350 bytes each, 3.5 MB.
const MAX_AWAY: usize = 10_000;

impl Presence {
    pub(super) fn new() -> Self {
        Self::with_max_away(MAX_AWAY)
    }

    fn with_max_away(max_away: usize) -> Self {
        Self {
            flags: BTreeMap::new(),
            away: BTreeMap::new(),
            max_away,
            departures: 0,
        }
    }

    /// Notes a new stream of this listener. Returns whether it has another one already.
    pub(super) fn stream_opened(
        &mut self,
        flag: &FlagName,
        listener: &ListenerId,
        now: Tick,
    ) -> bool {
        let listeners = self.flags.entry(flag.clone()).or_default();
        let entry = listeners.entry(listener.clone()).or_insert(ListenerEntry {
            streams: 0,
            since: now,
            departure: 0,
        });
        let again = entry.streams > 0;
        if !again {
            self.away.remove(&entry.departure);
            entry.since = now;
        }
        entry.streams += 1;
        again
    }

    /// Notes the end of a stream of this listener.
    pub(super) fn stream_closed(&mut self, flag: &FlagName, listener: &ListenerId, now: Tick) {
        let listeners = self.flags.get_mut(flag);
        let Some(entry) = listeners.and_then(|listeners| listeners.get_mut(listener)) else {
            return;
        };
        entry.streams = entry.streams.saturating_sub(1);
        if entry.streams > 0 {
            return;
        }
        self.departures += 1;
        entry.since = now;
        entry.departure = self.departures;
        let departed = (flag.clone(), listener.clone());
        self.away.insert(self.departures, departed);
        if self.away.len() > self.max_away
            && let Some((_, (flag, listener))) = self.away.pop_first()
        {
            self.forget(&flag, &listener);
        }
    }

    fn forget(&mut self, flag: &FlagName, listener: &ListenerId) {
        if let Some(listeners) = self.flags.get_mut(flag) {
            listeners.remove(listener);
            if listeners.is_empty() {
                self.flags.remove(flag);
            }
        }
    }

    /// Returns the next entries by flag and listener, without the acknowledgements.
    ///
    /// The number of skipped entries is at most the number of remembered listeners that are away.
    pub(super) fn page(&self, query: &WatchersQuery, now: Tick) -> Vec<WatcherView> {
        let after = query.after.as_ref();
        let first_flag = query.flag.as_ref().or_else(|| after.map(|(flag, _)| flag));
        let flags = match first_flag {
            Some(first) => self.flags.range(first..),
            None => self.flags.range::<FlagName, _>(..),
        };
        let asked = |flag: &FlagName| query.flag.as_ref().is_none_or(|only| only == flag);
        flags
            .take_while(|(flag, _)| asked(flag))
            .flat_map(|(flag, listeners)| {
                let begin = match after {
                    Some((last, listener)) if last == flag => Excluded(listener),
                    _ => Unbounded,
                };
                let listeners = listeners.range::<ListenerId, _>((begin, Unbounded));
                listeners.map(move |(listener, entry)| (flag, listener, entry))
            })
            .filter(|(_, _, entry)| query.away || entry.streams > 0)
            .take(query.count)
            .map(|(flag, listener, entry)| WatcherView {
                flag: flag.clone(),
                listener: listener.clone(),
                streams: entry.streams,
                since: now.since(entry.since),
                acknowledged: false,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag(name: &str) -> FlagName {
        FlagName::new(name).expect("a name")
    }

    fn listener(id: &str) -> ListenerId {
        ListenerId::new(id).expect("an id")
    }

    fn at(seconds: u64) -> Tick {
        Tick::default() + Duration::from_secs(seconds)
    }

    /// Returns the entries as `flag/listener*streams`.
    fn listed(presence: &Presence, query: &WatchersQuery) -> Vec<String> {
        let page = presence.page(query, at(100));
        let entry =
            |view: &WatcherView| format!("{}/{}*{}", view.flag, view.listener, view.streams);
        page.iter().map(entry).collect()
    }

    fn all(away: bool) -> WatchersQuery {
        WatchersQuery {
            flag: None,
            away,
            after: None,
            count: 100,
        }
    }

    #[test]
    fn listeners_are_listed_by_name_page_by_page_with_their_streams() {
        let mut presence = Presence::new();
        assert!(!presence.stream_opened(&flag("go"), &listener("b"), at(1)));
        assert!(!presence.stream_opened(&flag("go"), &listener("a"), at(2)));
        assert!(!presence.stream_opened(&flag("at"), &listener("z"), at(3)));
        assert!(
            presence.stream_opened(&flag("go"), &listener("b"), at(4)),
            "twice"
        );
        assert_eq!(
            listed(&presence, &all(false)),
            ["at/z*1", "go/a*1", "go/b*2"]
        );
        let after = Some((flag("go"), listener("a")));
        let next = WatchersQuery {
            after,
            ..all(false)
        };
        assert_eq!(listed(&presence, &next), ["go/b*2"]);
        let after = Some((flag("at"), listener("z")));
        let one = WatchersQuery {
            flag: Some(flag("go")),
            after,
            count: 1,
            away: false,
        };
        assert_eq!(listed(&presence, &one), ["go/a*1"]);
        let go = presence.page(&all(false), at(10));
        assert_eq!(
            go[2].since,
            Duration::from_secs(9),
            "since its first stream"
        );
    }

    #[test]
    fn a_listener_is_away_when_its_last_stream_ends_until_it_returns() {
        let mut presence = Presence::new();
        let (go, node) = (flag("go"), listener("node-1"));
        presence.stream_opened(&go, &node, at(1));
        presence.stream_opened(&go, &node, at(2));
        presence.stream_closed(&go, &node, at(3));
        assert_eq!(listed(&presence, &all(true)), ["go/node-1*1"]);
        presence.stream_closed(&go, &node, at(5));
        assert_eq!(listed(&presence, &all(false)), [""; 0]);
        let away = presence.page(&all(true), at(15));
        assert_eq!(
            (away[0].streams, away[0].since),
            (0, Duration::from_secs(10))
        );
        presence.stream_opened(&go, &node, at(20));
        assert_eq!(listed(&presence, &all(true)), ["go/node-1*1"]);
        assert!(presence.away.is_empty());
    }

    #[test]
    fn the_listener_that_left_first_is_forgotten_for_a_later_one() {
        let mut presence = Presence::with_max_away(2);
        for number in 0..4 {
            let (go, node) = (flag("go"), listener(&format!("node-{number}")));
            presence.stream_opened(&go, &node, at(number));
            presence.stream_closed(&go, &node, at(number));
        }
        assert_eq!(
            listed(&presence, &all(true)),
            ["go/node-2*0", "go/node-3*0"]
        );
        let (at_two, three) = (flag("two"), listener("n"));
        for _ in 0..2 {
            presence.stream_opened(&at_two, &three, at(9));
            presence.stream_closed(&at_two, &three, at(9));
        }
        presence.stream_opened(&flag("go"), &listener("node-3"), at(10));
        assert_eq!(presence.away.len(), 1);
    }
}
