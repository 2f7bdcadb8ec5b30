//! The counts of events in a run, or in many (J10: each kind of trouble and branch happens).

use std::collections::BTreeMap;

/// Counts by name.
#[derive(Debug, Default)]
pub(super) struct Totals {
    counts: BTreeMap<&'static str, u64>,
}

/// The names that must occur often in a plain run.
const NEEDED: &[&str] = &[
    "answered",
    "checks",
    "catch-ups",
    "confirmed",
    "degraded streams",
    "flag acknowledgements",
    "flag counts",
    "flag failures",
    "flag moves",
    "flag queries",
    "flag refreshes",
    "flag sets",
    "flag states",
    "flag streams",
    "flag writes",
    "flag writes by hand",
    "frames",
    "messages",
    "messages without newer fields",
    "patterns checked",
    "refused",
    "silent puts",
    "taken by all",
    "taken by one",
    "resyncs",
    "resyncs of all",
    "missing",
    "streams",
    "wakes",
];

impl Totals {
    pub(super) fn count(&mut self, name: &'static str, more: u64) {
        *self.counts.entry(name).or_default() += more;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (name, count) in &other.counts {
            self.count(name, *count);
        }
    }

    /// Returns what happened less often than `least`: the needed names, and all troubles.
    pub(super) fn below(&self, least: u64) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let troubles = super::plan::Trouble::ALL.iter().map(|one| one.name());
        let names = NEEDED.iter().copied().chain(troubles);
        let count = |name| self.counts.get(name).copied().unwrap_or_default();
        names
            .map(move |name| (name, count(name)))
            .filter(move |(_, count)| *count < least)
    }
}
