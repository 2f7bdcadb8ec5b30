//! A request in flight: its entries and the time of sending.

use crate::{
    base::clock::Tick,
    client::session::{entry::Entry, set_aside::RefusedEntry},
};

/// A request in flight.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) body: RequestEntries,
    pub(super) sent_at: Tick,
}

/// The entries of a request.
#[derive(Debug)]
pub(super) enum RequestEntries {
    Entries(Vec<Entry>),
    /// Entries that the relay refused because it is full.
    Probe(Vec<RefusedEntry>),
}

impl Request {
    /// Returns the entries for which a flush waits, so none of a probe.
    pub(super) fn entries(&self) -> Option<&[Entry]> {
        match &self.body {
            RequestEntries::Entries(entries) => Some(entries),
            RequestEntries::Probe(_) => None,
        }
    }
}

impl RequestEntries {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Entries(entries) => entries.len(),
            Self::Probe(probe) => probe.len(),
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        let (entries, probe) = match self {
            Self::Entries(entries) => (&entries[..], &[][..]),
            Self::Probe(probe) => (&[][..], &probe[..]),
        };
        entries
            .iter()
            .chain(probe.iter().map(|refused| &refused.entry))
    }

    pub(super) fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        let (entries, probe) = match self {
            Self::Entries(entries) => (&mut entries[..], &mut [][..]),
            Self::Probe(probe) => (&mut [][..], &mut probe[..]),
        };
        let refused = probe.iter_mut().map(|refused| &mut refused.entry);
        entries.iter_mut().chain(refused)
    }

    pub(super) fn into_entries(self) -> impl Iterator<Item = Entry> {
        let (entries, probe) = match self {
            Self::Entries(entries) => (entries, Vec::new()),
            Self::Probe(probe) => (Vec::new(), probe),
        };
        let refused = probe.into_iter().map(|refused| refused.entry);
        entries.into_iter().chain(refused)
    }
}
